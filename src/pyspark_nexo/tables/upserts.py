"""``df.write.format("nexo").option("mode", "upsert")``: rows by key, the newest of each.

Tasks keep their rows in the table's ``__changes``; the commit makes them count, once for each batch
of a streaming query, and merges them (`nexo.lake.changes.merge`): those of a query with the option
``every`` only when it is worth it, or when they have waited so long. Without a sequence, a row that
is written later is newer; of rows of one batch with the same key, any may win.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from nexo.errors import InvalidInput, InvalidOption, NotFound
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.changes.events import DELETED, SEEN_MS, SEQUENCE, event_schema, shaped
from nexo.lake.changes.keyed import BUCKETS, ensure_keyed, find_keyed
from nexo.lake.changes.merge import merge
from nexo.lake.changes.terms import KeyTerms
from nexo.lake.changes.waiting import EVERY, waiting
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io, target
from nexo.lake.once import BatchMark, commit_once
from nexo.lake.paths import delete_files
from nexo.lake.progress import now_ms
from nexo.lake.rows import chunked
from nexo.lake.settings import LakeSettings, servers_lake
from nexo.lake.snapshot import TableChange
from nexo.lake.user_tables import TableShape
from nexo.options.units import millis
from pyspark_nexo.options import SPARKS_OWN
from pyspark_nexo.tables.writing import arrow_columns

UPSERT = "upsert"
_KNOWN = ("table", "mode", "key", "sequence", "buckets", "every", "lake", "url")
_QUERY = "sql.streaming.queryId"


class ChangesWritten(WriterCommitMessage):
    """The files of one task, and the streaming query that they are of."""

    def __init__(self, files: list[DataFileFacts], query: str) -> None:
        self.files, self.query = files, query


def upsert_target(options: Mapping[str, str], schema: StructType, overwrite: bool) -> UpsertTarget:
    """What writes rows by key, by the options of a write."""
    if options["mode"].lower() != UPSERT:
        raise InvalidOption(f'mode {options["mode"]!r}: rows of a table are written as "upsert"')
    if overwrite:
        raise InvalidOption("an upsert replaces rows by key: write with .mode('append')")
    return UpsertTarget.open(options, schema)


@dataclass(frozen=True, slots=True)
class UpsertTarget:
    """The table that rows are written to, as tasks have it."""

    lake: LakeSettings
    table: str
    keys: tuple[str, ...]
    sequence: str | None
    changes: Target
    events: pa.Schema
    label: str
    every_ms: int = 0
    """How long rows of a streaming query may wait to be merged."""

    @classmethod
    def open(cls, options: Mapping[str, str], schema: StructType) -> UpsertTarget:
        """The table of these options, made if missing."""
        for name in options:
            if name.lower() not in {*_KNOWN, *SPARKS_OWN}:
                raise InvalidOption(f"unknown option {name!r}; known are {', '.join(_KNOWN)}")
        table = options.get("table", "")
        keys = tuple(each.strip() for each in options.get("key", "").split(",") if each.strip())
        if not table or not keys:
            raise InvalidOption('mode "upsert" needs the options table and key, such as "id"')
        columns, sequence = arrow_columns(schema, table), options.get("sequence")
        if sequence is not None and sequence not in columns.names:
            raise InvalidOption(f"sequence: there is no column {sequence!r}")
        kind = None if sequence is None else columns.field(sequence).type
        lake, every = _lake(options), options.get("every", "0s")
        every_ms, shape = millis(every, "every"), TableShape(properties={EVERY: every})
        keyed = ensure_keyed(
            Lake(lake), table, columns, kind, KeyTerms(keys), shape, _buckets(options)
        )
        events = event_schema(columns, kind or pa.int64())
        label = f"w-{uuid.uuid4().hex[:12]}"
        return cls(lake, table, keys, sequence, target(keyed.changes), events, label, every_ms)

    def write(self, batches: Iterator[pa.RecordBatch]) -> ChangesWritten:
        """Runs on an executor; a failure leaves no file."""
        from pyspark import TaskContext  # noqa: PLC0415 - there is none elsewhere

        context = TaskContext.get()
        query = "" if context is None else context.getLocalProperty(_QUERY) or ""
        at_ms = now_ms()
        out = FileWriter(self.changes, self.label)
        made = (self._events(rows, at_ms) for rows in chunked(batches))
        return ChangesWritten(out.save(made), query)

    def _events(self, rows: pa.Table, at_ms: int) -> pa.Table:
        for key in self.keys:
            if rows.column(key).null_count:
                raise InvalidInput(f"column {key!r} of the key of table {self.table!r} is null")
        given = {DELETED: False, SEEN_MS: at_ms}
        if self.sequence is None:
            return shaped(rows, self.events, **given, **{SEQUENCE: 0})
        places = rows.column(self.sequence)
        if places.null_count or (
            pa.types.is_floating(places.type) and pc.any(pc.is_nan(places)).as_py()
        ):
            raise InvalidInput(f"column {self.sequence!r}, the sequence, is null or no number")
        return shaped(rows.append_column(SEQUENCE, places), self.events, **given)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], mark: BatchMark, every_ms: int = 0
    ) -> None:
        """Make what tasks wrote count, and merge it if it is time."""
        files = [facts for each in _written(messages) for facts in each.files]
        keyed = find_keyed(Lake(self.lake), self.table)
        if keyed is None:
            raise NotFound(f"table {self.table!r} was removed while rows were written to it")
        if files:
            commit_once(keyed.changes, mark.writer, mark.number, TableChange(added=files))
        if waiting(keyed).is_due(every_ms, now_ms()):
            merge(keyed)

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what tasks wrote."""
        paths = [facts.path for each in _written(messages) for facts in each.files]
        delete_files(file_io(self.changes), paths)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[ChangesWritten]:
    return [each for each in messages if isinstance(each, ChangesWritten)]


def _buckets(options: Mapping[str, str]) -> int:
    text = options.get("buckets", str(BUCKETS))
    if not text.isdecimal() or not int(text):
        raise InvalidOption(f"buckets is a number from 1, not {text!r}")
    return int(text)


def _lake(options: Mapping[str, str]) -> LakeSettings:
    if "lake" in options:
        return LakeSettings(Path(options["lake"]))
    with HotLog(options.get("url")) as broker:
        return servers_lake(broker.status())


class UpsertBatch(DataSourceArrowWriter):
    """One batch, all or nothing."""

    def __init__(self, where: UpsertTarget) -> None:
        self._where = where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ChangesWritten:
        """Runs on an executor."""
        return self._where.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._where.commit(messages, BatchMark(f"write {uuid.uuid4().hex}", 0))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._where.discard(messages)


class UpsertQuery(DataSourceStreamArrowWriter):
    """A streaming query's batches, each of which counts once."""

    def __init__(self, where: UpsertTarget) -> None:
        self._where = where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ChangesWritten:
        """Runs on an executor."""
        return self._where.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        query = next((each.query for each in _written(messages)), "")
        mark = BatchMark(f"query {query}", batchId)
        self._where.commit(messages, mark, self._where.every_ms)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._where.discard(messages)
