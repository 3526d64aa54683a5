"""Messages of a shared group in flight: leased to a member, or waiting for a retry delay.

A delivery *counts* once a handler had it (SPEC F3): when the message is nacked, or when its
lease ends after the consumer started on it. Consumers that report starts are believed. For
the others, all of an expired lease counts, and on a disconnect the lowest message of each
partition: they work in order, so that is the one they had begun. What they have asked for ahead
counts from their next take on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from nexo.brokers.stream.groups.leases import LeaseBook, LeaseHolder, RangeLease
from nexo.brokers.stream.groups.progress import NO_END
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.groups.records import Counted, CountedRange, Parking, RecordsParked
from nexo.brokers.stream.groups.state import SharedState
from nexo.errors import NexoError, NotOwner, NotPending
from nexo.model.stream import Range


class DeliveredRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of messages given to a consumer; ``attempt`` is 1 the first time."""

    partition: int
    first: int
    end: int
    attempt: int
    generation: int
    expires_ms: int


class Refusal(msgspec.Struct, frozen=True):
    """A range that the caller did not hold, and why; the rest of the call took effect."""

    partition: int
    first: int
    end: int
    error: NexoError


class Flight:
    """Leases and delays, on top of the `Progress` in each partition; never durable."""

    __slots__ = ("_delays", "_progress", "_state", "leases")

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._progress = state.progress
        self._delays: list[tuple[int, int, int, int]] = []
        self.leases = LeaseBook()

    def lease(
        self,
        member: LeaseHolder,
        partition: int,
        taken: tuple[int, int, int],
        expires_ms: int,
        since_ms: int = 0,
        ahead: bool = False,
    ) -> DeliveredRange:
        """Lease a range ``(first, end, attempt)`` from `Progress.take` to a member."""
        first, end, attempt = taken
        lease = RangeLease(
            member, partition, first, end,
            attempt=attempt, expires_ms=expires_ms, since_ms=since_ms,
        )  # fmt: skip
        if ahead:
            lease.ahead = True
            member.ahead.append(lease)
        self.leases.grant(lease)
        self._progress[partition].inflight.set(first, end, lease)
        return DeliveredRange(partition, first, end, attempt, self._state.generation, expires_ms)

    def start(self, member: LeaseHolder, where: Range) -> None:
        """Record that a handler began on what the member holds of the range."""
        progress = self._progress[where[0]]
        for first, end, lease in progress.inflight.overlapping(where[1], where[2]):
            if lease.member is member:
                progress.started.add(first, end)

    def take_back(
        self, member: LeaseHolder, where: Range, refusals: list[Refusal]
    ) -> list[tuple[int, int, RangeLease]]:
        """End the flight of what the member holds of the range; the rest is rejected."""
        held = self.held(member, where, refusals)
        progress = self._progress[where[0]]
        for first, end, lease in held:
            progress.inflight.cut(first, end)
            self.leases.let_go(lease, end - first)
            if progress.started:
                progress.started.remove(first, end)
        return held

    def held(
        self, member: LeaseHolder, where: Range, refusals: list[Refusal]
    ) -> list[tuple[int, int, RangeLease]]:
        """What the member holds of the range; the rest is rejected."""
        partition, at, end = where
        held = []
        for first, stop, lease in self._progress[partition].inflight.overlapping(at, end):
            if at < first:
                refusals.append(_not_pending(partition, at, first))
            if lease.member is member:
                held.append((first, stop, lease))
            else:
                refusals.append(Refusal(partition, first, stop, NotOwner("NOT_OWNER")))
            at = stop
        if at < end:
            refusals.append(_not_pending(partition, at, end))
        return held

    def drop(self, where: Range) -> None:
        """Take the range from its holder, if any."""
        progress = self._progress[where[0]]
        for first, end, _ in self.land(where):
            progress.started.remove(first, end)
            progress.give_back(first, end)

    def land(self, where: Range) -> list[tuple[int, int, RangeLease]]:
        """End the flight of the range, whoever holds it; the caller decides what happens next."""
        found = self._progress[where[0]].inflight.cut(where[1], where[2])
        for first, end, lease in found:
            self.leases.let_go(lease, end - first)
        return found

    def clear(self) -> None:
        """End all leases, uncounted."""
        for progress in self._progress:
            for first, end, _ in progress.inflight.cut(0, NO_END):
                progress.give_back(first, end)
            progress.started = RangeSet()
        self.leases.clear()

    # -- time ------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `expire` has something to do."""
        lease_ms = self.leases.next_deadline()
        if not self._delays:
            return lease_ms
        return self._delays[0][0] if lease_ms is None else min(lease_ms, self._delays[0][0])

    def expire(self, now_ms: int) -> int:
        """End expired leases and delays; returns how many messages that affected."""
        moved = 0
        while self._delays and self._delays[0][0] <= now_ms:
            _, partition, first, end = heapq.heappop(self._delays)
            moved += self._progress[partition].promote(first, end, now_ms)
        expired = self.leases.expired(now_ms)
        return moved + self._end_leases(expired, now_ms, "timeout") if expired else moved

    def part(self, member: LeaseHolder, now_ms: int, unstarted: list[Range] | None) -> int:
        """End all leases of a member that is gone; returns how many messages it held."""
        if unstarted is not None:
            self._mark_all_but(member, unstarted)
        elif not member.reports_starts:
            self._mark_lowest(member)
        member.reports_starts = True
        return self._end_leases(list(member.leases), now_ms, "disconnect")

    def _end_leases(self, leases: list[RangeLease], now_ms: int, reason: str) -> int:
        failed: list[CountedRange] = []
        ended = 0
        for lease in leases:
            progress = self._progress[lease.partition]
            believed = lease.member.reports_starts or lease.ahead
            for first, end, owner in progress.inflight.overlapping(lease.first, lease.end):
                if owner is not lease:
                    continue
                ended += end - first
                progress.inflight.cut(first, end)
                self.leases.let_go(lease, end - first)
                for start, stop, began in list(progress.started.split(first, end)):
                    if began or not believed:
                        failed.append((lease.partition, start, stop, lease.attempt))
                    else:
                        progress.give_back(start, stop)
                progress.started.remove(first, end)
        self.fail(failed, now_ms, 0, reason)
        return ended

    def fail(self, failed: list[CountedRange], now_ms: int, delay_ms: int, reason: str) -> None:
        """Count deliveries that did not finish. Records are delivered again, or parked once they
        have had ``max_deliveries`` (SPEC F3).
        """
        limit = self._state.options.max_deliveries or NO_END
        spent = [where for where in failed if where[3] >= limit]
        again = [where for where in failed if where[3] < limit]
        for partition, first, end, deliveries in again:
            progress = self._progress[partition]
            progress.deliveries.set(first, end, deliveries)
            progress.give_back(first, end, now_ms + delay_ms if delay_ms > 0 else 0)
            if delay_ms > 0:
                heapq.heappush(self._delays, (now_ms + delay_ms, partition, first, end))
        for partition, first, end, deliveries in spent:
            self._progress[partition].finish(first, end)
            self._progress[partition].parked.set(first, end, Parking(deliveries, now_ms, reason))
        if again:
            self._state.journal.append(Counted(again))
        if spent:
            self._state.journal.append(RecordsParked(spent, now_ms, reason))

    def _mark_lowest(self, member: LeaseHolder) -> None:
        for progress in self._progress:
            for first, _, lease in progress.inflight:
                if lease.member is member and not lease.ahead:
                    progress.started.add(first, first + 1)
                    break

    def _mark_all_but(self, member: LeaseHolder, unstarted: Iterable[Range]) -> None:
        idle = [RangeSet() for _ in self._progress]
        for partition, first, end in unstarted:
            idle[partition].add(first, end)
        for progress, ranges in zip(self._progress, idle, strict=True):
            for first, end, lease in list(progress.inflight):
                if lease.member is not member:
                    continue
                for start, stop, inside in ranges.split(first, end):
                    if inside or lease.ahead:  # though the fetch may have started the first one
                        progress.started.remove(start, stop)
                    else:
                        progress.started.add(start, stop)


def _not_pending(partition: int, first: int, end: int) -> Refusal:
    # The text names a sequence number, as clients without HELLO know it: offset + 1.
    return Refusal(partition, first, end, NotPending(f"seq {first + 1} not pending"))
