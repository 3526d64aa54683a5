"""The one interface of the three stream brokers (SPEC J).

An application uses a `StreamBroker`; its configuration chooses the implementation. Every
method may be called from any thread.

A group read of an unknown stream or group raises `NotFound`; other requests treat an
unknown stream as an empty one.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from nexo.client._sync.handling import Closing
from nexo.errors import ConnectionLost
from nexo.protocol.values import encode_value
from nexo.xstreams import checks
from nexo.xstreams.ids import MessageId, lower, upper
from nexo.xstreams.values import ConsumerGroupInfo, PendingMessage, StreamMessage


class StreamBroker(Closing):
    """Streams of messages, read by groups of consumers that acknowledge each message.

    What is asked is checked here, so that all brokers reject alike; each does its part in the
    method with an underscore.
    """

    def __init__(
        self,
        max_stream_length: int = checks.MAX_STREAM_LENGTH,
        max_pending: int = checks.MAX_PENDING,
    ) -> None:
        self.limits = checks.StreamLimits(max_stream_length, max_pending)
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("the broker is closed")

    # -- producing

    def xadd(self, stream: str, data: Any) -> str:
        """Append a message, creating the stream if necessary; returns the message's id.

        ``data`` is ``bytes``, ``str``, or anything that JSON can encode. The oldest messages are
        removed when the stream is longer than the broker's ``max_stream_length``.
        """
        checks.names(stream=stream)
        return self._xadd(stream, encode_value(data))

    def _xadd(self, stream: str, value: bytes) -> str:
        raise NotImplementedError

    # -- groups

    def create_group(self, stream: str, group: str, start: str = "$") -> bool:
        """Create a group, and the stream if necessary; an existing group keeps its position.

        ``start`` is ``'$'`` (only new messages), ``'0'`` (from the beginning) or the id after which
        to start. Returns whether the group is new.
        """
        checks.names(stream=stream, group=group)
        return self._create_group(stream, group, checks.group_start(start))

    def _create_group(self, stream: str, group: str, start: MessageId | None) -> bool:
        raise NotImplementedError

    def delete_group(self, stream: str, group: str) -> bool:
        """Delete a group and its pending messages; returns whether there was one."""
        checks.names(stream=stream, group=group)
        return self._delete_group(stream, group)

    def _delete_group(self, stream: str, group: str) -> bool:
        raise NotImplementedError

    def delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        """Delete a consumer and its pending messages; returns how many there were.

        They are not delivered again: claim them first with `xautoclaim`.
        """
        checks.names(stream=stream, group=group, consumer=consumer)
        return self._delete_consumer(stream, group, consumer)

    def _delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        raise NotImplementedError

    def get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        """Every group of a stream, by name."""
        checks.names(stream=stream)
        return self._get_group_info(stream)

    def _get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        raise NotImplementedError

    # -- consuming

    def xreadgroup(
        self, group: str, consumer: str, stream: str, count: int = 1, block_ms: int | None = 0
    ) -> list[StreamMessage]:
        """Up to ``count`` messages no consumer of the group was given, oldest first.

        Waits up to ``block_ms`` for the first: 0 does not wait, None waits for ever. They are
        pending with ``consumer`` until acknowledged, across restarts too. A consumer that holds
        ``max_pending`` messages gets no more.
        """
        checks.names(group=group, consumer=consumer, stream=stream)
        checks.at_least(1, count=count)
        if block_ms is not None:
            checks.at_least(0, block_ms=block_ms)
        until_s = None if block_ms is None else time.monotonic() + block_ms / 1000
        return self._xreadgroup(stream, group, consumer, count, until_s)

    def _xreadgroup(
        self, stream: str, group: str, consumer: str, count: int, until_s: float | None
    ) -> list[StreamMessage]:
        raise NotImplementedError

    def xack(self, stream: str, group: str, ids: Iterable[str]) -> int:
        """Acknowledge messages, whoever has them; returns how many were pending."""
        checks.names(stream=stream, group=group)
        return self._xack(stream, group, checks.message_ids(ids))

    def _xack(self, stream: str, group: str, ids: list[MessageId]) -> int:
        raise NotImplementedError

    def xpending(
        self, stream: str, group: str, consumer: str | None = None
    ) -> list[PendingMessage]:
        """The messages that the group, or one consumer, has not acknowledged, by id."""
        checks.names(stream=stream, group=group, **({"consumer": consumer} if consumer else {}))
        return self._xpending(stream, group, consumer)

    def _xpending(self, stream: str, group: str, consumer: str | None) -> list[PendingMessage]:
        raise NotImplementedError

    def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[StreamMessage]:
        """Take over pending messages that nobody touched for ``min_idle_ms``, lowest id first.

        This includes the consumer's own stale ones. Each counts as delivered once more.
        """
        checks.names(stream=stream, group=group, consumer=consumer)
        checks.at_least(0, min_idle_ms=min_idle_ms)
        checks.at_least(1, count=count)
        return self._xautoclaim(stream, group, consumer, min_idle_ms, count)

    def _xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int
    ) -> list[StreamMessage]:
        raise NotImplementedError

    def xrenew(self, stream: str, group: str, consumer: str, ids: Iterable[str]) -> list[str]:
        """Restart the idle time of messages, so that nobody claims them meanwhile.

        Nothing is counted. Returns those of ``ids``, in their order, that the consumer still holds.
        """
        checks.names(stream=stream, group=group, consumer=consumer)
        return self._xrenew(stream, group, consumer, checks.message_ids(ids))

    def _xrenew(self, stream: str, group: str, consumer: str, ids: list[MessageId]) -> list[str]:
        raise NotImplementedError

    # -- the stream itself

    def xlen(self, stream: str) -> int:
        """How many messages the stream has."""
        checks.names(stream=stream)
        return self._xlen(stream)

    def _xlen(self, stream: str) -> int:
        raise NotImplementedError

    def xrange(
        self, stream: str, start: str = "-", end: str = "+", count: int | None = None
    ) -> list[StreamMessage]:
        """Messages by id, both ends included unless written ``(id``; ``-`` and ``+`` are the ends.

        An end without ``-seq`` covers its whole millisecond.
        """
        checks.names(stream=stream)
        if count is not None:
            checks.at_least(1, count=count)
        return self._xrange(stream, lower(start), upper(end), count)

    def _xrange(
        self, stream: str, first: MessageId, last: MessageId, count: int | None
    ) -> list[StreamMessage]:
        raise NotImplementedError

    def xdel(self, stream: str, ids: Iterable[str]) -> int:
        """Remove messages, also from what groups have pending; returns how many existed."""
        checks.names(stream=stream)
        return self._xdel(stream, checks.message_ids(ids))

    def _xdel(self, stream: str, ids: list[MessageId]) -> int:
        raise NotImplementedError

    def xtrim(self, stream: str, max_len: int) -> int:
        """Keep the newest ``max_len`` messages; returns how many were removed.

        They are removed from what groups have pending, too.
        """
        checks.names(stream=stream)
        checks.at_least(0, max_len=max_len)
        return self._xtrim(stream, max_len)

    def _xtrim(self, stream: str, max_len: int) -> int:
        raise NotImplementedError

    # -- life

    @abstractmethod
    def close(self) -> None:
        """Close all connections; blocked reads end with `ConnectionLost`."""
