"""Tables and streams as Spark data sources without options: one generated class for each.

Spark does not hand the options of a catalog's table to a Python data source, so what a source reads
is in its class. A query reads the table as it is when the query is planned.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from nexo.errors import Conflict, InvalidInput
from nexo.lake.catalog import Lake
from nexo.lake.changes.keyed import keyed_at_once
from nexo.lake.changes.reading import KeyedReading, keyed_reading, parts_of
from nexo.lake.files import DataFileFacts, Target, file_io, target
from nexo.lake.once import BatchMark, last_batches
from nexo.lake.paths import delete_files
from nexo.lake.reading.growing import GrownPart, added_between, newest_position
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.schema import file_schema
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import TERMS, USER
from nexo.lake.writing.modes import all_files
from pyspark_nexo.source import DefaultSource
from pyspark_nexo.tables.writing import RowsTask, commit_rows
from pyspark_nexo.types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

# ruff: noqa: N802, N803 - Spark names these methods

_TASK_BYTES, _FILE_BYTES = 64 * 1024**2, 4 * 1024**2
"""What a task reads at least, and what opening a file counts for."""
_W = TypeVar("_W")
_QUERY = "sql.streaming.queryId"
PROVIDER = "nexo_table_"
"""How the names of generated data sources begin."""
BESIDE = "beside"
"""An option of streaming writes: other queries write into the same table."""


def new_provider(name: str) -> str:
    """What Spark calls a new data source of a table.

    It is another one each time, as Spark does not let one session name what another one has named.
    """
    return f"{PROVIDER}{blake2s(name.encode(), digest_size=8).hexdigest()}_{secrets.token_hex(3)}"


class StreamTable(DefaultSource):
    """A stream, with the same options for every query."""

    provider: ClassVar[str]
    given: ClassVar[Mapping[str, str]]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(self.given))

    @classmethod
    def name(cls) -> str:
        return cls.provider


class LakeTable(DataSource):
    """A table of the lake."""

    provider: ClassVar[str]
    lake: ClassVar[LakeSettings]
    table: ClassVar[str]
    """Its name in the lake's catalog."""
    columns: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        return cls.provider

    def schema(self) -> StructType:
        return self.columns

    def _table(self) -> Table:
        return open_table(self.lake, self.table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        return TableReader(self.lake, self.table, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries: what is added."""
        check_growing(self._table())
        return GrowingTableReader(self.lake, self.table, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        """For ``insert into`` and ``insert overwrite``."""
        return TableBatchWriter(self.lake, self.table, target(self._table()), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueryWriter:
        """For ``toTable``."""
        if overwrite:
            raise InvalidInput("a streaming query appends to a table: use outputMode('append')")
        known = last_batches(self._table().properties)
        beside = self.options.get(BESIDE, "false").lower() == "true"
        others = frozenset() if beside else frozenset(known)
        return QueryWriter(self.lake, self.table, target(self._table()), others)


def stream_table(label: str, options: Mapping[str, str]) -> type[StreamTable]:
    """The data source of a stream."""
    return type("Stream", (StreamTable,), {"provider": new_provider(label), "given": options})


def lake_table(label: str, lake: LakeSettings, table: Table) -> type[LakeTable]:
    """The data source of a table."""
    found = {
        "provider": new_provider(label),
        "lake": lake,
        "table": table.name()[-1],
        "columns": spark_schema(file_schema(table.schema())),
    }
    return type("Table", (LakeTable,), found)


def described_table(label: str, lake: LakeSettings, columns: pa.Schema) -> type[LakeTable]:
    """The data source of a table that is not there: queries can be planned, not run."""
    found = {
        "provider": new_provider(label),
        "lake": lake,
        "table": "",
        "columns": spark_schema(columns),
    }
    return type("Table", (LakeTable,), found)


def open_table(lake: LakeSettings, name: str) -> Table:
    """A table by its name in the catalog."""
    found = Lake(lake).at(name)
    if found is None:
        raise Conflict(f"table {lake.namespace}.{name} was removed or renamed since it was used")
    return found


def check_growing(table: Table) -> None:
    """`InvalidInput` unless what is added to a table is all that happens to it."""
    if TERMS in table.properties:
        raise InvalidInput(
            f"rows of table {table.properties.get(USER)!r} are replaced by key, so it cannot be "
            "read as a stream: read it as a table, or read the stream that its changes come from"
        )


# -- reading ---------------------------------------------------------------------------


def _partitions(where: Target, files: Sequence[tuple[GrownPart, int]]) -> list[InputPartition]:
    """Tasks of about equal work; files come with their sizes."""
    some = grouped(files, lambda each: each[1])
    return [InputPartition((where, tuple(file for file, _ in each))) for each in some]


def grouped(work: Iterable[_W], size_of: Callable[[_W], int]) -> list[list[_W]]:
    """Work for tasks of about equal sizes in bytes."""
    found, size = list[list[_W]](), _TASK_BYTES
    for each in work:
        if size >= _TASK_BYTES:
            found.append([])
            size = 0
        found[-1].append(each)
        size += size_of(each) + _FILE_BYTES
    return found


def _read(partition: InputPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    where, files = partition.value
    for file in files:
        for rows in file.rows(file_io(where), where.schema):
            yield from rows.select(names).to_batches()


class TableReader(DataSourceReader):
    """Reads a table as it is when the query is planned, each file in a task of its own."""

    def __init__(self, lake: LakeSettings, table: str, schema: StructType) -> None:
        self._lake, self._table, self._names = lake, table, schema.names

    def partitions(self) -> Sequence[InputPartition]:
        found = open_table(self._lake, self._table)
        if TERMS in found.properties and (parts := self._keyed(found)) is not None:
            return parts
        ranges = file_ranges(found)
        files = [
            (GrownPart(each.path, each.deletes), int(each.file.file_size_in_bytes))
            for each in ranges
        ]
        return _partitions(target(found), files)

    def _keyed(self, table: Table) -> list[InputPartition] | None:
        """A table of rows by key, with the changes that wait."""
        keyed = keyed_at_once(Lake(self._lake), table.properties[USER])
        if keyed is None:
            return None
        reading, parts = keyed_reading(keyed), parts_of(keyed)
        some = grouped(parts, lambda each: each.size_bytes)
        return [InputPartition((reading, tuple(each))) for each in some]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        where, parts = partition.value
        if not isinstance(where, KeyedReading):
            yield from _read(partition, self._names)
            return
        for part in parts:
            for rows in where.read(part):
                yield from rows.select(self._names).to_batches()


class GrowingTableReader(DataSourceStreamReader):
    """Reads what is added to a table; its position is the sequence number of a commit."""

    def __init__(self, lake: LakeSettings, table: str, schema: StructType) -> None:
        self._lake, self._table, self._names = lake, table, schema.names

    def initialOffset(self) -> dict[str, Any]:
        """Before the first commit: the table as it is comes first."""
        return self._offset(open_table(self._lake, self._table), 0)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """The newest commit."""
        found = open_table(self._lake, self._table)
        return self._offset(found, newest_position(found))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.latestOffset()

    def _offset(self, table: Table, position: int) -> dict[str, Any]:
        return {"position": position, "table": str(table.metadata.table_uuid)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files that were added."""
        found = open_table(self._lake, self._table)
        if start["table"] != str(found.metadata.table_uuid):
            raise Conflict(
                f"table {'.'.join(found.name())} was made anew since it was last read as a "
                "stream: begin anew (--full)"
            )
        return _partitions(target(found), added_between(found, start["position"], end["position"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        return _read(partition, self._names)


# -- writing ---------------------------------------------------------------------------


class RowsWritten(WriterCommitMessage):
    """The files of one task, and the streaming query that they are of."""

    def __init__(self, files: list[DataFileFacts], query: str = "") -> None:
        self.files, self.query = files, query


class _Writer:
    """Writes files in tasks, and commits them in the driver's side."""

    def __init__(self, lake: LakeSettings, table: str, where: Target) -> None:
        self._lake, self._table, self._where = lake, table, where
        self._label = f"w-{uuid.uuid4().hex[:12]}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Runs on an executor."""
        from pyspark import TaskContext  # noqa: PLC0415 - there is none elsewhere

        context = TaskContext.get()
        query = "" if context is None else context.getLocalProperty(_QUERY) or ""
        return RowsWritten(RowsTask(self._where, self._label).write(iterator).files, query)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        paths = [facts.path for each in _written(messages) for facts in each.files]
        delete_files(file_io(self._where), paths)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[RowsWritten]:
    return [each for each in messages if isinstance(each, RowsWritten)]


class TableBatchWriter(_Writer, DataSourceArrowWriter):
    """One batch, all or nothing; written again by its user, it counts again."""

    def __init__(self, lake: LakeSettings, table: str, where: Target, overwrite: bool) -> None:
        super().__init__(lake, table, where)
        self._overwrite = overwrite

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = [facts for each in _written(messages) for facts in each.files]
        if files or self._overwrite:
            found = open_table(self._lake, self._table)
            replaces = all_files if self._overwrite else None
            commit_rows(found, None, files, replaces)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(messages)


class QueryWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming query's batches, each of which counts once."""

    def __init__(
        self, lake: LakeSettings, table: str, where: Target, others: frozenset[str]
    ) -> None:
        super().__init__(lake, table, where)
        self._others = others
        """Writers whose batches the table has."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(messages)
        files = [facts for each in written for facts in each.files]
        if not files:
            return
        writer = f"query {written[0].query}"
        if batchId == 0 and any(each.startswith("query ") for each in self._others - {writer}):
            raise Conflict(
                f"table {self._lake.namespace}.{self._table} has batches of another streaming "
                "query: if that was this one, its checkpoint is gone and its whole history would "
                "be appended again; if several queries write into the table, say so with "
                f".option('{BESIDE}', 'true')"
            )
        commit_rows(open_table(self._lake, self._table), BatchMark(writer, batchId), files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(messages)
