"""Streams by key: the newest record of one key, of all keys, and compaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

from nexo.access.permit import ADMIN, READ
from nexo.brokers.stream.cleanup.compaction import compact, is_due
from nexo.brokers.stream.keys import KeyIndex, sound
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import InvalidOption
from nexo.model import Buffer, Persistence
from nexo.model.stream import StateReply
from nexo.services.connection import Connection, Done, then
from nexo.services.stream.chores import Chores, Steps, log_failure
from nexo.services.stream.core import Core

_AT_ONCE = 1_000
"""A request need not wait if the index lags by at most this many offsets."""
_STATE_BYTES = 2 * 1024**2
"""How much of the log is read for one page of the current state."""
StatePage: TypeAlias = tuple[StateReply, list[Buffer]]
"""Batches of newest records, one after another."""


class KeyedRecord(NamedTuple):
    """One record as a batch, in the parts it is made of."""

    partition: int
    parts: list[Buffer]


class Keyed:
    """Requests by key."""

    def __init__(self, core: Core, chores: Chores) -> None:
        self._core = core
        self._chores = chores
        self._compacting: set[tuple[int, int]] = set()
        self._indexes: dict[tuple[int, int], KeyIndex] = {}

    def _index(self, stream: OpenStream, partition: int) -> KeyIndex:
        key = stream.id, partition
        found = self._indexes.get(key)
        if found is None:
            found = self._indexes[key] = KeyIndex(stream.partition(partition))
        return found

    def newest(self, stream: OpenStream, key: bytes) -> tuple[int, int]:
        """The partition of a key's newest record, and its offset.

        That is -1 if there is none or it was deleted.
        """
        homes = stream.homes(key)
        indexes = {number: self._index(stream, number) for number in homes}
        for index in indexes.values():
            index.advance()
        if len(homes) == 1:
            return homes[0], indexes[homes[0]].offset_of(key)
        places = [(number, at) for number in homes if (at := indexes[number].last(key)) >= 0]
        if not places:
            return homes[0], -1
        eras = {place: stream.growths.era(*place) for place in places}
        last = [place for place in places if eras[place] == max(eras.values())]
        if len(last) > 1:
            last.sort(key=lambda place: -indexes[place[0]].timestamp_ms(place[1]))
        number = last[0][0]
        return number, indexes[number].offset_of(key)

    def forget(self, stream: OpenStream) -> None:
        """Drop the indexes of a deleted stream."""
        for partition in range(stream.options.partitions):
            self._indexes.pop((stream.id, partition), None)

    # -- reading -----------------------------------------------------------------------

    def get(
        self, connection: Connection, name: str, key: bytes, done: Done[KeyedRecord | None]
    ) -> None:
        """The newest record of a key; None if there is none or it was deleted."""
        stream = self._core.permitted(connection, READ, name)

        def find(_ready: None) -> KeyedRecord | None:
            return self._record(stream, *self.newest(stream, key))

        self.prepare([(stream, number) for number in stream.homes(key)], then(find, done))

    def _record(self, stream: OpenStream, partition: int, offset: int) -> KeyedRecord | None:
        found = None if offset < 0 else self._index(stream, partition).record(offset)
        return None if found is None else KeyedRecord(partition, [found[0], *found[1]])

    def state(
        self, connection: Connection, name: str, partition: int, offset: int, max_bytes: int,
        done: Done[StatePage],
    ) -> None:  # fmt: skip
        """The newest record of every key, a page at a time.

        It starts at what the previous page returned, or at 0, 0.
        """
        stream, start = self._core.permitted(connection, READ, name), (partition, offset)
        first = 0 if stream.growths else partition
        wanted = [(stream, number) for number in range(first, stream.options.partitions)]
        self.prepare(wanted, then(lambda _: self._page(stream, start, max_bytes), done))

    def prepare(self, places: Iterable[tuple[OpenStream, int]], done: Done[None]) -> None:
        """Index the keys of partitions: at once, or in slices if the log is long."""
        indexes = [(stream, self._index(stream, number)) for stream, number in places]
        late = [(stream, index) for stream, index in indexes if index.lag > _AT_ONCE]
        if not late:
            done(None)
            return
        found = (self._while_there(stream, index.steps()) for stream, index in late)
        self._chores.add(chain.from_iterable(found), done)

    def _while_there(self, stream: OpenStream, steps: Steps) -> Steps:
        for pause in steps:
            yield pause
            self._core.check_there(stream)

    def _page(self, stream: OpenStream, start: tuple[int, int], max_bytes: int) -> StatePage:
        partitions: list[int] = []
        parts: list[Buffer] = []
        size, read, offset = 0, 0, start[1]
        for number in range(start[0], stream.options.partitions):
            index = self._index(stream, number)
            index.advance()
            for header, entry in sound(stream.partition(number), offset):
                for at, found in self._current(stream, number, index, entry):
                    parts.extend(found)
                    partitions.append(at)
                    size += sum(map(len, found))
                read += len(entry)
                if size >= max_bytes or read >= _STATE_BYTES:
                    return StateReply(partitions, (number, header.next_offset)), parts
            offset = 0
        return StateReply(partitions, None), parts

    def _current(
        self, stream: OpenStream, number: int, index: KeyIndex, entry: memoryview
    ) -> Iterator[KeyedRecord]:
        """The newest records of their keys among those of a batch.

        If a record has moved to a partition whose pages were sent already, it is sent again: it may
        have been written since.
        """
        moved: list[tuple[int, int]] = []

        def is_elsewhere(key: bytes) -> bool:
            at = self.newest(stream, key)
            if at[0] < number:
                moved.append(at)
            return at[0] != number

        found = index.current(entry, is_elsewhere if stream.growths else None)
        if found is not None:
            yield KeyedRecord(number, [found[0], *found[1]])
        for at in moved:
            if (record := self._record(stream, *at)) is not None:
                yield record

    # -- compaction --------------------------------------------------------------------

    def compact(self, connection: Connection, name: str, done: Done[int]) -> None:
        """Compact a stream now, removing deletions at once. Answers the bytes freed."""
        stream = self._core.permitted(connection, ADMIN, name)
        if not stream.options.compacts:
            raise InvalidOption(
                f"stream {name!r} keeps every record of a key (cleanup = "
                f"{stream.options.cleanup}): set cleanup=compact first"
            )
        freed: list[int] = []
        every, finished = range(stream.options.partitions), then(lambda _: sum(freed), done)
        self._start(stream, every, freed, finished, keep_deletions=False)

    def compact_if_due(self, stream: OpenStream) -> None:
        """Compact a stream if enough was written."""
        due = [
            number
            for number, partition in enumerate(stream.partitions())
            if is_due(stream, number, partition) and (stream.id, number) not in self._compacting
        ]
        if due:
            self._start(stream, due, [], log_failure, keep_deletions=True)

    def _start(
        self,
        stream: OpenStream,
        partitions: Iterable[int],
        freed: list[int],
        done: Done[None],
        *,
        keep_deletions: bool,
    ) -> None:
        run = partial(self._compact, stream, freed=freed, keep_deletions=keep_deletions)
        steps = (step for number in partitions for step in run(number))
        self._chores.add(self._while_there(stream, steps), done)

    def _compact(
        self, stream: OpenStream, number: int, *, freed: list[int], keep_deletions: bool
    ) -> Steps:
        core, place = self._core, (stream.id, number)
        while place in self._compacting:
            yield None
        self._compacting.add(place)
        try:
            index = self._index(stream, number)
            sync = partial(core.runtime.committed, Persistence.FILE_SYNC)
            for other in stream.growths.sharing(number, stream.options.partitions):
                yield from self._index(stream, other).steps()
            freed.append(
                (yield from compact(
                    stream, number, index, core.now_ms, sync, keep_deletions=keep_deletions,
                    is_elsewhere=partial(self._is_elsewhere, stream, number),
                ))
            )  # fmt: skip
        finally:
            self._compacting.discard(place)
        core.engine.checkpoint(stream, number)
        core.end_turn_soon()

    def _is_elsewhere(self, stream: OpenStream, number: int, key: bytes) -> bool:
        """Whether a key has a record in another partition, from before partitions were added."""
        homes = stream.homes(key) if stream.growths else ()
        others = (self._index(stream, other) for other in homes if other != number)
        return any(index.offset_of(key) >= 0 for index in others)
