"""One consumer group in memory: its position, and its pending messages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition, Lock

from nexo.xstreams.ids import MessageId


@dataclass(slots=True, eq=False)
class LocalPending:
    """A message that a consumer was given and has not acknowledged."""

    consumer: LocalConsumer
    count: int
    since_ms: int


@dataclass(slots=True, eq=False)
class LocalConsumer:
    """One consumer, and how many messages it holds."""

    name: str
    room: Condition
    """Notified when a consumer that held all it may has room again."""
    pending: int = 0
    seen_ms: int = 0


class LocalGroup:
    """The group's place in its stream and its pending messages; guarded by the stream's lock."""

    def __init__(self, lock: Lock, position: MessageId, unread: int) -> None:
        self._lock = lock
        self.position = position
        """The id delivered last: the next read starts after it."""
        self.unread = unread
        self.trimmed_unread = 0
        self.held: OrderedDict[MessageId, LocalPending] = OrderedDict()
        """By id, longest untouched first."""
        self.consumers: dict[str, LocalConsumer] = {}
        self.arrived = Condition(lock)
        """Notified of each new message."""

    def consumer(self, name: str, now_ms: int) -> LocalConsumer:
        """A consumer, created on its first appearance."""
        found = self.consumers.get(name)
        if found is None:
            found = self.consumers[name] = LocalConsumer(name, Condition(self._lock))
        found.seen_ms = now_ms
        return found

    def arrive(self, message_id: MessageId) -> None:
        """A message was added; a group whose position is ahead of it skips it."""
        if message_id > self.position:
            self.unread += 1
            self.arrived.notify()

    def deliver(self, consumer: LocalConsumer, message_id: MessageId, now_ms: int) -> None:
        """Deliver the next message of the stream to a consumer."""
        self.position = message_id
        self.unread -= 1
        self.held[message_id] = LocalPending(consumer, 1, now_ms)
        consumer.pending += 1

    def claim(self, consumer: LocalConsumer, message_id: MessageId, now_ms: int) -> int:
        """Give a pending message to another consumer; returns its delivery count."""
        held = self.held[message_id]
        self._lighten(held.consumer)
        consumer.pending += 1
        held.consumer, held.since_ms = consumer, now_ms
        held.count += 1
        self.held.move_to_end(message_id)
        return held.count

    def renew(self, consumer: str, message_id: MessageId, now_ms: int) -> bool:
        """Restart the idle time of a pending message; returns whether the consumer holds it."""
        held = self.held.get(message_id)
        if held is None or held.consumer.name != consumer:
            return False
        held.since_ms = held.consumer.seen_ms = now_ms
        self.held.move_to_end(message_id)
        return True

    def stale(self, before_ms: int, count: int) -> list[MessageId]:
        """The lowest ids that nobody touched since ``before_ms``."""
        found = []
        for message_id, held in self.held.items():
            if held.since_ms > before_ms:
                break
            found.append(message_id)
        return sorted(found)[:count]

    def finish(self, message_id: MessageId) -> bool:
        """Remove a message from the pending ones; returns whether it was there."""
        held = self.held.pop(message_id, None)
        if held is None:
            return False
        self._lighten(held.consumer)
        return True

    def _lighten(self, consumer: LocalConsumer) -> None:
        consumer.pending -= 1
        consumer.room.notify_all()

    def forget(self, name: str) -> int:
        """Remove a consumer and what it holds; returns how many messages."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return 0
        mine = [message_id for message_id, held in self.held.items() if held.consumer is consumer]
        for message_id in mine:
            self.finish(message_id)
        return len(mine)

    def lose(self, gone: Iterable[MessageId], *, trimmed: bool) -> None:
        """Messages were removed from the stream."""
        for message_id in gone:
            if message_id > self.position:
                self.unread -= 1
                self.trimmed_unread += trimmed
            else:
                self.finish(message_id)

    def wake_all(self) -> None:
        """Let every blocked read check again."""
        self.arrived.notify_all()
        for consumer in self.consumers.values():
            consumer.room.notify_all()
