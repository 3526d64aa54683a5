"""Reading the lake in offset order, without Spark: for the broker's replay.

``LakeReader.read`` is what the stream broker calls, in a thread, for offsets that its log no
longer holds (SPEC I3).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.lake.catalog import Lake
from nexo.lake.failures import lake_errors
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.entries import to_entry
from nexo.lake.reading.ordered import rows_in_order
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.tables import held_offsets, only_added

if TYPE_CHECKING:
    from pyiceberg.table import Table

_LOOK_S = 1.0
"""How long a table of another catalog than a folder's is taken to be as it was."""
LEAST_ROWS = 1_000
"""Records in an entry, however few bytes are asked for: each entry has a cost of its own."""


@dataclass(frozen=True, slots=True)
class ReplayedEntries:
    """Entries as the log would hold them, and where to continue.

    Offsets below ``next_offset`` that are in no entry have no records.
    """

    entries: list[bytes]
    next_offset: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that follow one another, kept because the next read is likely in them."""

    partition: int
    rows: pa.Table
    offsets: memoryview

    @classmethod
    def of(cls, partition: int, rows: pa.Table) -> _Chunk:
        rows = rows.combine_chunks()
        offsets = rows.column("offset").chunk(0)
        places = memoryview(offsets.buffers()[1]).cast("q")[offsets.offset :][: len(offsets)]
        return cls(partition, rows, places)

    def holds(self, partition: int, offset: int) -> bool:
        """Whether the first record from an offset on is in it."""
        return self.partition == partition and self.offsets[0] <= offset <= self.offsets[-1]

    def entry(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """An entry from ``offset`` on, of about ``max_bytes`` but not tiny, and its last offset."""
        start = bisect_left(self.offsets, offset)
        wanted = int(max_bytes * self.rows.num_rows / max(self.rows.nbytes, 1))
        rows = self.rows.slice(start, max(wanted, LEAST_ROWS))
        return to_entry(rows), self.offsets[start + rows.num_rows - 1]


class LakeReader:
    """Reads one stream's records from its table; remembers its files until rows may be gone.

    May be called from several threads.
    """

    def __init__(self, lake: Lake, stream: str) -> None:
        self._lake = lake
        self._stream = stream
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._seen: Table | None = None
        """The same when it was last looked at."""
        self._looked_s = 0.0
        self._files: list[FileRange] = []
        self._chunk: _Chunk | None = None
        self._ahead: Iterator[pa.Table] = iter(())
        """What follows the chunk."""

    def read(self, partition: int, offset: int, max_bytes: int) -> ReplayedEntries:
        """Entries from the one that holds ``offset`` on, at least one and up to ``max_bytes``.

        There are none if the lake ends before ``offset``.
        """
        with self._lock, lake_errors(f"cannot read stream {self._stream!r} from the lake"):
            if not self._holds() or offset >= self._end(partition):
                self._plan()
            try:
                return self._read(partition, offset, max_bytes)
            except FileNotFoundError:  # it was merged into another one since
                self._plan()
                return self._read(partition, offset, max_bytes)

    def _end(self, partition: int) -> int:
        assert self._table is not None
        return held_offsets(self._table).get(partition, 0)

    def _holds(self) -> bool:
        """Whether the planned files still hold the same rows: since then, rows were only added."""
        seen = self._seen
        if seen is None or not self._is_due() or self._lake.unchanged({self._stream: seen}):
            return seen is not None
        self._seen = self._lake.get(self._stream)
        return only_added(seen, self._seen)

    def _is_due(self) -> bool:
        """Whether to look at the table again; to ask another catalog than a folder's takes long."""
        now_s = time.monotonic()
        if self._lake.settings.catalog and now_s < self._looked_s + _LOOK_S:
            return False
        self._looked_s = now_s
        return True

    def _plan(self) -> None:
        self._chunk, self._ahead = None, iter(())
        self._table = self._seen = self._lake.get(self._stream)
        self._files = file_ranges(self._table)

    def _read(self, partition: int, offset: int, max_bytes: int) -> ReplayedEntries:
        end = self._end(partition)
        entries: list[bytes] = []
        at, left = offset, max_bytes
        while at < end and left > 0:
            chunk = self._next(partition, at)
            if chunk is None:
                return ReplayedEntries(entries, end)
            entry, last = chunk.entry(at, left)
            entries.append(entry)
            at, left = last + 1, left - len(entry)
        return ReplayedEntries(entries, at)

    def _next(self, partition: int, offset: int) -> _Chunk | None:
        """The chunk that holds ``offset``, or the first record after it."""
        kept = self._chunk
        if kept is not None and kept.holds(partition, offset):
            return kept
        if kept is None or kept.partition != partition or offset != kept.offsets[-1] + 1:
            self._ahead = self._rows(partition, offset)
        self._chunk = None  # if it fails, what is ahead is not known
        for rows in self._ahead:
            found = _Chunk.of(partition, rows)
            if found.offsets[-1] >= offset:
                self._chunk = found
                break
        return self._chunk

    def _rows(self, partition: int, offset: int) -> Iterator[pa.Table]:
        """Rows from about ``offset`` on: what is near it is likely read, too."""
        assert self._table is not None
        found = [each.source for each in self._files if each.may_hold(partition)]

        def wanted(_: int, last: int) -> bool:
            return last >= offset

        end = self._end(partition)
        return rows_in_order(self._table.io, found, partition, ROWS, high=end, wanted=wanted)
