"""Streams by key: the newest record of one key, of all keys, and compaction."""

from __future__ import annotations

from collections.abc import Iterable
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

    def newest_offset(self, stream: OpenStream, key: bytes) -> int:
        """The offset of a key's newest record; -1 if there is none or it was deleted."""
        index = self._index(stream, stream.partition_of(key))
        index.advance()
        return index.offset_of(key)

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
        partition = stream.partition_of(key)

        def find(_ready: None) -> KeyedRecord | None:
            found = self._index(stream, partition).find(key)
            return None if found is None else KeyedRecord(partition, [found[0], *found[1]])

        self.prepare([(stream, partition)], then(find, done))

    def state(
        self, connection: Connection, name: str, partition: int, offset: int, max_bytes: int,
        done: Done[StatePage],
    ) -> None:  # fmt: skip
        """The newest record of every key, a page at a time.

        It starts at what the previous page returned, or at 0, 0.
        """
        stream, start = self._core.permitted(connection, READ, name), (partition, offset)
        wanted = [(stream, number) for number in range(partition, stream.options.partitions)]
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
                found = index.current(entry)
                read += len(entry)
                if found is not None:
                    parts.extend([found[0], *found[1]])
                    partitions.append(number)
                    size += len(found[0]) + sum(map(len, found[1]))
                if size >= max_bytes or read >= _STATE_BYTES:
                    return StateReply(partitions, (number, header.next_offset)), parts
            offset = 0
        return StateReply(partitions, None), parts

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
            steps = compact(stream, number, index, core.now_ms, sync, keep_deletions=keep_deletions)
            freed.append((yield from steps))
        finally:
            self._compacting.discard(place)
        core.engine.checkpoint(stream, number)
        core.end_turn_soon()
