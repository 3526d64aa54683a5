"""Dead letters: a table of the records whose value the typed columns refused, and why.

A record is in the stream's table whatever its value is; the reason is in its column ``rejected``.
This table is derived from that one, so a record is in it once if it is in that one. Manifests
count the rejected rows of each file, so files without any are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nexo.lake.catalog import Lake
from nexo.lake.derived import derive
from nexo.lake.derived.derive import DeriveStep
from nexo.lake.files import DataFileFacts
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.ordered import rows_in_order
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.tables import DEAD_LETTERS, StreamId, offsets_of
from nexo.lake.typed.columns import REJECTED

if TYPE_CHECKING:
    from pyiceberg.table import Table

LETTERS = ROWS.append(pa.field("reason", pa.string()))
"""A refused record as it was published, and why it was refused."""
_SHOWN = pa.schema([LETTERS.field(name) for name in ("offset", "timestamp", "reason")])
_REFUSED = ROWS.append(pa.field(REJECTED, pa.string()))


def plan(lake: Lake, stream: StreamId) -> tuple[Table, list[DeriveStep]] | None:
    """The table of dead letters and the partitions that have new ones; None if none has."""
    source = lake.known(stream)
    if source is None or REJECTED not in source.schema().column_names:
        return None
    rejected_id = int(source.schema().find_field(REJECTED).field_id)
    table = lake.ensure(stream, LETTERS, DEAD_LETTERS)
    steps = derive.steps(source, table, lambda part: _refuses(part, rejected_id))
    due = [step for step in steps if step.added]
    return (table, due) if due else None


def _refuses(part: FileRange, rejected_id: int) -> bool:
    """Whether a file may have rejected rows; of Nexo's, those older than the column have none."""
    rows = (part.file.value_counts or {}).get(rejected_id)
    nulls = (part.file.null_value_counts or {}).get(rejected_id)
    return not part.is_ordered if rows is None else rows > 0 and nulls != rows


def run(step: DeriveStep) -> list[DataFileFacts]:
    """Write a partition's new dead letters; runs as one Spark task."""
    found = (rows.filter(pc.field(REJECTED).is_valid()) for rows in step.new_rows(_REFUSED))
    letters = (rows.rename_columns(LETTERS.names) for rows in found if rows.num_rows)
    return step.writer("dead").save(letters)


finish = derive.finish
"""Adds them and moves the table's offsets, in one commit."""


def count(lake: Lake, stream: StreamId) -> dict[int, int]:
    """How many a stream has, by partition."""
    table = lake.known(stream, DEAD_LETTERS)
    if table is None:
        return {}
    files = file_ranges(table)
    if all(part.is_ordered and not part.deletes for part in files):
        counts = dict[int, int]()
        for part in files:
            counts[part.partition] = counts.get(part.partition, 0) + part.file.record_count
        return counts
    return {
        partition: sum(rows.num_rows for rows in letters_in_order(table, partition, _SHOWN))
        for partition in offsets_of(table.properties)
    }


def letters_in_order(
    table: Table, partition: int, columns: pa.Schema, low: int = 0
) -> Iterator[pa.Table]:
    """A partition's letters from an offset on."""
    found = [each.source for each in file_ranges(table) if each.may_hold(partition)]
    return rows_in_order(table.io, found, partition, columns, low)


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """Where a refused record is, and why it was refused."""

    partition: int
    offset: int
    time_ms: int
    reason: str


def newest(table: Table, most: int) -> list[RefusedRecord]:
    """The newest letters of a table of them, newest first; reads the last file of a partition."""
    files = file_ranges(table)
    found: list[RefusedRecord] = []
    for partition in offsets_of(table.properties):
        holding = [each for each in files if each.may_hold(partition)]
        low = max((each.first for each in holding if each.is_ordered), default=0)
        for rows in letters_in_order(table, partition, _SHOWN, low):
            for row in rows.slice(max(rows.num_rows - most, 0)).to_pylist():
                time_ms = int(row["timestamp"].timestamp() * 1000)
                found.append(RefusedRecord(partition, row["offset"], time_ms, row["reason"]))
    return sorted(found, key=lambda letter: letter.time_ms, reverse=True)[:most]
