"""What all Kafka sessions of one process share."""

from __future__ import annotations

from nexo.dialects.dialect import Dialect, HostPort
from nexo.dialects.kafka.format.encodings import Encodings
from nexo.dialects.kafka.transactional import KafkaTransactions
from nexo.dialects.session import DialectState

NODE_ID = 0
"""There is one broker."""
CLUSTER_ID = "nexo"


class KafkaShared(DialectState):
    """The services, what was converted for Kafka clients, and their transactions."""

    def __init__(self, dialect: Dialect, host: HostPort) -> None:
        super().__init__(dialect, host)
        self.encodings = Encodings()
        self.transactions = KafkaTransactions()
