"""Writing data files: Parquet, split by day, with what a manifest says about each.

It runs where the data is, in a Spark task or a test; only `DataFileFacts` are sent back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nexo.lake.paths import delete_files, local_path, make_folder_of, sync_local
from nexo.lake.rows import CHUNK_ROWS, chunked, days
from nexo.lake.schema import arranged, file_schema, leaf_ids
from nexo.lake.typed.columns import REJECTED, Terms, parser_of
from nexo.lake.typed.values import Parser

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

_LONG, _INT = Struct("<q"), Struct("<i")
_EPOCH = date(1970, 1, 1)
_BOUNDED = ("partition", "offset", "timestamp")
"""Columns whose bounds let readers skip files."""
SMALL_BYTES = 32 * 1024
"""A file that begins with less than this is written without zstd and dictionaries: setting them up
costs more than they save, and the file is soon merged into a larger one."""
_NOT_FOR_FILES = ("nexo.", "write.", "commit.", "history.", "format-version")
"""Table properties that do not concern access to files."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how a table's files are written; sent to tasks."""

    location: str
    schema: pa.Schema
    io_properties: dict[str, str]
    partitioned: bool = True
    typed: Terms | None = None
    """Columns to be parsed out of the values (`nexo.lake.typed.values.Parser`)."""


@dataclass(slots=True)
class DataFileFacts:
    """What a manifest holds about one file, keyed by field id."""

    path: str
    day: int | None
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
    new_fields: dict[str, str] = field(default_factory=dict)
    """Fields of the values that are to become columns, with types that fit them."""


def target(table: Table) -> Target:
    """Where a table's files go."""
    partitioned = not table.spec().is_unpartitioned()
    typed = parser_of(table) if partitioned else None
    properties = _same(
        tuple(
            sorted(
                (name, value)
                for name, value in table.io.properties.items()
                if not name.startswith(_NOT_FOR_FILES)
            )
        )
    )
    return Target(table.location(), _schema(table), properties, partitioned, typed)


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
    """Writes rows of one stream partition, in offset order, one file per day.

    The files' names begin with ``label``. Nothing is part of the table before the commit; `discard`
    removes what was written. Without ``sync`` the caller has to sync the files.
    """

    def __init__(self, where: Target, label: str, *, sync: bool = True) -> None:
        self._target = where
        self._sync = sync
        self._paths: list[str] = []
        self._label = label
        self._io = file_io(where)
        self._open: _OpenFile | None = None
        self._parser: Parser | None = None
        self.done: list[DataFileFacts] = []

    def write(self, batches: Iterable[pa.RecordBatch], chunk_rows: int = CHUNK_ROWS) -> None:
        """Write batches; each chunk becomes a row group."""
        if self._parser is None and self._target.typed is not None:
            self._parser = Parser(self._target.typed)
        for table in chunked(batches, chunk_rows):
            self.add(table if self._parser is None else self._parser.add_to(table))

    def add(self, table: pa.Table) -> None:
        """Write rows as one row group per day."""
        for day, part in self._parts(table):
            self._file(day, small=part.nbytes < SMALL_BYTES).write(part)

    def save(self, tables: Iterable[pa.Table]) -> list[DataFileFacts]:
        """Write all rows, already cut into row groups, and close; on failure nothing is left."""
        try:
            for table in tables:
                self.add(table)
            return self.close()
        except BaseException:
            self.discard()
            raise

    def _parts(self, table: pa.Table) -> Iterable[tuple[int | None, pa.Table]]:
        return days(table) if self._target.partitioned else [(None, table)]

    def _file(self, day: int | None, *, small: bool) -> _OpenFile:
        if self._open is None or day != self._open.day:
            self._finish()
            self._paths.append(self._path(day))
            self._open = _OpenFile(self._io, self._paths[-1], self._target.schema, day, small=small)
        return self._open

    def _path(self, day: int | None) -> str:
        folder = f"{self._target.location}/data"
        if day is not None:
            folder += f"/day={(_EPOCH + timedelta(days=day)).isoformat()}"
        return f"{folder}/{self._label}-{uuid.uuid4().hex[:12]}.parquet"

    def _finish(self) -> None:
        if self._open is not None:
            facts = self._open.close()
            self._open = None
            if self._sync:
                sync_local([facts.path])
            self.done.append(facts)

    def close(self) -> list[DataFileFacts]:
        """Finish and sync the files; returns what the commit needs."""
        self._finish()
        if self._parser is not None and self.done:
            self.done[-1].new_fields = self._parser.new_fields()
        return self.done

    def discard(self) -> None:
        """Remove every file written, even one that a full disk kept from closing."""
        if self._open is not None:
            with suppress(OSError):
                self._open.close()
            self._open = None
        delete_files(self._io, self._paths)


class _OpenFile:
    """One Parquet file being written."""

    def __init__(
        self, io: FileIO, path: str, schema: pa.Schema, day: int | None, *, small: bool
    ) -> None:
        self.day = day
        self._path = path
        self._stream = _output(io, path)
        self._schema = schema
        self._rejected = 0
        names = set(schema.names)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="snappy" if small else "zstd",
            compression_level=None if small else 1,
            use_dictionary=not small
            and [name for name in ("partition", "value_type") if name in names],
            write_statistics=[name for name in _BOUNDED if name in names],
            store_schema=False,
            store_decimal_as_integer=True,
        )

    def write(self, table: pa.Table) -> None:
        if REJECTED in self._schema.names and REJECTED in table.column_names:
            self._rejected += table.num_rows - table.column(REJECTED).null_count
        known = set(table.column_names)  # another program may have given the lake's table more
        names = [name if name in known else None for name in self._schema.names]
        rows = arranged(table, self._schema, names)
        self._writer.write_table(rows, row_group_size=table.num_rows)

    def close(self) -> DataFileFacts:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        metadata = self._writer.writer.metadata
        facts = DataFileFacts(self._path, self.day, metadata.num_rows, size)
        _describe(facts, metadata, self._schema)
        if REJECTED in self._schema.names:
            (rejected_id,) = leaf_ids(self._schema.field(REJECTED))
            facts.rejected = self._rejected
            facts.null_counts[rejected_id] = facts.count - self._rejected
        return facts


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


def _describe(facts: DataFileFacts, metadata: Any, schema: pa.Schema) -> None:
    """Fill in what the file's own metadata says."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    facts.split_offsets = [_start(group) for group in groups]
    leaves = [field_id for each in schema for field_id in leaf_ids(each)]
    for index, key in enumerate(leaves):
        columns = [group.column(index) for group in groups]
        facts.column_sizes[key] = sum(each.total_compressed_size for each in columns)
        facts.value_counts[key] = sum(each.num_values for each in columns)
        _add_bounds(facts, key, columns)


def _add_bounds(facts: DataFileFacts, key: int, columns: Sequence[Any]) -> None:
    """The lowest and the highest value of a column, if its row groups have statistics."""
    found = [each.statistics for each in columns if each.is_stats_set]
    if known := [each for each in found if each.has_min_max]:
        pack = (_INT if columns[0].physical_type == "INT32" else _LONG).pack
        facts.lower[key] = pack(min(each.min_raw for each in known))
        facts.upper[key] = pack(max(each.max_raw for each in known))


def _start(group: Any) -> int:
    column = group.column(0)
    start = column.data_page_offset
    return int(min(start, column.dictionary_page_offset or start))
