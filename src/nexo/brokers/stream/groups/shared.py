"""A shared group: every message to one live consumer at a time, acked one by one (SPEC F).

The group decides on ranges of offsets and never sees messages. Its owner

- passes the time, and ``ends``: per partition, the exclusive end of what may be delivered;
- calls `expire` at `next_deadline`, and wakes waiting consumers if it returns True;
- calls `drain` after every call and makes the records durable before it replies;
- calls `skip` for offsets without a message (compaction, aborts, retention).

`nexo.brokers.stream.groups.flight` explains which deliveries count towards
``max_deliveries``. With ``release='claim'`` the group is used through `SharedGroup.claims`
instead of by members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import count

import msgspec

from nexo.brokers.stream.groups.claims import Claims
from nexo.brokers.stream.groups.flight import DeliveredRange, Flight, Refusal
from nexo.brokers.stream.groups.leases import LeaseHolder
from nexo.brokers.stream.groups.limits import MAX_CONSUMERS, MAX_REASON, check_number
from nexo.brokers.stream.groups.progress import NO_END, KeysOf, PartitionStatus, Progress
from nexo.brokers.stream.groups.records import (
    Acked,
    CountedRange,
    Discarded,
    Dismissed,
    Entered,
    MessagesHeld,
    MessagesTrimmed,
    RecordsParked,
    RecordsReplayed,
    SharedRecord,
    SharedSnapshot,
    Skipped,
    Sought,
    Tuned,
)
from nexo.brokers.stream.groups.state import SharedState
from nexo.errors import Fenced, InvalidInput, InvalidOption, NexoError, NotMember
from nexo.model.stream import ParkedInfo, Range, RecordState
from nexo.options.stream import SharedOptions


class SharedGroup:
    """The state of one group over all partitions of its stream."""

    __slots__ = ("_flight", "_members", "_progress", "_state", "_turn", "claims")

    def __init__(self, starts: Sequence[int], options: SharedOptions | None = None) -> None:
        """Start at an offset per partition (SPEC F1: the beginning, the end, or any)."""
        self._take_over(SharedState(starts, options or SharedOptions()))

    def _take_over(self, state: SharedState) -> None:
        self._state = state
        self._progress = state.progress
        self._flight = Flight(state)
        self._members: dict[str, LeaseHolder] = {}
        self._turn = 0
        self.claims = Claims(state, self._flight) if state.options.release else None
        """Delivers without leases, if the option ``release`` is set; else None."""

    @property
    def generation(self) -> int:
        """Of a shared group: rises only with a seek."""
        return self._state.generation

    @property
    def options(self) -> SharedOptions:
        """How the group delivers; see `tune`."""
        return self._state.options

    def grow(self, partitions: int) -> None:
        """The stream has more partitions, which are read from their beginning."""
        self._state.grow(partitions)

    def floor(self, partition: int) -> int:
        """The lowest offset that is not finished."""
        return self._progress[partition].floor

    def known_end(self, partition: int) -> int:
        """One past the highest offset of a partition that the group knows of."""
        return self._progress[partition].known_end

    # -- members ---------------------------------------------------------------

    @property
    def lent(self) -> int:
        """How many records members hold by leases, which end with their connection."""
        return sum(member.held for member in self._members.values())

    @property
    def members(self) -> Iterable[str]:
        return self._members.keys() if self.claims is None else self.claims.members.keys()

    def join(self, consumer: str, *, reports_starts: bool = False) -> int:
        """Make a consumer a member; joining again changes nothing. Returns the generation."""
        self.options.check_members()
        if consumer not in self._members:
            check_number("consumers", len(self._members), MAX_CONSUMERS)
            self._members[consumer] = LeaseHolder(consumer, reports_starts=reports_starts)
        return self.generation

    def leave(self, consumer: str, now_ms: int, unstarted: Iterable[Range] | None = None) -> int:
        """Release everything a consumer holds, at once; returns how many messages.

        ``unstarted`` is what a leaving consumer reports as never begun; without it (a lost
        connection) the group uses what it knows. Leaving twice is fine.
        """
        ranges = None if unstarted is None else self._checked(unstarted)
        member = self._members.pop(consumer, None)
        return 0 if member is None else self._flight.part(member, now_ms, ranges)

    def check(self, consumer: str, generation: int, ranges: Iterable[Range] = ()) -> None:
        """Raise `Fenced` after a seek the consumer has not seen, `NotMember` for a stranger.

        `InvalidInput` for malformed ranges.
        """
        self._member(consumer, generation)
        self._checked(ranges)

    def _member(self, consumer: str, generation: int | None = None) -> LeaseHolder:
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
        *,
        ahead: bool = False,
    ) -> list[DeliveredRange]:
        """Lease up to ``limit`` messages to a consumer; partitions take turns.

        ``keys_of`` is needed with ``ordered_by='key'`` only; an error from it is raised only if
        nothing else can be delivered. The consumer works on what it gets ``ahead`` from its next
        take on.
        """
        member = self._member(consumer)
        self._flight.expire(now_ms)
        options, count = self._state.options, len(self._progress)
        room, expires_ms = options.max_ack_pending, now_ms + options.ack_wait_ms
        for progress in self._progress:
            room -= progress.pending
        deliveries: list[DeliveredRange] = []
        turn = self._turn % count
        for partition in (*range(turn, count), *range(turn)):
            progress = self._progress[partition]
            if progress.order is not None:
                try:
                    room -= self._admit(partition, limit, ends[partition], room, keys_of)
                except NexoError:
                    if not (deliveries or progress.ready):
                        raise
            while limit > 0:
                before = progress.pending
                taken = progress.take(limit, ends[partition], room)
                if taken is None:
                    break
                room -= progress.pending - before
                limit -= taken[1] - taken[0]
                deliveries.append(
                    self._flight.lease(member, partition, taken, expires_ms, ahead=ahead)
                )
            if limit <= 0:
                break
        if deliveries:
            self._turn = deliveries[-1].partition + 1
        return deliveries

    def take_up(self, consumer: str, generation: int | None = None) -> None:
        """A consumer works on what it had asked for ahead."""
        member = self._member(consumer, generation)
        if member.ahead:
            member.take_up()

    def share(self, consumer: str, limit: int, ends: Sequence[int], *, ahead: bool = False) -> int:
        """``limit``, or what is left of a member's equal part of all that is to be done.

        So that few messages go to all members, and not to whoever asks first. 0 for a member that
        asks ahead and has its part.
        """
        members = len(self._members)
        if members < 2:
            return limit
        waiting = 0
        for progress, end in zip(self._progress, ends, strict=True):
            waiting += progress.waiting_count(end)
            if waiting >= limit * members:
                return limit
        held = sum(member.held for member in self._members.values())
        part = -(-(waiting + held) // members) - self._member(consumer).held
        return max(0 if ahead else 1, min(limit, part))

    def turn_to(self, partition: int) -> None:
        """Start the next delivery with this partition: its last delivery was given back."""
        self._turn = partition

    def _admit(
        self, partition: int, limit: int, end: int, room: int, keys_of: KeysOf | None
    ) -> int:
        if keys_of is None:
            raise InvalidInput("a group ordered by key needs the keys to deliver")
        progress = self._progress[partition]
        before = progress.pending
        gaps = progress.admit(keys_of, partition, limit, end, room)
        if gaps:
            self.skip([(partition, first, stop) for first, stop in gaps])
        return progress.pending - before

    # -- settling --------------------------------------------------------------

    def start(self, consumer: str, generation: int, ranges: Iterable[Range]) -> None:
        """Record that handlers began on these messages, as far as the consumer holds them."""
        member = self._member(consumer, generation)
        for where in self._checked(ranges):
            self._flight.start(member, where)

    def ack(self, consumer: str, generation: int, ranges: Iterable[Range]) -> list[Refusal]:
        """Finish messages, in any order; returns what the consumer did not hold."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        acked: list[Range] = []
        for where in self._checked(ranges):
            progress = self._progress[where[0]]
            for first, end, _ in self._flight.take_back(member, where, refusals):
                progress.finish(first, end)
                acked.append((where[0], first, end))
        if acked:
            self._state.journal.append(Acked(acked))
        return refusals

    def nack(
        self,
        consumer: str,
        generation: int,
        ranges: Iterable[Range],
        now_ms: int,
        *,
        delay_ms: int = 0,
        reason: str = "nack",
    ) -> list[Refusal]:
        """Report failed messages: redelivered after ``delay_ms``, or parked."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        failed: list[CountedRange] = []
        for where in self._checked(ranges):
            for first, end, lease in self._flight.take_back(member, where, refusals):
                failed.append((where[0], first, end, lease.attempt))
        self._flight.fail(failed, now_ms, delay_ms, reason[:MAX_REASON])
        return refusals

    def release(self, consumer: str, generation: int, ranges: Iterable[Range]) -> list[Refusal]:
        """Return messages that no handler had: redelivered at once, not counted."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        for where in self._checked(ranges):
            for first, end, _ in self._flight.take_back(member, where, refusals):
                self._progress[where[0]].give_back(first, end)
        return refusals

    def extend(
        self, consumer: str, generation: int, now_ms: int, ranges: Iterable[Range] | None = None
    ) -> list[Refusal]:
        """Renew the leases of these messages, or of all the consumer holds, from now."""
        member = self._member(consumer, generation)
        refusals: list[Refusal] = []
        leases = dict(member.leases) if ranges is None else {}
        for where in self._checked(ranges or ()):
            held = self._flight.held(member, where, refusals)
            leases |= {lease: None for _, _, lease in held}
        for lease in leases:
            self._flight.leases.renew(lease, now_ms + self.options.ack_wait_ms)
        return refusals

    def _checked(self, ranges: Iterable[Range]) -> list[Range]:
        ranges = ranges if isinstance(ranges, list) else list(ranges)
        for partition, first, end in ranges:
            if not 0 <= partition < len(self._progress):
                raise InvalidInput(
                    f"partition {partition} does not exist: the stream has {len(self._progress)}"
                )
            if not 0 <= first < end:
                raise InvalidInput(f"range {first}..{end} is empty: end must be above first")
        return ranges

    # -- time ------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `expire` has something to do; None while nothing is leased or delayed."""
        return self._flight.next_deadline()

    def expire(self, now_ms: int) -> int:
        """End expired leases and delays; returns how many messages that affected."""
        return self._flight.expire(now_ms)

    # -- administration --------------------------------------------------------

    def seek(self, positions: Mapping[int, int]) -> int:
        """Start over at an offset per named partition; returns the new generation (SPEC F4).

        All leases end: the messages of other partitions are delivered again, uncounted.
        """
        self._checked([(partition, at, at + 1) for partition, at in positions.items()])
        self._let_go()
        self._state.log(Sought(self.generation + 1, list(positions.items())))
        return self.generation

    def _let_go(self) -> None:
        self._flight.clear()
        if self.claims is not None:
            self.claims.after_id = None

    def skip(self, ranges: Iterable[Range]) -> None:
        """Mark these offsets as empty: the floor passes over them."""
        ranges = [where for where in self._checked(ranges) if not self._is_past(where)]
        for where in ranges:
            self._flight.drop(where)
        if ranges:
            self._state.log(Skipped(ranges))

    def _is_past(self, where: Range) -> bool:
        progress = self._progress[where[0]]
        return where[2] <= progress.floor and not progress.parked.overlapping(where[1], where[2])

    def tune(self, options: SharedOptions, now_ms: int) -> None:
        """Change the options; running leases are shortened if necessary."""
        if options.ordered_by != self.options.ordered_by:
            raise InvalidOption("ordered_by cannot change: make another group")
        if options.release != self.options.release:
            raise InvalidOption("release cannot change: make another group")
        if self.claims is None:
            self._flight.leases.limit(now_ms + options.ack_wait_ms)
        self._state.log(Tuned(options))

    def park(self, where: Range, now_ms: int, reason: str) -> None:
        """Set aside what is not finished of a range, whoever holds it: it cannot be read."""
        partition, first, end = where
        progress = self._progress[partition]
        unfinished = [
            (partition, start, stop, 0)
            for start, stop, done in list(progress.done.split(max(first, progress.floor), end))
            if not done
        ]
        self._flight.drop(where)
        if unfinished:
            self._state.log(RecordsParked(unfinished, now_ms, reason[:MAX_REASON]))

    def parked(self, limit: int = 100, offset: int = 0) -> list[ParkedInfo]:
        """Up to ``limit`` parked messages after the first ``offset``, as ranges.

        The newest first: each partition from its highest offset down, merged by when they were
        parked.
        """
        every = merge(*map(_parked_rows, count(), self._progress), key=lambda row: -row.parked_ms)
        return _page(every, limit, offset)

    def replay(self, ranges: Iterable[Range] | None = None) -> int:
        """Deliver parked messages (these, or all) again as if new; returns how many."""
        return self._log_parked(RecordsReplayed, ranges)

    def discard(self, ranges: Iterable[Range] | None = None) -> int:
        """Drop parked messages (these, or all); returns how many."""
        return self._log_parked(Discarded, ranges)

    def _log_parked(
        self, record: type[RecordsReplayed | Discarded], ranges: Iterable[Range] | None
    ) -> int:
        before = self._parked_count()
        if chosen := self._parked_in(ranges):
            self._state.log(record(chosen))
        return before - self._parked_count()

    def _parked_count(self) -> int:
        return sum(progress.parked.count() for progress in self._progress)

    def _parked_in(self, ranges: Iterable[Range] | None) -> list[Range]:
        if ranges is None:
            ranges = [(partition, 0, NO_END) for partition in range(len(self._progress))]
        return [
            (partition, start, stop)
            for partition, first, end in self._checked(ranges)
            for start, stop, _ in self._progress[partition].parked.overlapping(first, end)
        ]

    # -- what is shown and kept ------------------------------------------------

    def status(self, ends: Sequence[int]) -> list[PartitionStatus]:
        """Counts per partition."""
        return [progress.status(end) for progress, end in zip(self._progress, ends, strict=True)]

    def record(self, partition: int, offset: int) -> RecordState:
        """What became of one message."""
        return self._progress[partition].record(offset)

    def drain(self) -> list[SharedRecord]:
        """The records since the last call; make them durable in this order."""
        records, self._state.journal = self._state.journal, []
        return records

    def apply(self, record: SharedRecord) -> None:
        """Apply a logged change during recovery, before any consumer joins."""
        match record:
            case Entered() | MessagesHeld() | Dismissed() | MessagesTrimmed():
                if self.claims is not None:
                    self.claims.apply(record)
                return
            case Acked(ranges) | Skipped(ranges):
                for where in ranges:
                    self._flight.drop(where)
            case Sought():
                self._let_go()
        self._state.apply(record)

    def snapshot(self) -> SharedSnapshot:
        """The durable state; records drained before it are no longer needed."""
        claims = None if self.claims is None else self.claims.snapshot()
        return msgspec.structs.replace(self._state.snapshot(), claims=claims)

    @classmethod
    def restore(cls, snapshot: SharedSnapshot) -> SharedGroup:
        """The group as of a snapshot, without members; only claimed messages are in flight."""
        group = cls.__new__(cls)
        group._take_over(SharedState.restore(snapshot))
        if group.claims is not None and snapshot.claims is not None:
            group.claims.restore(snapshot.claims)
        return group


def _parked_rows(partition: int, progress: Progress) -> Iterator[ParkedInfo]:
    for first, end, parking in reversed(progress.parked):
        yield ParkedInfo(partition, first, end, *msgspec.structs.astuple(parking))


def _page(rows: Iterable[ParkedInfo], limit: int, offset: int) -> list[ParkedInfo]:
    """The messages after the first ``offset``, counted from the end of each range."""
    found = []
    for row in rows:
        skipped = min(offset, row.end - row.first)
        taken = min(limit, row.end - row.first - skipped)
        offset, limit = offset - skipped, limit - taken
        if taken:
            end = row.end - skipped
            found.append(msgspec.structs.replace(row, first=end - taken, end=end))
        if not limit:
            break
    return found
