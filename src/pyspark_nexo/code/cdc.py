"""AUTO CDC flows: a stream of changes becomes a table of the newest rows, or of all versions.

A batch is made into events and kept in the table's ``__changes``, once; there it waits to be merged
by buckets of the key, on the executors if it is large (`pyspark_nexo.code.merging`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nexo.lake.catalog import Lake
from nexo.lake.changes.events import DELETED, SEEN_MS, SEQUENCE, UNKNOWN
from nexo.lake.changes.keyed import BUCKETS, ensure_keyed, row_columns
from nexo.lake.changes.merge import KeyedTable
from nexo.lake.changes.terms import KeyTerms
from nexo.lake.once import BatchMark
from nexo.lake.typed.debezium import OP, UNKNOWN_COLUMNS
from nexo.lake.user_tables import TableShape, ensure_user_table
from pyspark_nexo.code.definitions import ChangeRules, FlowDefinition, OutputDefinition, code_error
from pyspark_nexo.code.merging import Merger
from pyspark_nexo.code.writers import LETTERS_SUFFIX, BatchOutcome, check_same
from pyspark_nexo.tables.writing import (
    BROKEN,
    LETTERS,
    REFUSED,
    arrow_columns,
    commit_rows,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS_PROPERTY = "nexo.buckets"
"""A property of a table: how many buckets it has."""


@dataclass(frozen=True, slots=True)
class ChangeShape:
    """What a flow's changes make of a table."""

    columns: pa.Schema
    """Of the rows, without their place in the order."""
    sequence: pa.DataType
    terms: KeyTerms

    @property
    def shown(self) -> pa.Schema:
        """The table's columns."""
        return row_columns(self.columns, self.sequence, history=self.terms.history)


def change_shape(frame: DataFrame, flow: FlowDefinition) -> ChangeShape:
    """The table that a flow's changes are applied to."""
    rules = _rules(flow)
    names = _chosen(frame.columns, rules, flow)
    keys = _spelled(rules.keys, names, flow, "key")
    columns = arrow_columns(frame.select(*(_column(name) for name in names)).schema, flow.target)
    sequence = arrow_columns(
        frame.selectExpr(f"{rules.sequence_by} as s").schema, flow.target
    ).field("s")
    history = rules.scd_type == 2
    terms = KeyTerms(tuple(keys), history, tuple(_tracked(names, keys, rules, flow)))
    return ChangeShape(columns, sequence.type, terms if history else KeyTerms(tuple(keys)))


def _rules(flow: FlowDefinition) -> ChangeRules:
    assert flow.changes is not None, "a flow of changes has rules"
    return flow.changes


def _chosen(names: Sequence[str], rules: ChangeRules, flow: FlowDefinition) -> list[str]:
    """The columns of the rows, in the order of the changes'."""
    names = [name for name in names if name != UNKNOWN_COLUMNS]
    if rules.columns is not None:
        return _spelled(rules.columns, names, flow, "column")
    left_out = set(_spelled(rules.except_columns or (), names, flow, "column"))
    return [name for name in names if name not in left_out]


def _tracked(
    names: Sequence[str], keys: Sequence[str], rules: ChangeRules, flow: FlowDefinition
) -> list[str]:
    """The columns whose change begins a version: all but the key and the place in the order."""
    if rules.track is not None:
        return _spelled(rules.track, names, flow, "column")
    apart = {*keys, *_spelled(rules.track_except or (), names, flow, "column")}
    place = rules.sequence_by.strip("` ").lower()
    return [name for name in names if name not in apart and name.lower() != place]


def _spelled(
    wanted: Iterable[str], names: Sequence[str], flow: FlowDefinition, what: str
) -> list[str]:
    """Names as the changes have them; SQL ignores case."""
    known = {name.lower(): name for name in names}
    found = []
    for each in wanted:
        plain = each.strip("` ")
        if plain.lower() not in known:
            raise code_error(
                flow.place, f"there is no {what} {plain!r}: known are {', '.join(names)}"
            )
        found.append(known[plain.lower()])
    return found


# -- the table -------------------------------------------------------------------------


def open_keyed(
    lake: Lake, output: OutputDefinition, shape: ChangeShape, layout: TableShape
) -> KeyedTable:
    """The table and those beside it, made if missing."""
    if output.cluster_by:
        raise code_error(output.place, "a table with AUTO CDC is sorted by its keys")
    text = str(layout.properties.get(BUCKETS_PROPERTY, BUCKETS))
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise code_error(output.place, f"{BUCKETS_PROPERTY} is a number from 1, not {text!r}")
    return ensure_keyed(
        lake, output.name, shape.columns, shape.sequence, shape.terms, layout, int(text)
    )


# -- batches ---------------------------------------------------------------------------


@dataclass(slots=True)
class ChangesWriter:
    """Applies the batches of a flow to its table."""

    lake: Lake
    output: OutputDefinition
    flow: FlowDefinition
    layout: TableShape
    merger: Merger
    checkpoint: str | None = None
    """What the table said of its checkpoints when the flow began."""

    def write(self, frame: DataFrame, writer: str, number: int) -> BatchOutcome:
        """A batch that is there already is only merged, if it is time."""
        shape = change_shape(frame, self.flow)
        keyed = open_keyed(self.lake, self.output, shape, self.layout)
        check_same(keyed.rows, self.checkpoint)
        check_same(keyed.changes, self.checkpoint)
        letters = ensure_user_table(self.lake, self.flow.target + LETTERS_SUFFIX, LETTERS)
        now_ms = time.time_ns() // 1_000_000
        written = write_rows(
            events_of(frame, self.flow, shape, now_ms),
            keyed.changes,
            flow=self.flow.name,
            letters=letters,
        )
        mark = BatchMark(writer, number)
        if written.letters:
            commit_rows(letters, mark, written.letters)
        is_new = bool(written.files) and commit_rows(keyed.changes, mark, written.files)
        self.merger.took()
        broken = dict(written.broken)
        return BatchOutcome(written.rows, written.dropped, broken, is_new, keyed.rows)


def events_of(frame: DataFrame, flow: FlowDefinition, shape: ChangeShape, now_ms: int) -> DataFrame:
    """A batch as events; those without a key or a place are refused."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - slow to import

    rules = _rules(flow)
    opened = {OP, UNKNOWN_COLUMNS} <= set(frame.columns)
    empties = f.col(OP) == "t" if opened else f.lit(False)
    deletes = f.expr(rules.apply_as_deletes) if rules.apply_as_deletes else f.lit(False)
    ends = f.coalesce(deletes, f.lit(False)) | f.coalesce(empties, f.lit(False))
    sequence = f.expr(rules.sequence_by)
    keyless = _any([_column(name).isNull() for name in shape.terms.keys]) & ~f.coalesce(
        empties, f.lit(False)
    )
    reasons: list[Column] = [
        f.when(keyless, f.lit("the key is null")),
        f.when(sequence.isNull(), f.lit("the sequence is null")),
    ]
    row = f.to_json(f.struct(*(_column(name) for name in frame.columns)))
    unknown: Any = _column(UNKNOWN_COLUMNS) if opened else f.lit(None).cast("array<string>")
    own = [
        _column(name).alias(name)
        if name in shape.terms.keys
        else f.when(~ends, _column(name)).alias(name)
        for name in shape.columns.names
    ]
    found = frame.select(
        *own,
        sequence.alias(SEQUENCE),
        ends.alias(DELETED),
        unknown.alias(UNKNOWN),
        f.lit(now_ms).cast("bigint").alias(SEEN_MS),
        f.array_compact(f.array(*reasons)).alias(BROKEN),
        row.alias(REFUSED),
    )
    kept = f.size(_column(BROKEN)) == 0
    return found.withColumn(REFUSED, f.when(~kept, _column(REFUSED)))


def _any(conditions: Sequence[Column]) -> Column:
    first, *others = conditions
    for each in others:
        first = first | each
    return first


def _column(name: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - slow to import

    return f.col("`" + name.replace("`", "``") + "`")
