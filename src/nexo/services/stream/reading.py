"""Reading without a group: by partition and offset, or by time; and how much a request may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from nexo.access.permit import READ, permit
from nexo.errors import InvalidInput
from nexo.model import Broker, Buffer
from nexo.options.described import check_range
from nexo.services.connection import Connection, Done, then
from nexo.services.stream.core import Core
from nexo.services.stream.positions import offsets_at
from nexo.services.stream.replay import Portion, StreamPosition
from nexo.services.waiting import Wait

REPLY_BYTES = 4 * 1024**2
"""How much one reply carries, unless the client says otherwise."""
MAX_LIMIT = 1_000_000
MAX_READ_BYTES = 16 * 1024**2
"""The most that one reply carries after its first batch, whatever is asked for."""


READERS = ""
"""The channel of a stream's plain reads; no group has that name."""
MAX_PLACES = 10_000


class ReadFrom(NamedTuple):
    """Where to read; ``created_ms`` is the expected incarnation, 0 for any."""

    stream: str
    partition: int
    offset: int
    created_ms: int = 0


class RecordSlice(NamedTuple):
    """The records read at one place: whole batches; the first may begin before the offset."""

    start_offset: int
    """The first offset in the log."""
    stable_offset: int
    """One past the last offset that readers see."""
    next_offset: int
    """Where to continue: offsets before it that were not returned hold no records."""
    entries: Sequence[Buffer]


class Reading:
    """The requests of readers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._first = 0
        """The index of the place that the next read looks at first."""

    def read(
        self,
        connection: Connection,
        ticket: int,
        places: Sequence[ReadFrom],
        done: Done[list[RecordSlice]],
        max_bytes: int,
        wait_ms: int = 0,
        min_bytes: int = 1,
        *,
        as_stored: bool = False,
    ) -> None:
        """A slice per place, each with its share of ``max_bytes``.

        Waits for ``min_bytes``, at most ``wait_ms``. All slices together have at most
        ``max_bytes``, or one batch if that is larger; the places take turns to be first. Kafka
        batches are returned unconverted if ``as_stored``.
        """
        if not 1 <= len(places) <= MAX_PLACES:
            raise InvalidInput(
                f"{len(places):,} partitions to read: must be from 1 to {MAX_PLACES:,}"
            )
        check_range("wait_ms", wait_ms)
        found = [self.check(connection, place) for place in places]
        if any(map(_is_cold, found)):
            self._replay(found, max_bytes, done)
        else:
            look = partial(self._look, found, max_bytes, as_stored=as_stored)
            self._read_log(connection, ticket, found, look, done, wait_ms, min_bytes)

    def offsets_at(
        self, connection: Connection, name: str, time_ms: int, done: Done[list[int]]
    ) -> None:
        """Per partition: the first record at or after a time, or the end if there is none."""
        stream = self._core.permitted(connection, READ, name)
        every = range(stream.options.partitions)
        located: Done[dict[int, int]] = then(lambda found: [found[each] for each in every], done)
        offsets_at(self._core.replay, stream, every, time_ms, located)

    def offset_at(
        self, connection: Connection, name: str, partition: int, time_ms: int, done: Done[int]
    ) -> None:
        """The same in one partition."""
        stream = self._core.permitted(connection, READ, name)
        located: Done[dict[int, int]] = then(lambda found: found[partition], done)
        offsets_at(self._core.replay, stream, [partition], time_ms, located)

    def check(self, connection: Connection, at: ReadFrom) -> StreamPosition:
        """The place to read, or the error why the client may not read there."""
        if connection.identity is not None:
            permit(connection.identity, Broker.STREAM, READ, at.stream)
        stream = self._core.engine.streams.get(at.stream)
        stream.check_incarnation(at.created_ms)
        self._core.replay.check_offset(stream, at.partition, at.offset)
        return StreamPosition(stream, at.partition, at.offset)

    def _read_log(
        self,
        connection: Connection,
        ticket: int,
        places: list[StreamPosition],
        look: Callable[[], list[RecordSlice]],
        done: Done[list[RecordSlice]],
        wait_ms: int,
        min_bytes: int,
    ) -> None:
        def attempt() -> list[RecordSlice] | None:
            found = look()
            return found if _size(found) >= min_bytes else None

        def nothing() -> list[RecordSlice]:
            if wait_ms and connection.congested:  # it has not read its last replies
                return [_portion(place, None) for place in places]
            return look()

        due_ms = self._core.due_ms(wait_ms)
        channels = tuple((number, READERS) for number in {place.stream.id for place in places})
        wait = Wait(connection, ticket, channels, due_ms, attempt, done, nothing, each=True)
        self._core.answer_or_wait(wait)

    def _replay(
        self, places: list[StreamPosition], max_bytes: int, done: Done[list[RecordSlice]]
    ) -> None:
        """Answer with what the lake has, and with what the log has of the other places."""
        cold = [number for number, place in enumerate(places) if _is_cold(place)]
        limit = min(max_bytes, MAX_READ_BYTES)

        def replayed(found: list[Portion]) -> list[RecordSlice]:
            for place in places:
                self._core.check_there(place.stream)
            # Cold places that came too late for this reply are read next time.
            old: dict[int, Portion | None] = dict.fromkeys(cold)
            old.update(zip(cold, found, strict=False))
            return self._look(places, max_bytes, old)

        share = limit // len(places)
        asks = [(places[number], share) for number in cold]
        self._core.replay.read(asks, then(replayed, done), limit)

    def _look(
        self,
        places: list[StreamPosition],
        max_bytes: int,
        replayed: Mapping[int, Portion | None] | None = None,
        *,
        as_stored: bool = False,
    ) -> list[RecordSlice]:
        """What is available at each place."""
        count = len(places)
        if count == 1 and not replayed:
            limit = min(max_bytes, MAX_READ_BYTES)
            return [_slice(places[0], limit, limit, first=True, as_stored=as_stored)]
        self._first = (self._first + 1) % count
        left = min(max_bytes, MAX_READ_BYTES)
        share, found = left // count, dict.fromkeys(range(count), _NOTHING)
        nothing_yet = True
        for number in (*range(self._first, count), *range(self._first)):
            if replayed is not None and number in replayed:
                found[number] = _portion(places[number], replayed[number])
            else:
                found[number] = _slice(
                    places[number], share, left, first=nothing_yet, as_stored=as_stored
                )
            size = sum(map(len, found[number].entries))
            left -= size
            nothing_yet = nothing_yet and not size
        return list(found.values())


_NOTHING = RecordSlice(0, 0, 0, ())


def _is_cold(place: StreamPosition) -> bool:
    """Whether only the lake still holds it."""
    return place.offset < place.stream.partition(place.partition).start_offset


def _size(slices: list[RecordSlice]) -> int:
    return sum([len(entry) for each in slices for entry in each.entries])


def _slice(
    place: StreamPosition, share: int, left: int, *, first: bool, as_stored: bool
) -> RecordSlice:
    """Up to ``share`` bytes of a place, or one batch if ``left`` allows, or if it is ``first``."""
    partition, at = place.stream.partition(place.partition), place.offset
    entries: list[Buffer] = []
    start, stable = partition.start_offset, partition.stable_offset
    if left <= 0 and not first:
        return RecordSlice(start, stable, at, entries)
    for header, entry in partition.read(at, share, as_stored=as_stored):
        if not entries and len(entry) > left and not first:
            return RecordSlice(start, stable, at, entries)
        entries.append(entry)
        at = header.next_offset
    if at == place.offset:
        # Nothing is readable up to the end: those records were rolled back.
        at = max(at, stable)
    return RecordSlice(start, stable, at, entries)


def _portion(place: StreamPosition, found: Portion | None) -> RecordSlice:
    """What the lake returned for a place; nothing if it was not asked."""
    partition = place.stream.partition(place.partition)
    start, stable = partition.start_offset, partition.stable_offset
    if found is None:
        return RecordSlice(start, stable, place.offset, ())
    return RecordSlice(start, stable, found.next_offset, found.entries)
