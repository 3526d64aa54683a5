"""The newest record of every key: what `get`, the current state and compaction go by (SPEC G2, I1).

Built when first asked for, by reading the partition once; afterwards only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator

from nexo.brokers.stream.partition import Partition
from nexo.protocol.batch import Batch, Entry, decode, select
from nexo.storage.header import Header

READ_BYTES = 1024**2


class KeyIndex:
    """Per key of one partition the offset of its newest record, deletions included."""

    __slots__ = ("_deleted", "_partition", "newest", "seen")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.seen = partition.start_offset
        """Everything below was looked at."""
        self.newest: dict[bytes, int] = {}
        self._deleted: set[bytes] = set()

    def advance(self) -> None:
        """Look at what has become readable since the last time."""
        for header, entry in scan(self._partition, self.seen):
            batch = decode(entry)
            self.seen = max(self.seen, header.next_offset)
            if batch.layout.keys is not None:
                self._note(batch)
        self.seen = max(self.seen, self._partition.stable_offset)

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
        """Of the newest record of a key; -1 if deleted or never there."""
        offset = self.newest.get(key, -1)
        gone = key in self._deleted or offset < self._partition.start_offset
        return -1 if gone else offset

    def find(self, key: bytes) -> Entry | None:
        """The newest record of a key as a batch of one; None if deleted or never there."""
        self.advance()
        offset = self.offset_of(key)
        if offset < 0:
            return None
        for _, entry in self._partition.read(offset, 1):
            batch = decode(entry)
            return select(batch, [batch.index_of(offset)])
        return None

    def current(self, entry: memoryview) -> Entry | None:
        """Those records of a batch that are their keys' newest and not deletions."""
        batch = decode(entry)
        if batch.layout.keys is None:
            return None
        kept = [
            i
            for i, (offset, key) in enumerate(zip(batch.offsets, batch.keys(), strict=True))
            if key is not None and self.newest.get(key) == offset and key not in self._deleted
        ]
        return select(batch, kept) if kept else None


def scan(partition: Partition, offset: int) -> Iterator[tuple[Header, memoryview]]:
    """Every readable entry from ``offset`` on."""
    at = max(offset, partition.start_offset)
    while True:
        before = at
        for header, entry in partition.read(at, READ_BYTES):
            yield header, entry
            at = header.next_offset
        if at == before:
            return
