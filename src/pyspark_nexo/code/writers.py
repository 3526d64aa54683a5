"""What a flow does with a batch of rows: append them to a table, or replace what a view holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nexo.errors import Conflict, DoesNotFit
from nexo.lake.catalog import Lake
from nexo.lake.folder.swapping import CHECKPOINT
from nexo.lake.once import BatchMark
from nexo.lake.tables import USER
from nexo.lake.user_tables import ensure_user_table, get_user_table
from nexo.lake.writing.modes import all_files
from nexo.pipelines import Expectation
from pyspark_nexo.tables.writing import (
    BROKEN,
    LETTERS,
    REFUSED,
    WrittenRows,
    commit_rows,
    write_rows,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

LETTERS_SUFFIX = "_dead_letters"


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch."""

    rows: int = 0
    dropped: int = 0
    broken: Mapping[str, int] = field(default_factory=dict)
    is_new: bool = True
    """False if the table had it already."""
    table: Table | None = None
    """The table after it."""


class FlowWriter(Protocol):
    """Takes the batches of one flow.

    ``writer`` and ``number`` name the batch: the same ones come again, perhaps with the rows in
    another order, until Spark knows that the batch was taken. A batch counts once
    (`nexo.lake.once`).
    """

    def write(self, frame: DataFrame, writer: str, number: int) -> BatchOutcome: ...


def check_same(table: Table, checkpoint: str | None) -> None:
    """`Conflict` if a table was made anew since its flow began: it has the batch already."""
    if checkpoint is not None and table.properties.get(CHECKPOINT, "") != checkpoint:
        raise Conflict(
            f"table {table.properties.get(USER)!r} was made anew since the flow began: the flow "
            "begins again, from where the new table is"
        )


@dataclass(slots=True)
class AppendWriter:
    """Appends rows to a table, those that expectations refuse to its dead letters."""

    lake: Lake
    target: str
    flow: str
    expectations: Sequence[Expectation] = ()
    checkpoint: str | None = None
    """What the table said of its checkpoints when the flow began."""

    def write(self, frame: DataFrame, writer: str, number: int) -> BatchOutcome:
        """Both tables have the batch in the end: a commit that is repeated changes nothing."""
        table, letters = get_user_table(self.lake, self.target), self._letters()
        check_same(table, self.checkpoint)
        written = self.written(frame, table, letters)
        mark = BatchMark(writer, number)
        if letters is not None and written.letters:
            commit_rows(letters, mark, written.letters)
        is_new = bool(written.files) and commit_rows(table, mark, written.files)
        return outcome(table, written, is_new=is_new)

    def written(self, frame: DataFrame, table: Table, letters: Table | None) -> WrittenRows:
        """Files of a frame's rows; none is left if they are refused as a whole."""
        found = write_rows(
            with_expectations(frame, self.expectations), table, flow=self.flow, letters=letters
        )
        fatal = {each.name: each.condition for each in self.expectations if each.action == "fail"}
        broken = {name: count for name, count in found.broken.items() if name in fatal}
        if broken:
            found.discard(table, letters)
            name, count = next(iter(broken.items()))
            raise DoesNotFit(f"{count:,} rows break the expectation {name!r}: {fatal[name]}")
        return found

    def _letters(self) -> Table | None:
        if not any(each.action == "drop" for each in self.expectations):
            return None
        return ensure_user_table(self.lake, self.target + LETTERS_SUFFIX, LETTERS)


@dataclass(slots=True)
class ReplaceWriter:
    """Replaces all rows of a table in one commit."""

    append: AppendWriter
    properties: Mapping[str, str] = field(default_factory=dict)
    """Noted in the table with the rows."""

    def write(self, frame: DataFrame, writer: str, number: int) -> BatchOutcome:
        table = get_user_table(self.append.lake, self.append.target)
        written = self.append.written(frame, table, None)
        mark = BatchMark(writer, number)
        is_new = commit_rows(table, mark, written.files, all_files, self.properties)
        return outcome(table, written, is_new=is_new)


def outcome(table: Table, written: WrittenRows, *, is_new: bool) -> BatchOutcome:
    return BatchOutcome(written.rows, written.dropped, dict(written.broken), is_new, table)


def with_expectations(frame: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """A frame with, beside each row, the expectations that it breaks."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - slow to import

    if not expectations:
        return frame
    checks = [
        f.when(~f.coalesce(f.expr(f"({each.condition})"), f.lit(False)), f.lit(each.name))
        for each in expectations
    ]
    drops = [each.name for each in expectations if each.action == "drop"]
    row = f.to_json(f.struct(*(f.col(f"`{name}`") for name in frame.columns)))
    names = f.array_compact(f.array(*checks))
    beside = frame.withColumn(BROKEN, names)
    refused = f.arrays_overlap(f.col(f"`{BROKEN}`"), f.array(*(f.lit(name) for name in drops)))
    none = f.lit(None).cast("string")
    return beside.withColumn(REFUSED, f.when(refused, row) if drops else none)
