"""Reading the lake in offset order, without Spark: for the broker's replay and for merging files.

``LakeReader.read`` is what the stream broker calls, in a thread, for offsets that its log no
longer holds (SPEC I3).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nexo.lake.catalog import Lake
from nexo.lake.entries import to_entry
from nexo.lake.failures import lake_errors
from nexo.lake.rows import ROWS
from nexo.lake.schema import projected, sources
from nexo.lake.stored import live_files
from nexo.lake.tables import offsets_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

LEAST_ROWS = 1_000
"""Records in an entry, however few bytes are asked for: each entry has a cost of its own."""
_LONG, _INT = Struct("<q"), Struct("<i")


@dataclass(frozen=True, slots=True)
class FileRange:
    """A data file and the offsets in it, ``first`` and ``last`` included."""

    partition: int
    first: int
    last: int
    file: DataFile

    @property
    def path(self) -> str:
        return str(self.file.file_path)


def file_ranges(table: Table, snapshot_id: int | None = None) -> list[FileRange]:
    """A table's files by partition and offset."""
    partition_id = table.schema().find_field("partition").field_id
    offset_id = table.schema().find_field("offset").field_id

    def file_range(file: DataFile) -> FileRange:
        return FileRange(
            _INT.unpack(file.lower_bounds[partition_id])[0],
            _LONG.unpack(file.lower_bounds[offset_id])[0],
            _LONG.unpack(file.upper_bounds[offset_id])[0],
            file,
        )

    found = map(file_range, live_files(table, snapshot_id))
    return sorted(found, key=lambda each: (each.partition, each.first))


def open_parquet(io: FileIO, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(io.new_input(path).open())


def every(first: int, last: int) -> bool:
    """Any row group."""
    return True


def row_groups(
    io: FileIO, path: str, schema: pa.Schema, wanted: Callable[[int, int], bool] = every
) -> Iterator[pa.Table]:
    """A file's row groups in order, as ``schema``; only its columns are read.

    ``wanted`` gets the first and the last offset of each and may skip it.
    """
    with open_parquet(io, path) as file:
        columns = [name for name in sources(file.schema_arrow, schema) if name is not None]
        for number in range(file.num_row_groups):
            offsets = _offsets(file, number)
            if wanted(offsets.min, offsets.max):
                yield projected(file.read_row_group(number, columns), schema)


def _offsets(file: pq.ParquetFile, number: int) -> Any:
    """The bounds of a row group's offsets."""
    column = file.schema_arrow.names.index("offset")
    return file.metadata.row_group(number).column(column).statistics


@dataclass(frozen=True, slots=True)
class ReplayedEntries:
    """Entries as the log would hold them, and where to continue.

    Offsets below ``next_offset`` that are in no entry have no records.
    """

    entries: list[bytes]
    next_offset: int


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group, kept because the next read is likely in it."""

    path: str
    number: int
    rows: pa.Table
    offsets: memoryview

    def entry(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """An entry from ``offset`` on, of about ``max_bytes`` but not tiny, and its last offset."""
        start = bisect_left(self.offsets, offset)
        wanted = int(max_bytes * self.rows.num_rows / max(self.rows.nbytes, 1))
        rows = self.rows.slice(start, max(wanted, LEAST_ROWS))
        return to_entry(rows), self.offsets[start + rows.num_rows - 1]


class LakeReader:
    """Reads one stream's records from its table; remembers its files until they change.

    May be called from several threads.
    """

    def __init__(self, lake: Lake, stream: str) -> None:
        self._lake = lake
        self._stream = stream
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._ranges: dict[int, list[FileRange]] = {}
        self._file: tuple[str, pq.ParquetFile] | None = None
        self._kept: _RowGroup | None = None

    def read(self, partition: int, offset: int, max_bytes: int) -> ReplayedEntries:
        """Entries from the one that holds ``offset`` on, at least one and up to ``max_bytes``.

        There are none if the lake ends before ``offset``.
        """
        with self._lock, lake_errors(f"cannot read stream {self._stream!r} from the lake"):
            if self._table is None or offset >= self._end(partition):
                self._plan()
            try:
                return self._read(partition, offset, max_bytes)
            except FileNotFoundError:  # it was merged into another one since
                self._plan()
                return self._read(partition, offset, max_bytes)

    def _end(self, partition: int) -> int:
        assert self._table is not None
        return offsets_of(self._table.properties).get(partition, 0)

    def _plan(self) -> None:
        self._file = self._kept = None
        self._table = self._lake.get(self._stream)
        self._ranges = {}
        for part in file_ranges(self._table):
            self._ranges.setdefault(part.partition, []).append(part)

    def _read(self, partition: int, offset: int, max_bytes: int) -> ReplayedEntries:
        end = self._end(partition)
        entries: list[bytes] = []
        at, left = offset, max_bytes
        while at < end and left > 0:
            group = self._next(partition, at)
            if group is None:
                return ReplayedEntries(entries, end)
            entry, last = group.entry(at, left)
            entries.append(entry)
            at, left = last + 1, left - len(entry)
        return ReplayedEntries(entries, at)

    def _next(self, partition: int, offset: int) -> _RowGroup | None:
        """The row group that holds ``offset``, or the first after it."""
        found = self._ranges.get(partition, [])
        index = bisect_right(found, offset, key=lambda part: part.first) - 1
        for part in found[max(index, 0) :]:
            if part.last >= offset:
                return self._row_group(part.path, offset)
        return None

    def _row_group(self, path: str, offset: int) -> _RowGroup:
        file = self._opened(path)
        number = _row_group(file, offset)
        kept = self._kept
        if kept is None or (kept.path, kept.number) != (path, number):
            rows = projected(file.read_row_group(number), ROWS).combine_chunks()
            offsets = rows.column("offset").chunk(0)
            places = memoryview(offsets.buffers()[1]).cast("q")[offsets.offset :][: len(offsets)]
            kept = self._kept = _RowGroup(path, number, rows, places)
        return kept

    def _opened(self, path: str) -> pq.ParquetFile:
        assert self._table is not None
        if self._file is None or self._file[0] != path:
            self._file = path, open_parquet(self._table.io, path)
        return self._file[1]


def _row_group(file: pq.ParquetFile, offset: int) -> int:
    """The number of the row group that holds ``offset``, or of the first after it."""
    for number in range(file.num_row_groups):
        if _offsets(file, number).max >= offset:
            return number
    raise AssertionError("the file's bounds say that it holds the offset")
