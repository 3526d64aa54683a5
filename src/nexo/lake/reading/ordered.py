"""Rows of data files in the order of their offsets, whoever wrote the files.

A file of Nexo holds one partition's rows in order, and is read row group by row group. Even that is
checked, by the file's own statistics and by the offsets that are read. Files of other programs hold
rows of any partition, in any order, without bounds. They are read window by window: all
rows of a range of offsets, sorted, from whichever files have some. Rows without a partition or
an offset have no place in the log, and are left out; of several rows of one offset, the first is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nexo.lake.own_columns import FIELD_IDS, ROWS
from nexo.lake.reading.deletes import DeletedRows, plain_path, without
from nexo.lake.rows import CHUNK_ROWS
from nexo.lake.schema import marked, projected, sources

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

# ruff: noqa: PLC0415 - pyarrow.compute is slow to import, and not all readers need it

END = 1 << 62
"""Above all offsets."""
WINDOW_ROWS = 1_000_000
"""Rows that are sorted at a time…"""
WINDOW_BYTES = 256 * 1024**2
"""…or fewer, if they are large."""
PLACES = marked(pa.schema([ROWS.field("partition"), ROWS.field("offset")]), FIELD_IDS)
"""What places a row in the log."""
_PARTITION, _OFFSET = "nexo: partition", "nexo: offset"
_BESIDE = [PLACES.field(0).with_name(_PARTITION), PLACES.field(1).with_name(_OFFSET)]
"""The same beside the columns that are asked for, which may have any names."""

WantedOffsets = Callable[[int, int], bool]
"""Whether rows from a first to a last offset, both included, are to be read."""


def every(first: int, last: int) -> bool:
    """Any rows."""
    return True


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A data file; its lowest and highest offset, None if not known."""

    path: str
    offsets: tuple[int, int] | None = None
    is_ordered: bool = False
    """Whether it says that it holds one partition's rows in the order of offsets."""
    deletes: tuple[str, ...] = ()


def open_parquet(io: FileIO | None, path: str) -> pq.ParquetFile:
    """A data file; without ``io`` it is on this machine."""
    return pq.ParquetFile(io.new_input(path).open() if io else plain_path(path))


def row_groups(
    io: FileIO, path: str, schema: pa.Schema, deletes: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """A file's row groups as they are in it, as ``schema``; only its columns are read."""
    deleted = DeletedRows(io).of(path, deletes)
    with open_parquet(io, path) as file:
        pieces = _Pieces(file, deleted)
        for number in range(file.num_row_groups):
            yield pieces.read(number, schema)


def rows_in_order(
    io: FileIO | None,
    files: Sequence[SourceFile],
    partition: int,
    columns: pa.Schema,
    low: int = 0,
    high: int = END,
    *,
    wanted: WantedOffsets = every,
    distinct: bool = True,
) -> Iterator[pa.Table]:
    """A partition's rows with offsets from ``low``, below ``high``, in their order.

    ``wanted`` may leave out rows by their first and last offset. Unless ``distinct``, all rows of
    an offset are read.
    """
    reading = _RowReading(io, partition, columns, low, high, wanted)
    last = -1
    for rows in reading.run(files):
        found = _first_of_each(rows, last) if distinct else rows
        if found.num_rows:
            last = found.column(_OFFSET)[-1].as_py()
            yield pa.Table.from_arrays(found.columns[: len(columns)], schema=columns)


def _first_of_each(rows: pa.Table, last: int) -> pa.Table:
    """Sorted rows without those of an offset that came before."""
    import pyarrow.compute as pc

    offsets = rows.column(_OFFSET).combine_chunks()
    if not len(offsets):
        return rows
    if len(offsets) > 1 and pc.all(pc.less(offsets[:-1], offsets[1:])).as_py():
        return rows if offsets[0].as_py() > last else rows.filter(pc.greater(offsets, last))
    before = pa.concat_arrays([pa.array([last], pa.int64()), offsets[:-1]])
    return rows.filter(pc.greater(offsets, before))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A row group that holds some rows of a partition, between two offsets."""

    source: int
    number: int
    first: int
    last: int
    count: int
    size_bytes: int


class _Pieces:
    """An open file's row groups."""

    def __init__(self, file: pq.ParquetFile, deleted: pa.Array | None = None) -> None:
        self.file = file
        self._deleted = deleted
        counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        self._starts = [sum(counts[:n]) for n in range(len(counts))] if deleted is not None else []
        self._partition, self._offset = self._place(file)

    @staticmethod
    def _place(file: pq.ParquetFile) -> tuple[int | None, int | None]:
        """The places of the partition and the offset among the plain columns."""
        schema = file.schema_arrow
        names = sources(schema, PLACES)
        plain = [file.schema.column(n).path for n in range(len(file.schema))]
        partition, offset = (plain.index(name) if name in plain else None for name in names)
        return partition, offset

    def read(self, number: int, schema: pa.Schema) -> pa.Table:
        """A row group as ``schema``, without deleted rows."""
        names = [name for name in sources(self.file.schema_arrow, schema) if name is not None]
        rows = projected(self._row_group(number, list(dict.fromkeys(names))), schema)
        first = self._starts[number] if self._deleted is not None else 0
        return without(rows, first, self._deleted)

    def _row_group(self, number: int, names: list[str]) -> pa.Table:
        if names:
            return self.file.read_row_group(number, names)
        count = self.file.metadata.row_group(number).num_rows
        return pa.table({"": pa.nulls(count)})

    def bounds(self, number: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The bounds of a row group's partitions and offsets; None if no row has one."""
        if self._partition is None or self._offset is None:
            return None, None
        group = self.file.metadata.row_group(number)
        found = [group.column(each).statistics for each in (self._partition, self._offset)]
        if all(each is not None and each.has_min_max for each in found):
            partition, offset = ((each.min, each.max) for each in found)
            return partition, offset
        return self._read_bounds(number)

    def _read_bounds(self, number: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        import pyarrow.compute as pc

        rows = self.read(number, PLACES)
        found = [pc.min_max(rows.column(name)).as_py() for name in PLACES.names]
        partition, offset = (
            None if each["min"] is None else (each["min"], each["max"]) for each in found
        )
        return partition, offset


class _RowReading:
    """Reads one partition's rows, of a range of offsets."""

    def __init__(
        self, io: FileIO | None, partition: int, columns: pa.Schema, low: int, high: int,
        wanted: WantedOffsets,
    ) -> None:  # fmt: skip
        self._columns = pa.schema([*marked(columns, FIELD_IDS), *_BESIDE])
        self._io = io
        self._partition = partition
        self._low, self._high = low, high
        self._wanted = wanted
        self._deleted = DeletedRows(io)

    def run(self, files: Sequence[SourceFile]) -> Iterator[pa.Table]:
        """Sorted rows; where several rows have an offset, those of the first file come first."""
        for group in self._groups(files):
            if len(group) == 1 and group[0].is_ordered:
                yield from self._one(group[0])
            else:
                yield from self._sorted(group)

    def _groups(self, files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
        """Files whose offsets overlap together, in the order of offsets."""
        bounded = [(self._bounds(each), each) for each in files]
        known = [(found, each) for found, each in bounded if found is not None]
        group, end = list[SourceFile](), -1
        for (first, last), each in sorted(known, key=lambda item: (item[0][0], item[1].path)):
            if first >= self._high or last < self._low:
                continue
            if group and first > end:
                yield group
                group = []
            group.append(each)
            end = max(end, last)
        if group:
            yield group

    def _bounds(self, source: SourceFile) -> tuple[int, int] | None:
        """The offsets of the partition's rows in a file; None if it has none."""
        if source.is_ordered:
            return source.offsets
        pieces = self._pieces(0, source)
        if not pieces:
            return None
        return min(each.first for each in pieces), max(each.last for each in pieces)

    def _pieces(self, index: int, source: SourceFile) -> list[_Piece]:
        """The row groups of a file that may have rows of the partition."""
        found = []
        with open_parquet(self._io, source.path) as file:
            pieces = _Pieces(file)
            for number in range(file.num_row_groups):
                partitions, offsets = pieces.bounds(number)
                if partitions is None or offsets is None:
                    continue
                if partitions[0] <= self._partition <= partitions[1]:
                    group = file.metadata.row_group(number)
                    size = (index, number, *offsets, group.num_rows, group.total_byte_size)
                    found.append(_Piece(*size))
        return found

    # -- a file in order -----------------------------------------------------------------

    def _one(self, source: SourceFile) -> Iterator[pa.Table]:
        """A file that says that it is in order, row group by row group, unless it is not."""
        deleted = self._deleted.of(source.path, source.deletes)
        with open_parquet(self._io, source.path) as file:
            pieces = _Pieces(file, deleted)
            bounds = [pieces.bounds(number) for number in range(file.num_row_groups)]
            if self._in_order(bounds):
                for number, (_, offsets) in enumerate(bounds):
                    if offsets is not None and self._is_due(*offsets):
                        yield self._chosen(pieces.read(number, self._columns))
                return
        yield from self._sorted([source])

    def _in_order(self, bounds: Sequence[tuple[Any, Any]]) -> bool:
        last = -1
        for partitions, offsets in bounds:
            if partitions != (self._partition, self._partition) or offsets is None:
                return False
            if offsets[0] < last:
                return False
            last = offsets[1]
        return True

    def _is_due(self, first: int, last: int) -> bool:
        low, high = self._low, self._high
        return first < high and last >= low and self._wanted(max(first, low), min(last, high - 1))

    def _chosen(self, rows: pa.Table, low: int = 0, high: int = END) -> pa.Table:
        """Rows of the partition and of a range of offsets, sorted."""
        import pyarrow.compute as pc

        low, high = max(low, self._low), min(high, self._high)
        offsets = rows.column(_OFFSET)
        within = pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high))
        due = pc.and_(within, pc.equal(rows.column(_PARTITION), self._partition))
        if not (pc.all(due).as_py() and due.null_count == 0):
            rows = rows.filter(due)
        return _sorted_rows(rows)

    # -- any files ------------------------------------------------------------------------

    def _sorted(self, files: Sequence[SourceFile]) -> Iterator[pa.Table]:
        ordered = sorted(files, key=lambda each: not each.is_ordered)
        pieces = [
            piece for index, each in enumerate(ordered) for piece in self._pieces(index, each)
        ]
        if pieces:
            count = sum(each.count for each in pieces)
            size_bytes = sum(each.size_bytes for each in pieces)
            most = min(WINDOW_ROWS, max(WINDOW_BYTES * count // max(size_bytes, 1), 1_000))
            low = max(min(each.first for each in pieces), self._low)
            high = min(max(each.last for each in pieces) + 1, self._high)
            yield from self._window(ordered, pieces, low, high, most)

    def _window(
        self, files: Sequence[SourceFile], pieces: Sequence[_Piece], low: int, high: int, most: int
    ) -> Iterator[pa.Table]:
        """All rows of a range of offsets; in two parts if they are too many."""
        within = [each for each in pieces if each.first < high and each.last >= low]
        if not within or high <= low or not self._is_due(low, high - 1):
            return
        if sum(each.count for each in within) > most and high - low > most:
            middle = (low + high) // 2
            yield from self._window(files, within, low, middle, most)
            yield from self._window(files, within, middle, high, most)
            return
        found = _sorted_rows(pa.concat_tables(list(self._read(files, within, low, high))))
        for start in range(0, found.num_rows, CHUNK_ROWS):
            yield found.slice(start, CHUNK_ROWS)

    def _read(
        self, files: Sequence[SourceFile], pieces: Sequence[_Piece], low: int, high: int
    ) -> Iterator[pa.Table]:
        for index in sorted({each.source for each in pieces}):
            source = files[index]
            deleted = self._deleted.of(source.path, source.deletes)
            with open_parquet(self._io, source.path) as file:
                reading = _Pieces(file, deleted)
                for each in pieces:
                    if each.source == index:
                        rows = reading.read(each.number, self._columns)
                        yield self._chosen(rows, low, high)


def _sorted_rows(rows: pa.Table) -> pa.Table:
    """Rows by their offsets; those of one offset as they were."""
    import pyarrow.compute as pc

    offsets = rows.column(_OFFSET).combine_chunks()
    if len(offsets) < 2 or pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py():
        return rows
    return rows.take(pc.sort_indices(offsets))  # a stable sort
