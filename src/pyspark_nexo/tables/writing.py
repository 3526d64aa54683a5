"""Writing a DataFrame's rows into a table of users: files in tasks, one commit in the driver.

A commit counts once (`nexo.lake.once`), whatever order a repeated batch has its rows in. If a job
fails, what its other tasks wrote is deleted.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import InvalidInput
from nexo.lake.files import DataFileFacts, FileWriter, Target, target
from nexo.lake.maintenance.sweep import delete_named
from nexo.lake.once import BatchMark, commit_anyway, commit_once
from nexo.lake.paths import delete_files
from nexo.lake.rows import chunked
from nexo.lake.snapshot import TableChange
from nexo.lake.user_tables import SORT
from nexo.lake.writing.modes import ReplacedFiles
from pyspark_nexo.failures import plain_errors

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BROKEN, REFUSED = "nexo: broken", "nexo: refused"
"""Columns beside a table's own: the names of the expectations that a row breaks, and what is kept
of a row that is not to be in the table."""
LETTERS = pa.schema(
    [
        pa.field("row", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("flow", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of a table's dead letters: a refused row as JSON, and the expectations it broke."""


@dataclass(slots=True)
class WrittenRows:
    """What a job wrote; nothing of it counts before a commit."""

    files: list[DataFileFacts] = field(default_factory=list)
    letters: list[DataFileFacts] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    """How many rows broke each expectation."""

    @property
    def rows(self) -> int:
        return sum(facts.count for facts in self.files)

    @property
    def dropped(self) -> int:
        return sum(facts.count for facts in self.letters)

    def discard(self, table: Table, letters: Table | None) -> None:
        """Delete the files, which are not to count."""
        delete_files(table.io, [facts.path for facts in self.files])
        if letters is not None:
            delete_files(letters.io, [facts.path for facts in self.letters])


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Writes the rows of one task; returns what it wrote, pickled."""

    target: Target
    label: str
    flow: str = ""
    letters: Target | None = None
    """Where refused rows go."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor; a failure leaves no file."""
        found = self.write(batches)
        yield pa.RecordBatch.from_pydict({"facts": [pickle.dumps(found)]})

    def write(self, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write all rows."""
        found = WrittenRows()
        writers = [FileWriter(self.target, self.label)]
        if self.letters is not None:
            writers.append(FileWriter(self.letters, self.label))
        try:
            for rows in chunked(batches):
                self._add(rows, writers, found.broken)
            found.files = writers[0].close()
            found.letters = writers[1].close() if len(writers) > 1 else []
        except BaseException:
            for writer in writers:
                writer.discard()
            raise
        return found

    def _add(self, rows: pa.Table, writers: Sequence[FileWriter], broken: Counter[str]) -> None:
        import pyarrow.compute as pc  # noqa: PLC0415 - slow, and only some tables need it

        if BROKEN not in rows.column_names:
            writers[0].add(rows)
            return
        names = rows.column(BROKEN)
        broken.update(pc.list_flatten(names).to_pylist())
        refused = rows.column(REFUSED)
        kept = rows.filter(pc.is_null(refused)).drop_columns([BROKEN, REFUSED])
        if kept.num_rows:
            writers[0].add(kept)
        gone = rows.filter(pc.is_valid(refused))
        if gone.num_rows and len(writers) > 1:
            writers[1].add(self._letters(gone))

    def _letters(self, gone: pa.Table) -> pa.Table:
        from datetime import UTC, datetime  # noqa: PLC0415 - only with refused rows

        reasons = [", ".join(names) for names in gone.column(BROKEN).to_pylist()]
        count, now = gone.num_rows, datetime.now(UTC)
        columns = [gone.column(REFUSED), reasons, [self.flow] * count, [now] * count]
        return pa.table(columns, schema=LETTERS)


def write_rows(
    frame: DataFrame, table: Table, *, flow: str = "", letters: Table | None = None
) -> WrittenRows:
    """Write a frame's rows as files of a table, in one Spark job; nothing is committed."""
    label = f"w-{uuid.uuid4().hex[:12]}"
    into = None if letters is None else target(letters)
    task = RowsTask(target(table), label, flow, into)
    if sort := json.loads(table.properties.get(SORT, "[]")):
        frame = frame.sortWithinPartitions(*sort)
    try:
        with plain_errors():
            parts = frame.mapInArrow(task, "facts binary").collect()
    except BaseException:
        for each in (table, letters):
            if each is not None:
                delete_named(each, label)
        raise
    found = WrittenRows()
    for part in parts:
        one: WrittenRows = pickle.loads(part.facts)
        found.files += one.files
        found.letters += one.letters
        found.broken += one.broken
    return found


def commit_rows(
    table: Table,
    mark: BatchMark | None,
    files: Sequence[DataFileFacts],
    replaces: ReplacedFiles | None = None,
    properties: Mapping[str, str] | None = None,
) -> bool:
    """Make files part of a table; returns whether it changed: not if it has that batch.

    Without a ``mark`` the write counts whenever it is made.
    """
    change = TableChange(added=files, properties=properties or {})
    if mark is None:
        commit_anyway(table, change, replaces)
        return True
    return commit_once(table, mark.writer, mark.number, change, replaces)[1]


def arrow_columns(schema: StructType, table: str) -> pa.Schema:
    """A frame's columns as Arrow has them; `InvalidInput` for types that a lake does not have."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - slow to import
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - as the next

    seen = Counter(name.lower() for name in schema.names)
    if twice := [name for name, count in seen.items() if count > 1]:
        raise InvalidInput(f"table {table!r} would have two columns {twice[0]!r}: rename one")
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(f"table {table!r} cannot be kept in the lake: {error}") from None
