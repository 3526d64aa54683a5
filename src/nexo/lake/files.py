"""Writing data files: Parquet, divided as the table is, with what a manifest says about each.

It runs where the data is, in a Spark task or a test; only `DataFileFacts` are sent back.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nexo.errors import Conflict
from nexo.lake.own_columns import FIELD_IDS, OWN_COLUMNS
from nexo.lake.paths import delete_files, local_path, make_folder_of, sync_local
from nexo.lake.rows import CHUNK_BYTES, CHUNK_ROWS, chunked
from nexo.lake.schema import arranged, field_id_of, file_schema, leaf_ids, marked, sources
from nexo.lake.tables import BESIDE, STREAM
from nexo.lake.typed.columns import REJECTED, Terms, parser_of
from nexo.lake.typed.values import Parser
from nexo.lake.writing.bounds import bounded, bounds
from nexo.lake.writing.layout import PartitionValues, TableLayout, layout_of, undivided

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

_OPEN_FILES = 64
"""Files that one writer has open at a time."""
SMALL_BYTES = 32 * 1024
"""A file that begins with less than this is written without zstd and dictionaries: setting them up
costs more than they save, and the file is soon merged into a larger one."""
_SAMPLE_ROWS = 4_096
FEW_ROWS = 16_384
"""Fewer rows of one writer may stay undivided; a writer that has more begins with more."""
_NOT_FOR_FILES = ("nexo.", "write.", "commit.", "history.", "format-version")
"""Table properties that do not concern access to files."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how a table's files are written; sent to tasks."""

    location: str
    schema: pa.Schema
    io_properties: dict[str, str]
    layout: TableLayout = field(default_factory=TableLayout)
    ids: Mapping[str, int] = field(default_factory=dict)
    """Field ids of a stream's own columns, whatever they are called now."""
    typed: Terms | None = None
    """Columns to be parsed out of the values (`nexo.lake.typed.values.Parser`)."""
    undivided: TableLayout | None = None
    """How few rows are written, if not as the others: in one file."""


@dataclass(slots=True)
class DataFileFacts:
    """What a manifest holds about one file, keyed by field id."""

    path: str
    partition: PartitionValues
    spec_id: int
    count: int
    size_bytes: int
    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_counts: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)
    split_offsets: list[int] = field(default_factory=list)
    rejected: int = 0
    """Rows that the typed columns rejected."""
    commit: int | None = None
    """The newest commit whose rows it holds, if that is not the one that adds it."""
    new_fields: dict[str, str] = field(default_factory=dict)
    """Fields of the values that are to become columns, with types that fit them."""


def target(table: Table) -> Target:
    """Where a table's files go; `Conflict` if files cannot be written as it is divided."""
    layout, ids = layout_of(table), _own_ids(table)
    found = replace(place_of(table), layout=layout, ids=ids, typed=parser_of(table))
    return replace(found, undivided=undivided(table)) if BESIDE in table.properties else found


def place_of(table: Table) -> Target:
    """Where a table's files are, for tasks that only read them."""
    known = (each for each in table.io.properties.items() if not each[0].startswith(_NOT_FOR_FILES))
    return Target(table.location(), _schema(table), _same(tuple(sorted(known))))


def _own_ids(table: Table) -> dict[str, int]:
    """Field ids of a stream's own columns; `Conflict` if another program dropped one."""
    if STREAM not in table.properties:
        return {}
    found = {each.field_id: str(each.field_type) for each in table.schema().fields}
    for column in OWN_COLUMNS:
        if found.get(FIELD_IDS[column.name]) not in column.iceberg:
            raise Conflict(
                f"table {'.'.join(table.name())} no longer has the column {column.name!r} as "
                "Nexo made it, so records would be lost in it: rename the table, and Nexo makes a "
                "new one for the records from then on"
            )
    return FIELD_IDS


def _schema(table: Table) -> pa.Schema:
    """The schema of its files; one object for tables of the same columns."""
    fields = tuple((f.field_id, f.name, str(f.field_type)) for f in table.schema().fields)
    if fields not in _schemas:
        _schemas[fields] = file_schema(table.schema())
    return _schemas[fields]


_schemas: dict[tuple[tuple[int, str, str], ...], pa.Schema] = {}


@lru_cache(maxsize=100)
def _same(properties: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """One object for equal properties, so that a pickle of many tables holds it once."""
    return dict(properties)


def file_io(where: Target) -> FileIO:
    """What reads and writes files there; cached, because a new one connects to its store again."""
    scheme = where.location.partition("://")[0] if "://" in where.location else "file"
    return _file_io(tuple(sorted(where.io_properties.items())), scheme)


@lru_cache(maxsize=100)
def _file_io(properties: tuple[tuple[str, Any], ...], scheme: str) -> FileIO:
    from pyiceberg.io import load_file_io  # noqa: PLC0415 - takes half a second to import

    return load_file_io(dict(properties), f"{scheme}://")


class FileWriter:
    """Writes rows of one stream partition, in offset order, one file per part of the table.

    The files' names begin with ``label``. Nothing is part of the table before the commit; `discard`
    removes what was written. Without ``sync`` the caller has to sync the files.
    """

    def __init__(self, where: Target, label: str, *, sync: bool = True) -> None:
        self._target = where
        self._sync = sync
        self._paths: list[str] = []
        self._label = label
        self._io = file_io(where)
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._parser: Parser | None = None
        self.done: list[DataFileFacts] = []

    def write(self, batches: Iterable[pa.RecordBatch], chunk_rows: int = CHUNK_ROWS) -> None:
        """Write batches; each chunk becomes a row group."""
        if self._parser is None and self._target.typed is not None:
            self._parser = Parser(self._target.typed)
        for table in chunked(batches, chunk_rows):
            self.add(table if self._parser is None else self._parser.add_to(table))

    def add(self, table: pa.Table) -> None:
        """Write rows as one row group per file."""
        schema, few = self._target.schema, self._target.undivided
        rows = arranged(table, schema, sources(self._marked(table.schema), schema))
        is_small = rows.num_rows < FEW_ROWS and rows.nbytes < CHUNK_BYTES // 2
        if few is not None and not self._paths and is_small:
            self._target = replace(self._target, layout=few)
        for values, part in self._target.layout.parts(rows):
            self._file(values, part).write(part)

    def put(self, values: PartitionValues, table: pa.Table) -> None:
        """Write rows that all have these values of the partition fields, as one row group."""
        schema = self._target.schema
        rows = arranged(table, schema, sources(self._marked(table.schema), schema))
        self._file(values, rows).write(rows)

    def _marked(self, schema: pa.Schema) -> pa.Schema:
        """Columns of rows with the ids of the table's: other programs may have renamed those."""
        named = {field.name: field_id_of(field) or 0 for field in self._target.schema}
        return marked(schema, {**named, **self._target.ids})

    def save(self, tables: Iterable[pa.Table]) -> list[DataFileFacts]:
        """Write all rows, already cut into row groups, and close; on failure nothing is left."""
        try:
            for table in tables:
                self.add(table)
            return self.close()
        except BaseException:
            self.discard()
            raise

    def _file(self, values: PartitionValues, first: pa.Table) -> _OpenFile:
        """The file of these values, opened for its first rows; the last used is the last one."""
        found = self._open.pop(values, None)
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open)))
            self._paths.append(self._path(values))
            found = _OpenFile(self._io, self._paths[-1], self._target, values, first)
        self._open[values] = found
        return found

    def _path(self, values: PartitionValues) -> str:
        folder = f"{self._target.location}/data{self._target.layout.folder(values)}"
        return f"{folder}/{self._label}-{uuid.uuid4().hex[:12]}.parquet"

    def _finish(self, values: PartitionValues) -> None:
        facts = self._open[values].close()
        del self._open[values]
        if self._sync:
            sync_local([facts.path])
        self.done.append(facts)

    def close(self) -> list[DataFileFacts]:
        """Finish and sync the files; returns what the commit needs."""
        for values in list(self._open):
            self._finish(values)
        if self._parser is not None and self.done:
            self.done[-1].new_fields = self._parser.new_fields()
        return self.done

    def discard(self) -> None:
        """Remove every file written, even one that a full disk kept from closing."""
        for each in self._open.values():
            with suppress(Exception):  # what a writer raises after a failure is of no interest
                each.close()
        self._open = {}
        delete_files(self._io, self._paths)


class _OpenFile:
    """One Parquet file being written."""

    def __init__(
        self, io: FileIO, path: str, where: Target, values: PartitionValues, first: pa.Table
    ) -> None:
        self._path = path
        self._target = where
        self._values = values
        self._stream = _output(io, path)
        self._rejected = 0
        schema = where.schema
        names, small = set(schema.names), first.nbytes < SMALL_BYTES
        self._bounded = [name for name in (*_always(where), *_typed_names(where)) if name in names]
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="snappy" if small else "zstd",
            compression_level=None if small else 1,
            use_dictionary=not small and (_repeated(names) if where.ids else _repeats(first)),
            write_statistics=self._bounded,
            store_schema=False,
            store_decimal_as_integer=True,
        )

    def write(self, rows: pa.Table) -> None:
        if REJECTED in self._target.schema.names:
            self._rejected += rows.num_rows - rows.column(REJECTED).null_count
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> DataFileFacts:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        metadata, schema = self._writer.writer.metadata, self._target.schema
        spec_id = self._target.layout.spec_id
        facts = DataFileFacts(self._path, self._values, spec_id, metadata.num_rows, size)
        _describe(facts, metadata, schema, self._bounded)
        if REJECTED in schema.names:
            (rejected_id,) = leaf_ids(schema.field(REJECTED))
            facts.rejected = self._rejected
            facts.null_counts[rejected_id] = facts.count - self._rejected
        return facts


def _always(where: Target) -> Sequence[str]:
    """What the columns are called now that have bounds in every stream's files."""
    if not where.ids:  # a table of users, which nobody reads by offsets
        return [field.name for field in where.schema if bounded(field.type)]
    wanted = {where.ids[each.name] for each in OWN_COLUMNS if each.has_bounds}
    return [field.name for field in where.schema if field_id_of(field) in wanted]


def _repeated(names: Collection[str]) -> list[str]:
    """Columns of a stream's table with few different values."""
    return [each.name for each in OWN_COLUMNS if each.repeats and each.name in names]


def _repeats(first: pa.Table) -> list[str] | bool:
    """Columns of a users' table with few different values, as far as a file's first rows tell.

    For the others, a dictionary costs as much as all the rest. Parts of columns are not looked at.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - slow, and streams do not need it

    some = first.slice(0, _SAMPLE_ROWS)
    columns = zip(some.column_names, some.columns, strict=True)
    try:
        return [name for name, c in columns if 2 * pc.count_distinct(c).as_py() < some.num_rows]
    except pa.ArrowNotImplementedError:  # a column with parts, or of a rare type
        return True


def _typed_names(where: Target) -> Iterator[str]:
    """Columns of a contract whose bounds let other engines skip files."""
    if where.typed is not None:
        for column in where.typed.columns:
            name = where.typed.names[column.field_id]
            if name in where.schema.names and bounded(where.schema.field(name).type):
                yield name


def _output(io: FileIO, path: str) -> Any:
    """A new file, as Arrow writes it."""
    local = local_path(path)
    if local is None:
        return io.new_output(path).create(overwrite=True)
    try:
        return pa.OSFile(local, "wb")
    except FileNotFoundError:
        make_folder_of(local)
        return pa.OSFile(local, "wb")


def _describe(
    facts: DataFileFacts, metadata: Any, schema: pa.Schema, with_bounds: Sequence[str]
) -> None:
    """Fill in what the file's own metadata says."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    facts.split_offsets = [_start(group) for group in groups]
    leaves = [(each, field_id) for each in schema for field_id in leaf_ids(each)]
    for index, (column, key) in enumerate(leaves):
        chunks = [group.column(index) for group in groups]
        facts.column_sizes[key] = sum(each.total_compressed_size for each in chunks)
        facts.value_counts[key] = sum(each.num_values for each in chunks)
        if column.name in with_bounds:
            facts.null_counts[key] = sum(each.statistics.null_count for each in chunks)
        if column.name in with_bounds and (found := bounds(column.type, chunks)) is not None:
            facts.lower[key], upper = found
            if upper is not None:
                facts.upper[key] = upper


def _start(group: Any) -> int:
    column = group.column(0)
    start = column.data_page_offset
    return int(min(start, column.dictionary_page_offset or start))
