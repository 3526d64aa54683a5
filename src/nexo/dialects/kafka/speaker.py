"""What all Kafka sessions of one process share."""

from __future__ import annotations

from typing import cast

from nexo.dialects.dialect import HostPort
from nexo.dialects.kafka.format.encodings import Encodings
from nexo.dialects.kafka.transactional import KafkaTransactions
from nexo.dialects.session import DialectState
from nexo.model import Broker
from nexo.services.stream import StreamService

NODE_ID = 0
"""There is one broker."""
CLUSTER_ID = "nexo"


class KafkaShared(DialectState):
    """The host, and what was converted for Kafka clients."""

    def __init__(self, host: HostPort) -> None:
        super().__init__(host)
        self.encodings = Encodings()
        self.transactions = KafkaTransactions()

    @property
    def streams(self) -> StreamService:
        """The stream broker, which runs in this process: connections are handed to it."""
        return cast("StreamService", self.host.services[Broker.STREAM])
