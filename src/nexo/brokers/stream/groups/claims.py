"""Deliveries that last until they are acked, or claimed by another consumer (SPEC J2).

The other mode of a shared group, chosen by ``release='claim'``: consumers are names, not
connections, and keep their messages across disconnects and restarts. Nothing expires or is
released automatically; the messages of a dead consumer are found by age and claimed. Unlike
leases, these holdings are logged. The stream of such a group has one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nexo.brokers.stream.groups.flight import DeliveredRange, Flight
from nexo.brokers.stream.groups.leases import NEVER, LeaseHolder, RangeLease
from nexo.brokers.stream.groups.limits import MAX_CONSUMERS, MAX_NAME, check_length, check_number
from nexo.brokers.stream.groups.progress import NO_END
from nexo.brokers.stream.groups.records import (
    Acked,
    ClaimRecord,
    ClaimsSnapshot,
    CountedRange,
    Dismissed,
    Entered,
    MessagesHeld,
    MessagesTrimmed,
    Skipped,
)
from nexo.brokers.stream.groups.state import SharedState
from nexo.model.stream import Id, Range


class Keeper(LeaseHolder):
    """A consumer that keeps what it was given."""

    __slots__ = ("seen_ms",)

    def __init__(self, name: str, seen_ms: int) -> None:
        super().__init__(name, reports_starts=True)
        self.seen_ms = seen_ms
        """When it last asked for messages."""


class Claims:
    """Who holds what, on top of the `Progress` in the only partition."""

    __slots__ = ("_flight", "_progress", "_state", "after_id", "members", "trimmed_unread")

    def __init__(self, state: SharedState, flight: Flight) -> None:
        self._state = state
        self._progress = state.progress[0]
        self._flight = flight
        self.members: dict[str, Keeper] = {}
        self.trimmed_unread = 0
        """Messages trimmed from the stream before the group delivered them."""
        self.after_id: Id | None = None
        """The id to start after, if it was ahead of the stream; None once one was delivered.

        Whoever knows the ids calls `SharedGroup.skip` for messages that are not above it.
        """

    # -- delivering ------------------------------------------------------------

    def deliver(
        self, consumer: str, limit: int, end: int, now_ms: int, max_held: int = NO_END
    ) -> list[DeliveredRange]:
        """Deliver up to ``limit`` new messages, unless the consumer already holds ``max_held``."""
        keeper = self._entered(consumer, now_ms)
        limit = min(limit, max_held - keeper.held)
        taken: list[CountedRange] = []
        while limit > 0 and (found := self._progress.take(limit, end, NO_END)) is not None:
            limit -= found[1] - found[0]
            taken.append((0, *found))
        return self._hold(keeper, taken, now_ms)

    def take_over(
        self, consumer: str, ranges: list[CountedRange], now_ms: int
    ) -> list[DeliveredRange]:
        """Give a consumer what `stale` found, or part of it, even what it holds already."""
        keeper = self._entered(consumer, now_ms)
        for partition, first, end, _ in ranges:
            self._flight.land((partition, first, end))
        return self._hold(keeper, ranges, now_ms)

    def renew(self, consumer: str, ranges: Iterable[Range], now_ms: int) -> list[Range]:
        """Restart the idle time of what a consumer holds of the ranges; returns those ranges."""
        keeper = self.members.get(consumer)
        if keeper is None:
            return []
        held = [
            (where[0], first, end, lease.attempt)
            for where in ranges
            for first, end, lease in self._progress.inflight.overlapping(where[1], where[2])
            if lease.member is keeper
        ]
        self.take_over(consumer, held, now_ms)
        return [(partition, first, end) for partition, first, end, _ in held]

    def stale(self, min_idle_ms: int, limit: int, now_ms: int) -> list[CountedRange]:
        """Messages last delivered ``min_idle_ms`` ago, by offset, and the attempt they would be.

        Costs nothing while even the oldest is younger than that.
        """
        before_ms, found = now_ms - min_idle_ms, list[CountedRange]()
        oldest = self._flight.leases.oldest()
        if oldest is None or oldest.since_ms > before_ms:
            return found
        for first, end, lease in self._progress.inflight:
            if limit <= 0:
                return found
            if lease.since_ms <= before_ms:
                stop = min(end, first + limit)
                limit -= stop - first
                found.append((0, first, stop, lease.attempt + 1))
        return found

    def _entered(self, consumer: str, now_ms: int) -> Keeper:
        keeper = self.members.get(consumer)
        if keeper is None:
            check_length("consumer name", consumer, MAX_NAME)
            check_number("consumers", len(self.members), MAX_CONSUMERS)
            keeper = self.members[consumer] = Keeper(consumer, now_ms)
            self._state.journal.append(Entered(consumer, now_ms))
        keeper.seen_ms = now_ms
        return keeper

    def _hold(
        self, keeper: Keeper, ranges: list[CountedRange], now_ms: int
    ) -> list[DeliveredRange]:
        if ranges:
            self._state.journal.append(MessagesHeld(keeper.name, ranges, now_ms))
        return self._lease(keeper, ranges, now_ms)

    def _lease(
        self, keeper: Keeper, ranges: list[CountedRange], since_ms: int
    ) -> list[DeliveredRange]:
        if ranges:
            self.after_id = None
        return [
            self._flight.lease(keeper, partition, (first, end, attempt), NEVER, since_ms)
            for partition, first, end, attempt in ranges
        ]

    # -- finishing -------------------------------------------------------------

    def ack(self, ranges: Iterable[Range]) -> int:
        """Finish messages, whoever holds them; returns how many were held."""
        acked = [
            (where[0], first, end) for where in ranges for first, end, _ in self._flight.land(where)
        ]
        for _, first, end in acked:
            self._progress.finish(first, end)
        if acked:
            self._state.journal.append(Acked(acked))
        return sum(end - first for _, first, end in acked)

    def dismiss(self, consumer: str) -> int:
        """Remove a consumer; what it held counts as finished. Returns how many messages."""
        keeper = self.members.get(consumer)
        if keeper is None:
            return 0
        held = keeper.held
        self._dismiss(keeper)
        self._state.journal.append(Dismissed(consumer))
        return held

    def _dismiss(self, keeper: Keeper) -> None:
        del self.members[keeper.name]
        for first, end in list(self._progress.in_flight(keeper)):
            self._flight.land((0, first, end))
            self._progress.finish(first, end)

    def trim(self, where: Range) -> None:
        """Release messages that left the stream, and count those not yet read."""
        if where[2] > self._progress.floor:
            record = MessagesTrimmed([where], self._progress.unread(where[1], where[2]))
            self.apply(record)
            self._state.journal.append(record)

    # -- what is shown and kept ------------------------------------------------

    def held_from(
        self, offset: int, consumer: str | None = None
    ) -> Iterator[tuple[int, RangeLease]]:
        """Each held message from ``offset`` on and its lease, found lazily."""
        for first, end, lease in self._progress.inflight.starting(offset):
            if consumer in (None, lease.member.name):
                for at in range(max(first, offset), end):
                    yield at, lease

    @property
    def position(self) -> int:
        """One past the last offset delivered."""
        return self._progress.cursor

    def unread(self, end: int) -> int:
        """How many messages have not been delivered yet."""
        return self._progress.unread(self._progress.cursor, end)

    def apply(self, record: ClaimRecord) -> None:
        """Apply a logged change."""
        match record:
            case Entered(consumer, at_ms):
                self.members[consumer] = Keeper(consumer, at_ms)
            case MessagesHeld():
                self._rehold(record)
            case Dismissed(consumer):
                self._dismiss(self.members[consumer])
            case MessagesTrimmed(ranges, unread):
                for where in ranges:
                    self._flight.drop(where)
                self._state.apply(Skipped(ranges))
                self.trimmed_unread += unread

    def _rehold(self, record: MessagesHeld) -> None:
        keeper = self.members[record.consumer]
        keeper.seen_ms = max(keeper.seen_ms, record.at_ms)
        for partition, first, end, _ in record.ranges:
            self._flight.land((partition, first, end))
            self._progress.retake(first, end)
        self._lease(keeper, record.ranges, record.at_ms)

    def snapshot(self) -> ClaimsSnapshot:
        """Consumers, what each holds, oldest delivery first, and the count of unread trims."""
        held = [
            MessagesHeld(lease.member.name, [(0, first, end, lease.attempt)], lease.since_ms)
            for first, end, lease in self._progress.inflight
        ]
        held.sort(key=lambda each: each.at_ms)
        consumers = [(keeper.name, keeper.seen_ms) for keeper in self.members.values()]
        return ClaimsSnapshot(consumers, held, self.trimmed_unread, self.after_id)

    def restore(self, snapshot: ClaimsSnapshot) -> None:
        """Restore a snapshot; the `Progress` is restored already."""
        for name, seen_ms in snapshot.consumers:
            self.members[name] = Keeper(name, seen_ms)
        # Pending messages are counted in order of offset; leases are in order of time.
        for _, first, end, _ in sorted(each.ranges[0] for each in snapshot.held):
            self._progress.retake(first, end)
        for held in snapshot.held:
            self._lease(self.members[held.consumer], held.ranges, held.at_ms)
        self._progress.cursor = self._progress.done.next_gap(self._progress.cursor)
        self.trimmed_unread = snapshot.trimmed_unread
        self.after_id = snapshot.after_id
