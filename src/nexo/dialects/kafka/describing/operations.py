"""What a user may do, in Kafka's words: the bits that answers have for those who ask for them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from nexo.access.permit import ADMIN, READ, WRITE, may
from nexo.dialects.kafka.request import Request
from nexo.errors import Forbidden
from nexo.model import Broker


class KafkaOperation(enum.IntEnum):
    """The number of a bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_OF_ADMINS = (
    KafkaOperation.CREATE,
    KafkaOperation.DELETE,
    KafkaOperation.ALTER,
    KafkaOperation.DESCRIBE_CONFIGS,
    KafkaOperation.ALTER_CONFIGS,
)


def on_topic(request: Request, stream: str) -> int:
    """What the client may do with a topic that it may see."""
    found = [KafkaOperation.DESCRIBE]
    kinds = ((READ, (KafkaOperation.READ,)), (WRITE, (KafkaOperation.WRITE,)), (ADMIN, _OF_ADMINS))
    for actions, operations in kinds:
        if may(request.session.identity, Broker.STREAM, actions, stream):
            found += operations
    return _bits(found)


def on_group() -> int:
    """What the client may do with a group that it may see: who may read may do all."""
    return _bits((KafkaOperation.READ, KafkaOperation.DELETE, KafkaOperation.DESCRIBE))


def on_cluster(request: Request) -> int:
    """What the client may do with the broker."""
    session = request.session
    try:
        session.streams.admin.check_knows_streams(session)
    except Forbidden:
        return 0
    return _bits((KafkaOperation.CREATE, KafkaOperation.DESCRIBE, KafkaOperation.IDEMPOTENT_WRITE))


def _bits(operations: Iterable[KafkaOperation]) -> int:
    return sum(1 << operation for operation in set(operations))
