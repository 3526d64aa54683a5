"""A shared group: every message to one live consumer at a time, acked one by one (SPEC F).

The group decides on ranges of offsets and never sees messages. Whoever runs it

- passes the time, and ``ends``: per partition the next offset that may be delivered up to;
- calls `expire` at `next_deadline`, and wakes waiting consumers when it says so;
- drains `journal` after every call and makes the records durable before it replies;
- calls `skip` for offsets without a message (compaction, aborts, retention).

A delivery *counts* once a handler had it (SPEC F3): when the message is nacked, or when its
lease ends and the consumer had started on it. Consumers that report starts (`start`) are
believed. Of the others, all of an expired lease counts, and on a disconnect the
lowest message of each partition: they work in order, so that is the one they had begun.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from nexo.brokers.stream.groups.lane import NO_END, KeysOf, Lane
from nexo.brokers.stream.groups.leases import Lease, LeaseBook, Member
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.groups.records import (
    Acked,
    Counted,
    CountedSpan,
    Discarded,
    Parked,
    Parking,
    Replayed,
    SharedOptions,
    SharedRecord,
    SharedSnapshot,
    Skipped,
    Sought,
    Span,
    Tuned,
)
from nexo.brokers.stream.groups.state import SharedState
from nexo.brokers.stream.groups.status import Holding, LaneStatus, ParkedRange, lane_status
from nexo.errors import (
    Fenced,
    InvalidInput,
    InvalidOption,
    NexoError,
    NotMember,
    NotOwner,
    NotPending,
)


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of messages handed to a consumer; ``attempt`` is 1 the first time."""

    partition: int
    first: int
    end: int
    attempt: int
    generation: int
    expires_ms: int


class Refusal(msgspec.Struct, frozen=True):
    """A range that was not the caller's to settle, and why; the rest of the call took effect."""

    partition: int
    first: int
    end: int
    error: NexoError


class SharedGroup:
    """The state of one group over all partitions of its stream."""

    __slots__ = ("_delays", "_lanes", "_leases", "_members", "_state", "_turn", "journal")

    def __init__(self, starts: Sequence[int], options: SharedOptions | None = None) -> None:
        """Start at an offset per partition (SPEC F1: the beginning, the end, or any)."""
        self._take_over(SharedState(starts, options or SharedOptions()))

    def _take_over(self, state: SharedState) -> None:
        self._state = state
        self._lanes = state.lanes
        self._leases = LeaseBook()
        self._members: dict[str, Member] = {}
        self._delays: list[tuple[int, int, int, int]] = []
        self._turn = 0
        self.journal: list[SharedRecord] = []
        """Records not yet drained; the owner empties it."""

    @property
    def generation(self) -> int:
        """Rises with every seek."""
        return self._state.generation

    @property
    def options(self) -> SharedOptions:
        """How the group delivers; see `tune`."""
        return self._state.options

    def floor(self, partition: int) -> int:
        """The lowest offset that is not finished."""
        return self._lanes[partition].floor

    # -- members ---------------------------------------------------------------

    @property
    def members(self) -> Iterable[str]:
        """The names of the live consumers."""
        return self._members.keys()

    def join(self, consumer: str, *, reports_starts: bool = False) -> int:
        """Make a consumer a member; joining again changes nothing. Returns the generation."""
        if consumer not in self._members:
            self._members[consumer] = Member(consumer, reports_starts=reports_starts)
        return self.generation

    def leave(self, consumer: str, now_ms: int, unstarted: Iterable[Span] | None = None) -> int:
        """Release all a consumer holds, at once; returns how many messages.

        ``unstarted`` is what a parting consumer says it never began; without it (a cut
        connection) the group goes by the rule of this module. Leaving twice is fine.
        """
        member = self._members.pop(consumer, None)
        if member is None:
            return 0
        if unstarted is not None:
            self._mark_all_but(member, unstarted)
        elif not member.reports_starts:
            self._mark_lowest(member)
        member.reports_starts = True
        return self._end_leases(list(member.leases), now_ms, "disconnect")

    def check(self, consumer: str, generation: int) -> None:
        """Raise `Fenced` after a seek the consumer has not seen, `NotMember` for a stranger."""
        self._member(consumer, generation)

    def _member(self, consumer: str, generation: int | None = None) -> Member:
        if generation is not None and generation != self.generation:
            raise Fenced("FENCED")
        member = self._members.get(consumer)
        if member is None:
            raise NotMember("NOT_MEMBER")
        return member

    # -- delivering ------------------------------------------------------------

    def deliver(
        self,
        consumer: str,
        limit: int,
        ends: Sequence[int],
        now_ms: int,
        keys_of: KeysOf | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` messages to a consumer; partitions take turns.

        ``keys_of`` is needed with ``ordered_by='key'`` only.
        """
        member = self._member(consumer)
        self.expire(now_ms)
        room = self.options.max_ack_pending - sum(lane.pending for lane in self._lanes)
        expires_ms = now_ms + self.options.ack_wait_ms
        deliveries: list[Delivery] = []
        for partition in self._rotation():
            lane = self._lanes[partition]
            if lane.order is not None:
                room -= self._admit(partition, limit, ends[partition], room, keys_of)
            while limit > 0:
                before = lane.pending
                taken = lane.take(limit, ends[partition], room)
                if taken is None:
                    break
                room -= lane.pending - before
                limit -= taken[1] - taken[0]
                deliveries.append(self._lease(member, lane, partition, taken, expires_ms))
            if limit <= 0:
                break
        if deliveries:
            self._turn = deliveries[-1].partition + 1
        return deliveries

    def _rotation(self) -> Iterable[int]:
        count = len(self._lanes)
        turn = self._turn % count
        return (*range(turn, count), *range(turn))

    def _admit(
        self, partition: int, limit: int, end: int, room: int, keys_of: KeysOf | None
    ) -> int:
        if keys_of is None:
            raise InvalidInput("a group ordered by key needs the keys to deliver")
        lane = self._lanes[partition]
        before = lane.pending
        gaps = lane.admit(keys_of, partition, limit, end, room)
        if gaps:
            self.skip([(partition, first, stop) for first, stop in gaps])
        return lane.pending - before

    def _lease(
        self, member: Member, lane: Lane, partition: int, taken: tuple[int, int, int], expires: int
    ) -> Delivery:
        first, end, attempt = taken
        lease = Lease(member, partition, first, end, attempt=attempt, expires_ms=expires)
        self._leases.grant(lease)
        lane.inflight.set(first, end, lease)
        return Delivery(partition, first, end, attempt, self.generation, expires)

    # -- settling --------------------------------------------------------------

    def start(self, consumer: str, generation: int, spans: Iterable[Span]) -> None:
        """A handler has begun on these messages; what the consumer does not hold is ignored."""
        member = self._member(consumer, generation)
        for partition, first, end in self._checked(spans):
            lane = self._lanes[partition]
            for start, stop, lease in lane.inflight.overlapping(first, end):
                if lease.member is member:
                    lane.started.add(start, stop)

    def ack(self, consumer: str, generation: int, spans: Iterable[Span]) -> list[Refusal]:
        """Finish messages, in any order; returns what was not the consumer's to finish."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        acked: list[Span] = []
        for span in self._checked(spans):
            lane = self._lanes[span[0]]
            for first, end, _ in self._take_back(member, span, refusals):
                lane.finish(first, end)
                acked.append((span[0], first, end))
        if acked:
            self.journal.append(Acked(acked))
        return refusals

    def nack(
        self,
        consumer: str,
        generation: int,
        spans: Iterable[Span],
        now_ms: int,
        *,
        delay_ms: int = 0,
        reason: str = "nack",
    ) -> list[Refusal]:
        """Give messages up after a failure: redelivered after ``delay_ms``, or parked."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        failed: list[CountedSpan] = []
        for span in self._checked(spans):
            for first, end, lease in self._take_back(member, span, refusals):
                failed.append((span[0], first, end, lease.attempt))
        self._count(failed, now_ms, delay_ms, reason)
        return refusals

    def release(self, consumer: str, generation: int, spans: Iterable[Span]) -> list[Refusal]:
        """Give back messages no handler had: redelivered at once, nothing counted."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        for span in self._checked(spans):
            for first, end, _ in self._take_back(member, span, refusals):
                self._lanes[span[0]].give_back(first, end)
        return refusals

    def extend(
        self, consumer: str, generation: int, now_ms: int, spans: Iterable[Span] | None = None
    ) -> list[Refusal]:
        """Renew the leases of these messages, or of all the consumer holds, from now on."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        leases = dict(member.leases) if spans is None else {}
        for span in self._checked(spans or ()):
            held = self._held(member, span, refusals)
            leases |= {lease: None for _, _, lease in held}
        for lease in leases:
            self._leases.renew(lease, now_ms + self.options.ack_wait_ms)
        return refusals

    def _checked(self, spans: Iterable[Span]) -> Iterable[Span]:
        spans = spans if isinstance(spans, list) else list(spans)
        for partition, first, end in spans:
            if not 0 <= partition < len(self._lanes):
                raise InvalidInput(
                    f"partition {partition} does not exist: the stream has {len(self._lanes)}"
                )
            if not 0 <= first < end:
                raise InvalidInput(f"range {first}..{end} is empty: end must be above first")
        return spans

    def _take_back(
        self, member: Member, span: Span, refusals: list[Refusal]
    ) -> list[tuple[int, int, Lease]]:
        held = self._held(member, span, refusals)
        lane = self._lanes[span[0]]
        for first, end, lease in held:
            lane.inflight.cut(first, end)
            self._leases.let_go(lease, end - first)
            if lane.started:
                lane.started.remove(first, end)
        return held

    def _held(
        self, member: Member, span: Span, refusals: list[Refusal]
    ) -> list[tuple[int, int, Lease]]:
        partition, at, end = span
        held = []
        for first, stop, lease in self._lanes[partition].inflight.overlapping(at, end):
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

    # -- time ------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `expire` has something to do; None while nothing is leased or delayed."""
        lease_ms = self._leases.next_deadline()
        if not self._delays:
            return lease_ms
        return self._delays[0][0] if lease_ms is None else min(lease_ms, self._delays[0][0])

    def expire(self, now_ms: int) -> int:
        """End leases that ran out and delays that are over; returns how many messages moved."""
        moved = 0
        while self._delays and self._delays[0][0] <= now_ms:
            _, partition, first, end = heapq.heappop(self._delays)
            moved += self._lanes[partition].promote(first, end, now_ms)
        expired = self._leases.expired(now_ms)
        return moved + self._end_leases(expired, now_ms, "timeout") if expired else moved

    def _end_leases(self, leases: list[Lease], now_ms: int, reason: str) -> int:
        failed: list[CountedSpan] = []
        ended = 0
        for lease in leases:
            lane, believed = self._lanes[lease.partition], lease.member.reports_starts
            for first, end, owner in lane.inflight.overlapping(lease.first, lease.end):
                if owner is not lease:
                    continue
                ended += end - first
                lane.inflight.cut(first, end)
                self._leases.let_go(lease, end - first)
                for start, stop, began in list(lane.started.split(first, end)):
                    if began or not believed:
                        failed.append((lease.partition, start, stop, lease.attempt))
                    else:
                        lane.give_back(start, stop)
                lane.started.remove(first, end)
        self._count(failed, now_ms, 0, reason)
        return ended

    def _count(self, failed: list[CountedSpan], now_ms: int, delay_ms: int, reason: str) -> None:
        limit = self.options.max_deliveries or NO_END
        spent = [span for span in failed if span[3] >= limit]
        again = [span for span in failed if span[3] < limit]
        for partition, first, end, deliveries in again:
            lane = self._lanes[partition]
            lane.deliveries.set(first, end, deliveries)
            lane.give_back(first, end, now_ms + delay_ms if delay_ms > 0 else 0)
            if delay_ms > 0:
                heapq.heappush(self._delays, (now_ms + delay_ms, partition, first, end))
        for partition, first, end, deliveries in spent:
            self._lanes[partition].finish(first, end)
            self._lanes[partition].parked.set(first, end, Parking(deliveries, now_ms, reason))
        if again:
            self.journal.append(Counted(again))
        if spent:
            self.journal.append(Parked(spent, now_ms, reason))

    def _mark_lowest(self, member: Member) -> None:
        for lane in self._lanes:
            lowest = next(lane.in_flight(member), None)
            if lowest is not None:
                lane.started.add(lowest[0], lowest[0] + 1)

    def _mark_all_but(self, member: Member, unstarted: Iterable[Span]) -> None:
        idle = [RangeSet() for _ in self._lanes]
        for partition, first, end in self._checked(unstarted):
            idle[partition].add(first, end)
        for lane, ranges in zip(self._lanes, idle, strict=True):
            for first, end in lane.in_flight(member):
                for start, stop, inside in ranges.split(first, end):
                    if not inside:
                        lane.started.add(start, stop)

    # -- administration --------------------------------------------------------

    def seek(self, positions: Mapping[int, int]) -> int:
        """Start anew at an offset per named partition; returns the new generation (SPEC F4).

        All leases end: the messages of other partitions are delivered again, uncounted.
        """
        for partition, offset in positions.items():
            self._checked([(partition, offset, offset + 1)])
        for partition, lane in enumerate(self._lanes):
            for first, end, _ in lane.inflight.cut(0, NO_END):
                lane.give_back(first, end)
            lane.started = RangeSet()
            if partition in positions:
                self._delays = [delay for delay in self._delays if delay[1] != partition]
        self._leases.clear()
        heapq.heapify(self._delays)
        self._log(Sought(self.generation + 1, list(positions.items())))
        return self.generation

    def skip(self, spans: Iterable[Span]) -> None:
        """These offsets hold no message (any more): the floor passes over them."""
        spans = list(self._checked(spans))
        for partition, first, end in spans:
            lane = self._lanes[partition]
            for start, stop, lease in lane.inflight.cut(first, end):
                self._leases.let_go(lease, stop - start)
                lane.started.remove(start, stop)
                lane.give_back(start, stop)
        if spans:
            self._log(Skipped(spans))

    def tune(self, options: SharedOptions, now_ms: int) -> None:
        """Change the options; running leases are shortened if need be."""
        if options.ordered_by != self.options.ordered_by:
            raise InvalidOption("ordered_by cannot change: make another group")
        self._leases.limit(now_ms + options.ack_wait_ms)
        self._log(Tuned(options))

    def parked(self, limit: int = 100, skip: int = 0) -> list[ParkedRange]:
        """The messages set aside, by partition and offset, as ranges."""
        every = (
            ParkedRange(partition, first, end, parking)
            for partition, lane in enumerate(self._lanes)
            for first, end, parking in lane.parked
        )
        return list(islice(every, skip, skip + limit))

    def replay(self, spans: Iterable[Span] | None = None) -> int:
        """Deliver parked messages (these, or all) again as if new; returns how many."""
        chosen = self._parked_in(spans)
        if chosen:
            self._log(Replayed(chosen))
        return sum(end - first for _, first, end in chosen)

    def discard(self, spans: Iterable[Span] | None = None) -> int:
        """Forget parked messages (these, or all); returns how many."""
        chosen = self._parked_in(spans)
        if chosen:
            self._log(Discarded(chosen))
        return sum(end - first for _, first, end in chosen)

    def _parked_in(self, spans: Iterable[Span] | None) -> list[Span]:
        if spans is None:
            spans = [(partition, 0, NO_END) for partition in range(len(self._lanes))]
        return [
            (partition, start, stop)
            for partition, first, end in self._checked(spans)
            for start, stop, _ in self._lanes[partition].parked.overlapping(first, end)
        ]

    # -- what is shown and kept ------------------------------------------------

    def status(self, ends: Sequence[int]) -> list[LaneStatus]:
        """Counts per partition."""
        return [lane_status(lane, end) for lane, end in zip(self._lanes, ends, strict=True)]

    def holdings(self) -> list[Holding]:
        """Every range in flight and who holds it."""
        return [
            Holding(lease.member.name, partition, first, end, lease.attempt, lease.expires_ms)
            for partition, lane in enumerate(self._lanes)
            for first, end, lease in lane.inflight
        ]

    def _log(self, record: SharedRecord) -> None:
        self._state.apply(record)
        self.journal.append(record)

    def drain(self) -> list[SharedRecord]:
        """The records since the last call; to be made durable in this order."""
        records, self.journal = self.journal, []
        return records

    def apply(self, record: SharedRecord) -> None:
        """Redo a logged change while recovering, before any consumer joins."""
        self._state.apply(record)

    def snapshot(self) -> SharedSnapshot:
        """The durable state; records drained before it are no longer needed."""
        return self._state.snapshot()

    @classmethod
    def restore(cls, snapshot: SharedSnapshot) -> SharedGroup:
        """The group as of a snapshot, without members, nothing in flight."""
        group = cls.__new__(cls)
        group._take_over(SharedState.restore(snapshot))
        return group


def _not_pending(partition: int, first: int, end: int) -> Refusal:
    # The text names a sequence, as clients without HELLO know them: offset + 1.
    return Refusal(partition, first, end, NotPending(f"seq {first + 1} not pending"))
