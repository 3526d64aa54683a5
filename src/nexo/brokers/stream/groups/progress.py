"""One partition as a shared group sees it: what is done, in flight, and to be delivered.

Every offset from ``floor`` to ``cursor`` that is not in ``done`` is *pending*, and is in
exactly one of ``inflight``, ``ready``, ``delayed`` and, with key order, ``waiting`` (for an
earlier record of its key) and ``backlog`` (key not read yet). ``done`` may extend past
``cursor``: offsets known to be empty, or acked before a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from nexo.brokers.stream.groups.leases import NEVER, LeaseHolder, RangeLease
from nexo.brokers.stream.groups.ranges import RangeMap, RangeSet
from nexo.brokers.stream.groups.records import Parking, ProgressSnapshot
from nexo.model.stream import RecordState

NO_END = 1 << 63

KeysOf: TypeAlias = Callable[[int, int, int], Mapping[int, bytes | None]]
"""``keys_of(partition, first, end)``: the key of every record in the range; gaps are left out."""


class KeyOrder:
    """Which messages of a partition wait for an earlier one of their key (SPEC F8).

    Holds only messages that were admitted and are not finished, so its size is bounded by the
    group's ``max_ack_pending``.
    """

    __slots__ = ("_keys", "_queues")

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}
        self._queues: dict[bytes, deque[int]] = {}

    def admit(self, offset: int, key: bytes | None) -> bool:
        """Queue a message after others of its key; True if it may be delivered at once."""
        if key is None:
            return True
        self._keys[offset] = key
        queue = self._queues.setdefault(key, deque())
        queue.append(offset)
        return len(queue) == 1

    def settle(self, offset: int) -> int | None:
        """Finish a message; returns the one that may be delivered next, if any."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        queue = self._queues[key]
        if queue[0] != offset:
            queue.remove(offset)
            return None
        queue.popleft()
        if queue:
            return queue[0]
        del self._queues[key]
        return None


class PartitionStatus(msgspec.Struct, frozen=True):
    """Counts of messages in one partition; ``lag`` is everything that is not finished."""

    floor: int
    in_flight: int
    to_redeliver: int
    parked: int
    lag: int


class Progress:
    """The ranges of one partition."""

    __slots__ = (
        "backlog", "cursor", "delayed", "deliveries", "done", "floor", "inflight", "order",
        "parked", "pending", "ready", "started", "waiting",
    )  # fmt: skip

    def __init__(self, start: int, *, keyed: bool) -> None:
        self.parked: RangeMap[Parking] = RangeMap()
        self._clear(start, keyed)

    def _clear(self, start: int, keyed: bool) -> None:
        self.floor = self.cursor = start
        self.pending = 0
        self.done = RangeSet()
        self.deliveries: RangeMap[int] = RangeMap()
        self.inflight: RangeMap[RangeLease] = RangeMap()
        self.started = RangeSet()
        self.ready = RangeSet()
        self.delayed: RangeMap[int] = RangeMap()
        self.waiting = RangeSet()
        self.backlog = RangeSet()
        self.order = KeyOrder() if keyed else None

    def reset(self, offset: int) -> None:
        """Start over at ``offset``; messages parked below it stay parked."""
        self._clear(offset, self.order is not None)
        self.parked.cut(offset, NO_END)

    # -- delivering ------------------------------------------------------------

    def take(self, limit: int, end: int, room: int) -> tuple[int, int, int] | None:
        """Take the next deliverable range ``(first, end, attempt)``, redeliveries first.

        At most ``limit`` messages, none from ``end`` on, at most ``room`` that were not
        pending before.
        """
        if self.ready:
            first, stop = self.ready.head()
            stop, count = self.deliveries.run(first, min(stop, first + limit))
            self.ready.remove(first, stop)
            return first, stop, (count or 0) + 1
        if self.order is not None:
            return None
        first, stop = self._fresh(min(limit, room), end)
        if first >= stop:
            return None
        stop, count = self.deliveries.run(first, stop)
        self.cursor = stop
        self.pending += stop - first
        return first, stop, (count or 0) + 1

    def waiting_count(self, end: int) -> int:
        """About how many messages may be delivered up to ``end``: some may wait for their key."""
        return max(0, end - self.cursor) + self.ready.count()

    def _fresh(self, limit: int, end: int) -> tuple[int, int]:
        first, stop = self.cursor, end
        if self.done:
            first = self.done.next_gap(first)
            stop = min(end, self.done.next_start(first, end))
        return first, min(stop, first + limit)

    def admit(self, keys_of: KeysOf, partition: int, limit: int, end: int, room: int) -> RangeSet:
        """With key order: admit messages until ``limit`` are ready; returns the gaps found."""
        gaps = RangeSet()
        wanted = limit - self.ready.count()
        while wanted > 0:
            old = bool(self.backlog)
            first, stop = self.backlog.head() if old else self._fresh(min(limit, room), end)
            stop = min(stop, first + limit)
            if first >= stop:
                break
            keys = keys_of(partition, first, stop)
            if old:
                self.backlog.remove(first, stop)
            else:
                self.cursor = stop
                self.pending += stop - first
                room -= len(keys)
            wanted -= self._line_up(first, stop, keys, gaps)
        return gaps

    def _line_up(
        self, first: int, end: int, keys: Mapping[int, bytes | None], gaps: RangeSet
    ) -> int:
        assert self.order is not None
        freed = 0
        for offset in range(first, end):
            if offset not in keys:
                self.ready.add(offset, offset + 1)
                gaps.add(offset, offset + 1)
            elif self.order.admit(offset, keys[offset]):
                self.ready.add(offset, offset + 1)
                freed += 1
            else:
                self.waiting.add(offset, offset + 1)
        return freed

    def retake(self, first: int, end: int) -> None:
        """Put a range in flight that recovery knows to be delivered."""
        self.ready.remove(first, end)
        self.pending += max(0, end - max(first, self.cursor))
        self.cursor = max(self.cursor, end)

    def unread(self, first: int, end: int) -> int:
        """How many messages of a range have not been delivered yet."""
        return self.done.missing(max(first, self.cursor), end)

    # -- finishing and returning -----------------------------------------------

    def finish(self, first: int, end: int) -> None:
        """Mark a pending range, no longer in flight, as done; advances the floor if possible."""
        self.pending -= end - first
        self._close(first, end)
        if self.order is not None:
            self._free_keys(first, end)

    def retire(self, first: int, end: int) -> None:
        """Mark what is pending or not yet read in the range, and not in flight, as done."""
        pending = self._withdraw(first, end)
        self.pending -= sum(stop - start for start, stop in pending)
        if end > self.floor:
            self._close(max(first, self.floor), end)
        if self.order is not None:
            for start, stop in pending:
                self._free_keys(start, stop)

    def _close(self, first: int, end: int) -> None:
        if self.deliveries:
            self.deliveries.cut(first, end)
        if first <= self.floor:
            self.floor = max(self.floor, end)
        else:
            self.done.add(first, end)
        if self.done and self.done.head()[0] <= self.floor:
            self.floor = self.done.next_gap(self.floor)
            self.done.remove(0, self.floor)
        self.cursor = max(self.cursor, self.floor)

    def _free_keys(self, first: int, end: int) -> None:
        assert self.order is not None
        for offset in range(first, end):
            freed = self.order.settle(offset)
            if freed is not None and freed in self.waiting:
                self.waiting.remove(freed, freed + 1)
                self.ready.add(freed, freed + 1)

    def skip(self, first: int, end: int) -> None:
        """Mark the range, no longer in flight, as empty."""
        self.parked.cut(first, end)
        self.retire(first, end)

    def _withdraw(self, first: int, end: int) -> list[tuple[int, int]]:
        taken = [(start, stop) for start, stop, _ in self.delayed.cut(first, end)]
        for ranges in (self.ready, self.waiting, self.backlog):
            taken += [(a, b) for a, b, inside in ranges.split(first, end) if inside]
            ranges.remove(first, end)
        return taken

    def give_back(self, first: int, end: int, not_before_ms: int = 0) -> None:
        """Deliver a pending range, no longer in flight, again."""
        if not_before_ms:
            self.delayed.set(first, end, not_before_ms)
        else:
            self.ready.add(first, end)

    def promote(self, first: int, end: int, now_ms: int) -> int:
        """Make delayed messages in the range that are due ready; returns how many."""
        promoted = 0
        for start, stop, due_ms in self.delayed.overlapping(first, end):
            if due_ms <= now_ms:
                self.delayed.cut(start, stop)
                self.ready.add(start, stop)
                promoted += stop - start
        return promoted

    # -- parking ---------------------------------------------------------------

    def replay(self, first: int, end: int) -> None:
        """Make parked messages in the range pending again.

        The floor moves back below it; only this and `reset` move it back.
        """
        for start, stop, _ in self.parked.cut(first, end):
            self._reopen(start, stop)

    def discard(self, first: int, end: int) -> None:
        """Drop parked messages in the range."""
        self.parked.cut(first, end)

    def _reopen(self, first: int, end: int) -> None:
        if first < self.floor:
            self.done.add(first, self.floor)
            self.floor = first
        self.done.remove(first, end)
        end = min(end, self.cursor)
        if first < end:
            self.pending += end - first
            (self.ready if self.order is None else self.backlog).add(first, end)

    @property
    def known_end(self) -> int:
        """One past the highest offset the group knows of."""
        ends = [end for _, end in self.done]
        ends += [end for ranges in (self.deliveries, self.parked) for _, end, *_ in ranges]
        return max(self.cursor, *ends) if ends else self.cursor

    # -- what is shown ---------------------------------------------------------

    def status(self, end: int) -> PartitionStatus:
        """Counts in a partition that may be delivered up to ``end``."""
        in_flight = self.inflight.count()
        return PartitionStatus(
            floor=self.floor,
            in_flight=in_flight,
            to_redeliver=self.pending - in_flight,
            parked=self.parked.count(),
            lag=self.pending + self.unread(self.cursor, end),
        )

    def record(self, offset: int) -> RecordState:
        """What became of the message at ``offset``."""
        end = offset + 1
        for *_, parking in self.parked.overlapping(offset, end):
            return RecordState(state="parked", **msgspec.structs.asdict(parking))
        if offset < self.floor or offset in self.done:
            return RecordState(state="finished")
        for *_, lease in self.inflight.overlapping(offset, end):
            until_ms = None if lease.expires_ms >= NEVER else lease.expires_ms
            return RecordState(
                state="in_flight", attempts=lease.attempt, consumer=lease.member.name,
                until_ms=until_ms,
            )  # fmt: skip
        attempts = self.deliveries.run(offset, end)[1] or 0
        for *_, due_ms in self.delayed.overlapping(offset, end):
            return RecordState(state="delayed", attempts=attempts, until_ms=due_ms)
        state = "waiting" if offset < self.cursor else "unread"
        return RecordState(state=state, attempts=attempts)

    # -- durable state -----------------------------------------------------------

    def snapshot(self) -> ProgressSnapshot:
        """Floor, out-of-order acks, delivery counts and parked messages."""
        return ProgressSnapshot(
            self.floor, list(self.done), list(self.deliveries), list(self.parked)
        )

    def restore(self, state: ProgressSnapshot) -> None:
        """Restore a snapshot; nothing is in flight, so delivery starts again at the floor."""
        self.reset(state.floor)
        self.done = RangeSet(state.done)
        self.deliveries = RangeMap(state.deliveries)
        self.parked = RangeMap(state.parked)

    def in_flight(self, member: LeaseHolder) -> Iterator[tuple[int, int]]:
        """The ranges a member holds, in order."""
        return ((first, end) for first, end, lease in self.inflight if lease.member is member)
