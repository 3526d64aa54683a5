"""The newest record of every key, for `get`, the current state and compaction (SPEC G2, I1).

Built on first use, by reading the partition once; afterwards only new records are read. A
damaged record is ignored here: readers get the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nexo.batch import Batch, EntryParts, decode, select
from nexo.brokers.stream.partition import Partition
from nexo.errors import Corrupt
from nexo.storage.header import Header

READ_BYTES = 256 * 1024


class KeyIndex:
    """The offset of the newest record of each key of one partition, deletions included."""

    __slots__ = ("_deleted", "_partition", "newest", "seen")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.seen = partition.start_offset
        """Everything below was looked at."""
        self.newest: dict[bytes, int] = {}
        self._deleted: set[bytes] = set()

    def advance(self) -> None:
        """Read what has become readable since the last call."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """`advance` in small steps; other callers may step, and records arrive, in between."""
        for header, entry in sound(self._partition, self.seen):
            if header.next_offset > self.seen:
                self.seen = header.next_offset
                batch = decode(entry)
                if batch.layout.keys is not None:
                    self._note(batch)
            yield
        self.seen = max(self.seen, self._partition.stable_offset)

    @property
    def lag(self) -> int:
        """How many offsets have not been read."""
        return self._partition.stable_offset - self.seen

    def _note(self, batch: Batch) -> None:
        gone = batch.values() if batch.layout.value_valid >= 0 else None
        for i, (offset, key) in enumerate(zip(batch.offsets, batch.keys(), strict=True)):
            if key is None:
                continue
            self.newest[key] = offset
            if gone is not None and gone[i] is None:
                self._deleted.add(key)
            else:
                self._deleted.discard(key)

    def offset_of(self, key: bytes) -> int:
        """The offset of a key's newest record; -1 if deleted or never there."""
        offset = self.newest.get(key, -1)
        gone = key in self._deleted or offset < self._partition.start_offset
        return -1 if gone else offset

    def last(self, key: bytes) -> int:
        """Like `offset_of`, but a deletion counts too."""
        offset = self.newest.get(key, -1)
        return offset if offset >= self._partition.start_offset else -1

    def record(self, offset: int) -> EntryParts | None:
        """The record at an offset as a batch of one; None if it is not there."""
        found = self._found(offset)
        return None if found is None else select(*found)

    def timestamp_ms(self, offset: int) -> int:
        """That of the record at an offset; -1 if it is not there."""
        found = self._found(offset)
        return -1 if found is None else found[0].timestamps()[found[1][0]]

    def _found(self, offset: int) -> tuple[Batch, list[int]] | None:
        for header, entry in self._partition.read(offset, 1):
            if header.base_offset <= offset and offset in (batch := decode(entry)).offsets:
                return batch, [batch.index_of(offset)]
            break
        return None

    def current(
        self, entry: memoryview, passed_over: Callable[[bytes], bool] | None = None
    ) -> EntryParts | None:
        """The records of a batch that are their keys' newest and not deletions.

        Those of some keys are ``passed_over``.
        """
        batch = decode(entry)
        if batch.layout.keys is None:
            return None
        start, rows = self._partition.start_offset, zip(batch.offsets, batch.keys(), strict=True)
        kept = [
            i
            for i, (offset, key) in enumerate(rows)
            if key is not None
            and start <= offset == self.newest.get(key)
            and key not in self._deleted
            and not (passed_over is not None and passed_over(key))
        ]
        return select(batch, kept) if kept else None


def sound(partition: Partition, offset: int) -> Iterator[tuple[Header, memoryview]]:
    """Every readable entry from ``offset`` on except damaged ones.

    The log may grow and be trimmed meanwhile.
    """
    at = max(offset, partition.start_offset)
    while True:
        before = at
        try:
            for header, entry in partition.read(at, READ_BYTES):
                at = header.next_offset
                yield header, entry
        except Corrupt as error:
            if error.next_offset is None or error.next_offset <= at:
                raise
            at = error.next_offset
        if at == before:
            return
        at = max(at, partition.start_offset)
