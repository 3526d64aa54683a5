"""Delivers a shared group's records: leases ranges, finds their batches, ends leases (SPEC F)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import msgspec

from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.stream.delivery import Gathered, gather, keys_between
from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.partition import Cold
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Corrupt, NexoError
from nexo.model.stream import Range
from nexo.options.described import check_range
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.permits import permit_group
from nexo.services.stream.reading import MAX_LIMIT, MAX_READ_BYTES, REPLY_BYTES
from nexo.services.stream.replay import InLake, StreamPosition
from nexo.services.ticking import for_each_due
from nexo.services.waiting import ELSEWHERE, Wait


class TakenRecords(msgspec.Struct, frozen=True):
    """Leased ranges, and the batches that hold their records."""

    generation: int
    deliveries: list[DeliveredRange]
    found: Gathered
    counts: list[int]
    """The number of partitions of the stream: at first, after each growth, and now."""


class GroupTakes:
    """The takes of consumers, and the deadlines of what they hold."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._deadlines: KeyDeadlines[tuple[int, str]] = KeyDeadlines(core.runtime.wake_at)

    def take(
        self,
        connection: Connection,
        ticket: Hashable,
        stream: str,
        group: str,
        consumer: str,
        limit: int,
        wait_ms: int,
        done: Done[TakenRecords],
        *,
        max_bytes: int = REPLY_BYTES,
        begins: int = 0,
        ahead: bool = False,
        generation: int | None = None,
    ) -> None:
        """Lease records, waiting for some if there are none.

        A handler starts on ``begins`` of them as soon as they arrive, and on what is taken
        ``ahead`` at the consumer's next take. With a ``generation`` the
        take fails once the group has moved to another.
        """
        permit_group(connection, stream, group)
        core = self._core
        if core.winding_down:
            core.check_lends()
        if not (0 < limit <= MAX_LIMIT and wait_ms >= 0 and begins >= 0):
            check_range("limit", limit, MAX_LIMIT, 1)
            check_range("wait_ms", wait_ms)
            check_range("begins", begins)
        found = core.engine.streams.get(stream)
        shared = found.group(group)
        size = min(max_bytes, MAX_READ_BYTES)
        shared.take_up(consumer, generation)

        def attempt() -> Any:
            core.runtime.check_leads()
            core.check_there(found)
            if generation is not None:
                found.group(group).check(consumer, generation)
            try:
                return self._taken(found, group, consumer, limit, size, begins, ahead=ahead)
            except InLake as cold:
                core.waits.leave(wait)
                core.replay.fetch(cold.place, lambda error: core.look_again(wait, error))
                return ELSEWHERE

        def nothing() -> TakenRecords:
            return TakenRecords(shared.generation, [], Gathered(), found.counts)

        channels = ((found.id, group), consumer)
        wait = Wait(connection, ticket, channels, core.due_ms(wait_ms), attempt, done, nothing)
        if not core.waits.answer(wait):
            core.wait(wait)

    def _taken(
        self, stream: OpenStream, name: str, consumer: str, limit: int, max_bytes: int, begins: int,
        *, ahead: bool,
    ) -> TakenRecords | None:  # fmt: skip
        """Lease records and fetch them; ranges without records are skipped.

        Damage is reported to one consumer and parked, never skipped (SPEC E6). Raises `InLake` if
        the next ones are only in the lake, and nothing else can be delivered.
        """
        group, now_ms = stream.group(name), self._core.runtime.clock.now_ms()
        keys_of = None if group.options.ordered_by is None else partial(self._keys, stream)
        while True:
            ends = stream.ends()
            share = group.share(consumer, limit, ends, ahead=ahead)
            if not share:
                return None
            deliveries = group.deliver(consumer, share, ends, now_ms, keys_of, ahead=ahead)
            if not deliveries:
                return None
            self._deadlines.plan((stream.id, name), deliveries[0].expires_ms)
            try:
                found = self._gathered(stream, group, consumer, deliveries, max_bytes)
            except NexoError:
                self.moved(stream, name, group)
                raise
            if found.gaps or found.unsent:
                deliveries = self._without(stream, name, group, consumer, deliveries, found)
            in_lake = self._in_lake(stream, name, group, found) if found.cold else []
            if found.parts and deliveries:
                if in_lake or any(stream.tiered):
                    self._fetch_ahead(stream, found, in_lake)
                if begins:
                    group.start(consumer, group.generation, _first(deliveries, begins))
                return TakenRecords(group.generation, deliveries, found, stream.counts)
            if in_lake:
                group.turn_to(in_lake[0].partition)
                raise InLake(in_lake[0])

    def _fetch_ahead(
        self, stream: OpenStream, found: Gathered, in_lake: list[StreamPosition]
    ) -> None:
        """Fetch from the lake what the next requests will need."""
        for index, reached in found.reached.items():
            partition = stream.partition(index)
            if reached <= partition.start_offset:
                following = partition.cold_after(reached - 1)
                if following is not None:
                    in_lake = [*in_lake, StreamPosition(stream, index, following)]
        for place in in_lake:
            self._core.replay.fetch(place, _ignore)

    def _in_lake(
        self, stream: OpenStream, name: str, group: SharedGroup, found: Gathered
    ) -> list[StreamPosition]:
        """What can be fetched from the lake; the rest no longer exists."""
        places = []
        for index, offset in found.cold:
            start = stream.partition(index).start_offset
            if self._core.replay.first_offset(stream, index) <= offset:
                places.append(StreamPosition(stream, index, offset))
            elif offset < start:
                group.skip([(index, offset, start)])
                self._core.changed(stream, name, group)
        return places

    def _keys(
        self, stream: OpenStream, index: int, first: int, end: int
    ) -> Mapping[int, bytes | None]:
        partition = stream.partition(index)
        first = max(first, self._core.replay.first_offset(stream, index))
        try:
            return keys_between(partition, first, end)
        except Cold as cold:
            raise InLake(StreamPosition(stream, index, cold.offset)) from None

    def _gathered(
        self,
        stream: OpenStream,
        group: SharedGroup,
        consumer: str,
        deliveries: list[DeliveredRange],
        max_bytes: int,
    ) -> Gathered:
        try:
            found = gather(stream, deliveries, max_bytes)
            if found.damaged is not None and not found.parts:
                self._park(group, *found.damaged, deliveries)
                found.check()
        except NexoError:
            held = [(d.partition, d.first, d.end) for d in deliveries]
            group.release(consumer, group.generation, held)
            raise
        return found

    def _park(
        self, group: SharedGroup, index: int, error: Corrupt, deliveries: list[DeliveredRange]
    ) -> None:
        """Park all that a damaged entry held, so that it is reported once."""
        first = next(d.first for d in deliveries if d.partition == index)
        first = first if error.offset is None else error.offset
        where = index, first, error.next_offset or first + 1
        group.park(where, self._core.now_ms, error.message)

    def _without(
        self,
        stream: OpenStream,
        name: str,
        group: SharedGroup,
        consumer: str,
        deliveries: list[DeliveredRange],
        found: Gathered,
    ) -> list[DeliveredRange]:
        """Release what did not fit, skip what does not exist; returns what was delivered."""
        if found.unsent:
            group.release(consumer, group.generation, found.unsent)
        if found.gaps:
            group.skip(found.gaps)
            self._core.changed(stream, name, group)
        return [part for d in deliveries for part in _minus(d, found.gaps + found.unsent)]

    def moved(self, stream: OpenStream, name: str, group: SharedGroup) -> None:
        """Journal a group's changes, track its deadlines, and serve waiting consumers."""
        core = self._core
        core.changed(stream, name, group)
        core.touched(stream)
        deadline = group.next_deadline()
        if deadline is not None:
            self._deadlines.plan((stream.id, name), deadline)

    def tick(self, now_ms: int) -> None:
        """End expired leases and delays."""
        for_each_due(self._deadlines, now_ms, lambda key: self._expire(*key, now_ms))

    def _expire(self, number: int, name: str, now_ms: int) -> None:
        stream = self._core.engine.streams.numbered(number)
        group = stream.groups.get(name) if stream is not None else None
        if stream is None or group is None:
            return
        if group.expire(now_ms):
            self.moved(stream, name, group)
        elif (deadline := group.next_deadline()) is not None:
            self._deadlines.plan((stream.id, name), deadline)


def _ignore(_error: NexoError | None) -> None:
    """Ignore it here: the next reader gets the error."""


def _first(deliveries: list[DeliveredRange], count: int) -> list[Range]:
    """The first ``count`` messages of a delivery."""
    ranges: list[Range] = []
    for each in deliveries:
        end = min(each.end, each.first + count)
        if end > each.first:
            ranges.append((each.partition, each.first, end))
            count -= end - each.first
    return ranges


def _minus(delivery: DeliveredRange, ranges: list[Range]) -> list[DeliveredRange]:
    """The parts of a delivery outside ``ranges``."""
    left = [(delivery.first, delivery.end)]
    for partition, first, end in ranges:
        if partition == delivery.partition:
            left = [
                kept
                for a, b in left
                for kept in ((a, min(b, first)), (max(a, end), b))
                if kept[0] < kept[1]
            ]
    return [msgspec.structs.replace(delivery, first=a, end=b) for a, b in left]
