"""The one interface of the three stream brokers (SPEC J).

An application asks for a `StreamBroker` and is given whichever implementation it was
configured with. Every method may be called from any thread.

A group read of an unknown stream or group raises `NotFound`; questions about an unknown
stream as a whole are answered as for an empty one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

from nexo.xstreams.values import ConsumerGroupInfo, PendingMessage, StreamMessage

Broker = TypeVar("Broker", bound="StreamBroker")


class StreamBroker(ABC):
    """Streams of messages, read by groups of consumers that acknowledge each message."""

    # -- producing

    @abstractmethod
    def xadd(self, stream: str, data: Any) -> str:
        """Append a message, creating the stream if need be; returns the message's id.

        ``data`` is ``bytes``, ``str``, or anything that can be written as JSON. The oldest
        messages go when the stream is longer than the broker's ``max_stream_length``.
        """

    # -- groups

    @abstractmethod
    def create_group(self, stream: str, group: str, start: str = "$") -> bool:
        """Create a group, and the stream if need be; an existing group stays where it is.

        ``start`` is ``'$'`` (only new messages), ``'0'`` (from the beginning) or the id behind
        which to start. Returns whether the group is new.
        """

    @abstractmethod
    def delete_group(self, stream: str, group: str) -> bool:
        """Forget a group and what it has pending; returns whether there was one."""

    @abstractmethod
    def delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        """Forget a consumer and what it has pending; returns how many messages that were.

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

        Waits up to ``block_ms`` for the first: 0 is not at all, None for ever. They are
        pending with ``consumer`` until acknowledged, also over restarts. A consumer that
        has ``max_pending`` messages is given no more.
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

        The consumer's own stale ones too. Each counts as delivered once more.
        """

    @abstractmethod
    def xrenew(self, stream: str, group: str, consumer: str, ids: Iterable[str]) -> list[str]:
        """Let the idle time of messages start anew, so that nobody claims them meanwhile.

        Nothing is counted. Returns those of ``ids``, in their order, that the consumer still has.
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
        """Remove messages, from what groups have pending too; returns how many there were."""

    @abstractmethod
    def xtrim(self, stream: str, max_len: int) -> int:
        """Keep the newest ``max_len`` messages; returns how many were removed.

        They leave what groups have pending too.
        """

    # -- life

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; blocked reads end with `ConnectionLost`."""

    def __enter__(self: Broker) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
