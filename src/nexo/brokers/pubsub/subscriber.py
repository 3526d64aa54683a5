"""One client that receives messages, and its subscriptions.

While a client keeps up, messages are written straight to its connection. Once it falls
behind, each waits in the `Outbox` of its subscription until the connection accepts more.
Order is kept within a subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from nexo.brokers.pubsub.message import Encoding
from nexo.brokers.pubsub.outbox import Outbox, OutboxLimits

CHUNK_BYTES = 256 * 1024
"""Sent at once to a client that catches up, so that others get their turn."""


class MessageSink(Protocol):
    """A subscriber's connection."""

    def push(self, data: bytes) -> None:
        """Send whole messages, encoded."""

    def kick(self, reason: str) -> None: ...


class PatternSubscription:
    """One pattern of one subscriber."""

    __slots__ = ("outbox", "pattern", "subscriber")

    def __init__(self, subscriber: Subscriber, pattern: str, limits: OutboxLimits) -> None:
        self.subscriber = subscriber
        self.pattern = pattern
        self.outbox = Outbox(limits)

    def keep(self, messages: Iterable[bytes]) -> None:
        """Queue messages; if they do not fit, the policy may disconnect the client."""
        if not self.outbox.offer(messages):
            self.subscriber.kick(f"too slow for {self.pattern!r}")


class Subscriber:
    """One connection and its subscriptions, delivered in order."""

    __slots__ = (
        "_replay", "behind", "congested", "dropped_before", "encoding", "kick", "name", "push",
        "subscriptions",
    )  # fmt: skip

    def __init__(
        self, sink: MessageSink, name: str, encoding: Encoding, *, congested: bool = False
    ) -> None:
        self._replay: deque[Iterator[bytes]] = deque()
        self.push, self.kick = sink.push, sink.kick
        self.name = name
        self.encoding = encoding
        self.congested = congested
        self.behind = congested
        """New messages must wait for older ones."""
        self.subscriptions: dict[str, PatternSubscription] = {}
        self.dropped_before = 0
        """Drops of subscriptions that have ended."""

    @property
    def dropped(self) -> int:
        """Messages dropped because this client was too slow."""
        return self.dropped_before + sum(s.outbox.dropped for s in self.subscriptions.values())

    def replay(self, messages: Iterator[bytes]) -> None:
        """Send messages before anything published from now on; call `catch_up` next."""
        self._replay.append(messages)

    def congest(self) -> None:
        """The connection accepts no more for now."""
        self.congested = True
        self.behind = True

    def drain(self) -> None:
        """The connection accepts more again; call `catch_up` next."""
        self.congested = False

    def catch_up(self) -> bool:
        """Send one chunk of the waiting messages; False if more can be sent."""
        if self.congested:
            return True
        if chunk := self._next_chunk():
            self.push(b"".join(chunk))
        waiting = bool(self._replay) or any(s.outbox for s in self.subscriptions.values())
        self.behind = waiting or self.congested
        return not waiting or self.congested

    def _next_chunk(self) -> list[bytes]:
        chunk = self._replayed()
        room = CHUNK_BYTES - sum(map(len, chunk))
        for subscription in self.subscriptions.values():
            taken = subscription.outbox.take(room)
            room -= sum(map(len, taken))
            chunk += taken
        return chunk

    def _replayed(self) -> list[bytes]:
        chunk: list[bytes] = []
        size = 0
        while self._replay and size < CHUNK_BYTES:
            message = next(self._replay[0], None)
            if message is None:
                self._replay.popleft()
            else:
                chunk.append(message)
                size += len(message)
        return chunk
