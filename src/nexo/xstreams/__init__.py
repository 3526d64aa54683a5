"""Streams in the manner of Redis Streams, behind one interface (SPEC J).

``connect(url)`` gives a `StreamBroker`: in memory (``memory://``), on a Nexo server
(``nexo://``, ``nexos://``), or on Redis (``redis://``, ``rediss://``, ``unix://``).
"""

from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.connecting import connect
from nexo.xstreams.local import LocalStreamBroker
from nexo.xstreams.nexo_broker import NexoStreamBroker
from nexo.xstreams.redis_broker import RedisStreamBroker
from nexo.xstreams.values import (
    ConsumerGroupInfo,
    ConsumerInfo,
    DeadLetter,
    PendingMessage,
    StreamMessage,
)
from nexo.xstreams.worker import StreamWorker

__all__ = [
    "ConsumerGroupInfo",
    "ConsumerInfo",
    "DeadLetter",
    "LocalStreamBroker",
    "NexoStreamBroker",
    "PendingMessage",
    "RedisStreamBroker",
    "StreamBroker",
    "StreamMessage",
    "StreamWorker",
    "connect",
]
