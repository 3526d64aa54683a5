"""The stream broker in memory: no server, nothing on disk, any number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice, takewhile
from threading import TIMEOUT_MAX, Condition, Lock

from nexo.errors import NotFound
from nexo.protocol.values import decode_value
from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.checks import MAX_PENDING, MAX_STREAM_LENGTH
from nexo.xstreams.ids import MessageId
from nexo.xstreams.local_group import LocalConsumer, LocalGroup
from nexo.xstreams.local_log import LocalLog
from nexo.xstreams.values import ConsumerGroupInfo, ConsumerInfo, PendingMessage, StreamMessage


def wall_clock_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds that never step, from any start."""
    return time.monotonic_ns() // 1_000_000


class _LocalStream:
    """One stream, its groups, and their lock."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.log = LocalLog()
        self.groups: dict[str, LocalGroup] = {}

    def group(self, name: str) -> LocalGroup:
        found = self.groups.get(name)
        if found is None:
            raise NotFound(f"group {name!r} not found: create it first")
        return found

    def trim(self, max_len: int) -> int:
        removed = self.log.trim(max(0, len(self.log) - max_len))
        for group in self.groups.values():
            group.lose(removed, trimmed=True)
        return len(removed)


class LocalStreamBroker(StreamBroker):
    """Streams of this process. Values are kept encoded, so that objects are not shared.

    ``clock`` gives the ids' milliseconds and may step; ``ticks`` measures idle times.
    """

    def __init__(
        self,
        *,
        max_stream_length: int = MAX_STREAM_LENGTH,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], int] = wall_clock_ms,
        ticks: Callable[[], int] = steady_ms,
    ) -> None:
        super().__init__(max_stream_length, max_pending)
        self._clock = clock
        self._ticks = ticks
        self._streams: dict[str, _LocalStream] = {}
        self._lock = Lock()

    def _find(self, stream: str) -> _LocalStream:
        """A stream; one that nobody has made is empty."""
        self._check_open()
        return self._streams.get(stream) or _LocalStream()

    def _known(self, stream: str) -> _LocalStream:
        self._check_open()
        found = self._streams.get(stream)
        if found is None:
            raise NotFound(f"stream {stream!r} not found: add a message or create a group first")
        return found

    def _made(self, stream: str) -> _LocalStream:
        with self._lock:
            self._check_open()
            found = self._streams.get(stream)
            if found is None:
                found = self._streams[stream] = _LocalStream()
            return found

    # -- producing

    def _xadd(self, stream: str, value: bytes) -> str:
        here = self._made(stream)
        with here.lock:
            message_id = here.log.append(value, self._clock())
            for group in here.groups.values():
                group.arrive(message_id)
            if len(here.log) > self.limits.max_stream_length:
                here.trim(self.limits.max_stream_length)
        return str(message_id)

    # -- groups

    def _create_group(self, stream: str, group: str, start: MessageId | None) -> bool:
        here = self._made(stream)
        with here.lock:
            if group in here.groups:
                return False
            at = here.log.last_id if start is None else start
            unread = sum(1 for _ in here.log.since(at.following()))
            here.groups[group] = LocalGroup(here.lock, at, unread)
            return True

    def _delete_group(self, stream: str, group: str) -> bool:
        here = self._find(stream)
        with here.lock:
            found = here.groups.pop(group, None)
            if found is not None:
                found.wake_all()
            return found is not None

    def _delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        here = self._known(stream)
        with here.lock:
            return here.group(group).forget(consumer)

    def _get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        here = self._find(stream)
        with here.lock:
            return [self._info(name, group) for name, group in sorted(here.groups.items())]

    def _info(self, name: str, group: LocalGroup) -> ConsumerGroupInfo:
        epoch_ms = wall_clock_ms() - self._ticks()
        return ConsumerGroupInfo(
            name=name,
            last_delivered_id=str(group.position),
            total_pending=len(group.held),
            lag=group.unread,
            trimmed_unread=group.trimmed_unread,
            consumers=tuple(
                ConsumerInfo(each.name, each.pending, each.seen_ms + epoch_ms)
                for _, each in sorted(group.consumers.items())
            ),
        )

    # -- consuming

    def _xreadgroup(
        self, stream: str, group: str, consumer: str, count: int, until_s: float | None
    ) -> list[StreamMessage]:
        here = self._known(stream)
        with here.lock:
            mine = here.group(group)
            while True:
                me = mine.consumer(consumer, self._ticks())
                taken = self._take(here.log, mine, me, count)
                if taken or (until_s is not None and time.monotonic() >= until_s):
                    break
                _wait(self._bell(mine, me), until_s)
                self._check_open()
                if here.groups.get(group) is not mine:
                    raise NotFound(f"group {group!r} was deleted")
        return [_message(message_id, value, 1) for message_id, value in taken]

    def _take(
        self, log: LocalLog, group: LocalGroup, consumer: LocalConsumer, count: int
    ) -> list[tuple[MessageId, bytes]]:
        room = min(count, self.limits.max_pending - consumer.pending)
        if room <= 0 or not group.unread:
            return []
        taken = list(islice(log.since(group.position.following()), room))
        for message_id, _ in taken:
            group.deliver(consumer, message_id, consumer.seen_ms)
        return taken

    def _bell(self, group: LocalGroup, consumer: LocalConsumer) -> Condition:
        """The event to wait for: a message, or room for one."""
        if consumer.pending < self.limits.max_pending:
            return group.arrived
        if group.unread:
            group.arrived.notify()  # this one was woken for a message it may not have
        return consumer.room

    def _xack(self, stream: str, group: str, ids: list[MessageId]) -> int:
        here = self._find(stream)
        with here.lock:
            found = here.groups.get(group)
            return sum(map(found.finish, ids)) if found is not None else 0

    def _xpending(self, stream: str, group: str, consumer: str | None) -> list[PendingMessage]:
        here = self._known(stream)
        with here.lock:
            now_ms = self._ticks()
            return [
                PendingMessage(str(each), held.consumer.name, now_ms - held.since_ms, held.count)
                for each, held in sorted(here.group(group).held.items())
                if consumer in (None, held.consumer.name)
            ]

    def _xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int
    ) -> list[StreamMessage]:
        here = self._known(stream)
        with here.lock:
            mine, now_ms = here.group(group), self._ticks()
            me = mine.consumer(consumer, now_ms)
            claimed = [
                (each, here.log[each], mine.claim(me, each, now_ms))
                for each in mine.stale(now_ms - min_idle_ms, count)
            ]
        return [_message(*each) for each in claimed]

    def _xrenew(self, stream: str, group: str, consumer: str, ids: list[MessageId]) -> list[str]:
        here = self._known(stream)
        with here.lock:
            mine, now_ms = here.group(group), self._ticks()
            return [str(each) for each in ids if mine.renew(consumer, each, now_ms)]

    # -- the stream itself

    def _xlen(self, stream: str) -> int:
        here = self._find(stream)
        with here.lock:
            return len(here.log)

    def _xrange(
        self, stream: str, first: MessageId, last: MessageId, count: int | None
    ) -> list[StreamMessage]:
        here = self._find(stream)
        with here.lock:
            rows = takewhile(lambda row: row[0] <= last, here.log.since(first))
            found = list(islice(rows, count))
        return [_message(message_id, value, 0) for message_id, value in found]

    def _xdel(self, stream: str, ids: list[MessageId]) -> int:
        here = self._find(stream)
        with here.lock:
            gone = [message_id for message_id in ids if here.log.delete(message_id)]
            for group in here.groups.values():
                group.lose(gone, trimmed=False)
            return len(gone)

    def _xtrim(self, stream: str, max_len: int) -> int:
        here = self._find(stream)
        with here.lock:
            return here.trim(max_len)

    def close(self) -> None:
        """Forget everything; blocked reads end."""
        with self._lock:
            self._closed = True
            streams, self._streams = self._streams, {}
        for here in streams.values():
            with here.lock:
                for group in here.groups.values():
                    group.wake_all()


def _wait(bell: Condition, until_s: float | None) -> None:
    bell.wait(None if until_s is None else min(max(0.0, until_s - time.monotonic()), TIMEOUT_MAX))


def _message(message_id: MessageId, value: bytes, delivery_count: int) -> StreamMessage:
    return StreamMessage(str(message_id), decode_value(value), message_id.ms, delivery_count)
