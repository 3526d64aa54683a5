"""The one interface of the three stream brokers (SPEC J).

An application uses a `StreamBroker`; its configuration chooses the implementation. Every
method may be called from any thread.

A group read of an unknown stream or group raises `NotFound`; other requests treat an
unknown stream as an empty one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from nexo.client._sync.closing import Closing
from nexo.xstreams.values import ConsumerGroupInfo, PendingMessage, StreamMessage


class StreamBroker(Closing):
    """Streams of messages, read by groups of consumers that acknowledge each message."""

    # -- producing

    @abstractmethod
    def xadd(self, stream: str, data: Any) -> str:
        """Append a message, creating the stream if necessary; returns the message's id.

        ``data`` is ``bytes``, ``str``, or anything that JSON can encode. The oldest messages are
        removed when the stream is longer than the broker's ``max_stream_length``.
        """

    # -- groups

    @abstractmethod
    def create_group(self, stream: str, group: str, start: str = "$") -> bool:
        """Create a group, and the stream if necessary; an existing group keeps its position.

        ``start`` is ``'$'`` (only new messages), ``'0'`` (from the beginning) or the id after which
        to start. Returns whether the group is new.
        """

    @abstractmethod
    def delete_group(self, stream: str, group: str) -> bool:
        """Delete a group and its pending messages; returns whether there was one."""

    @abstractmethod
    def delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        """Delete a consumer and its pending messages; returns how many there were.

        They are not delivered again: claim them first with `xautoclaim`.
        """

    @abstractmethod
    def get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        """Every group of a stream, by name."""

    # -- consuming

    @abstractmethod
    def xreadgroup(
        self, group: str, consumer: str, stream: str, count: int = 1, block_ms: int | None = 0
    ) -> list[StreamMessage]:
        """Up to ``count`` messages no consumer of the group was given, oldest first.

        Waits up to ``block_ms`` for the first: 0 does not wait, None waits for ever. They are
        pending with ``consumer`` until acknowledged, across restarts too. A consumer that holds
        ``max_pending`` messages gets no more.
        """

    @abstractmethod
    def xack(self, stream: str, group: str, ids: Iterable[str]) -> int:
        """Acknowledge messages, whoever has them; returns how many were pending."""

    @abstractmethod
    def xpending(
        self, stream: str, group: str, consumer: str | None = None
    ) -> list[PendingMessage]:
        """What the group, or one consumer, has not acknowledged, by id."""

    @abstractmethod
    def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[StreamMessage]:
        """Take over pending messages that nobody touched for ``min_idle_ms``, lowest id first.

        This includes the consumer's own stale ones. Each counts as delivered once more.
        """

    @abstractmethod
    def xrenew(self, stream: str, group: str, consumer: str, ids: Iterable[str]) -> list[str]:
        """Restart the idle time of messages, so that nobody claims them meanwhile.

        Nothing is counted. Returns those of ``ids``, in their order, that the consumer still holds.
        """

    # -- the stream itself

    @abstractmethod
    def xlen(self, stream: str) -> int:
        """How many messages the stream has."""

    @abstractmethod
    def xrange(
        self, stream: str, start: str = "-", end: str = "+", count: int | None = None
    ) -> list[StreamMessage]:
        """Messages by id, both ends included unless written ``(id``; ``-`` and ``+`` are the ends.

        An end without ``-seq`` covers its whole millisecond.
        """

    @abstractmethod
    def xdel(self, stream: str, ids: Iterable[str]) -> int:
        """Remove messages, also from what groups have pending; returns how many existed."""

    @abstractmethod
    def xtrim(self, stream: str, max_len: int) -> int:
        """Keep the newest ``max_len`` messages; returns how many were removed.

        They are removed from what groups have pending, too.
        """

    # -- life

    @abstractmethod
    def close(self) -> None:
        """Close all connections; blocked reads end with `ConnectionLost`."""
