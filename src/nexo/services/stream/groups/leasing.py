"""Leases of a shared group: delivers ranges with their records, and expires leases."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.stream.delivery import Gathered, gather, keys_between
from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.partition import Cold
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Corrupt, NexoError
from nexo.model.stream import Range
from nexo.services.stream.core import Core
from nexo.services.stream.replay import InLake, StreamPosition
from nexo.services.ticking import for_each_due


class Leasing:
    """Delivers the records of groups, and tracks their deadlines."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._deadlines: KeyDeadlines[tuple[int, str]] = KeyDeadlines(core.runtime.wake_at)

    def lease(
        self,
        stream: OpenStream,
        name: str,
        group: SharedGroup,
        consumer: str,
        limit: int,
        max_bytes: int,
    ) -> tuple[list[DeliveredRange], Gathered]:
        """Lease records and fetch them; ranges without records are skipped.

        Damage is reported to one consumer and parked, never skipped (SPEC E6). Raises `InLake` if
        the next ones are only in the lake, and nothing else can be delivered.
        """
        while True:
            deliveries = self._deliver(stream, group, consumer, limit)
            if not deliveries:
                return [], Gathered()
            self._plan(stream, name, deliveries[0].expires_ms)
            try:
                found = self._gathered(stream, group, consumer, deliveries, max_bytes)
            except NexoError:
                self.moved(stream, name, group)
                raise
            if found.gaps or found.unsent:
                deliveries = self._without(stream, name, group, consumer, deliveries, found)
            in_lake = self._in_lake(stream, name, group, found) if found.cold else []
            if found.parts and deliveries:
                self._fetch_ahead(stream, found, in_lake)
                return deliveries, found
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

    def _deliver(
        self, stream: OpenStream, group: SharedGroup, consumer: str, limit: int
    ) -> list[DeliveredRange]:
        keys_of = None if group.options.ordered_by is None else partial(self._keys, stream)
        ends = stream.ends()
        limit = group.share(consumer, limit, ends)
        return group.deliver(consumer, limit, ends, self._core.now_ms, keys_of)

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
            self._plan(stream, name, deadline)

    def _plan(self, stream: OpenStream, name: str, due_ms: int) -> None:
        self._deadlines.plan((stream.id, name), due_ms)

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
            self._plan(stream, name, deadline)


def _ignore(_error: NexoError | None) -> None:
    """Ignore it here: the next reader gets the error."""


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
