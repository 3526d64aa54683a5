"""Key compaction: a table of the newest record per key, kept up step by step (SPEC I1, I2).

Only what is new since the last step and the table itself are read. Values are never aggregated:
the newest offset per key is found first, and rows are picked by offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nexo.lake.catalog import Lake, StreamId
from nexo.lake.commit import Taken, commit, offsets_of
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io, target
from nexo.lake.read import Span, row_groups, spans
from nexo.lake.rows import CHUNK_ROWS, ROWS
from nexo.lake.schema import raw_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table

SUFFIX, KIND_LATEST = "_latest", "latest"


@dataclass(frozen=True, slots=True)
class Compaction:
    """One partition's step: everything below ``end``, of which ``after`` was compacted before."""

    stream: str
    partition: int
    after: int | None
    end: int
    kept: Sequence[str]
    """Files that hold what earlier steps left."""
    added: Sequence[str]
    """Files that hold what came since; they may hold more."""
    target: Target


def plan(lake: Lake, stream: StreamId) -> tuple[Table, list[Compaction]]:
    """The table of the newest records, and what it lacks."""
    source = lake.get(stream.name)
    table = lake.ensure(stream, raw_schema, SUFFIX, KIND_LATEST)
    done, ends, where = offsets_of(table.properties), offsets_of(source.properties), target(table)
    old, new = spans(table), spans(source)
    steps = []
    for partition, end in ends.items():
        after = done.get(partition)
        if end > (after or 0):
            added = [s.path for s in _of(new, partition) if s.last >= (after or 0)]
            kept = [span.path for span in _of(old, partition)]
            steps.append(Compaction(stream.name, partition, after, end, kept, added, where))
    return table, steps


def _of(found: Sequence[Span], partition: int) -> Iterator[Span]:
    return (span for span in found if span.partition == partition)


def run(step: Compaction) -> list[DataFileFacts]:
    """Write the partition's newest records; runs as one Spark task."""
    writer = FileWriter(step.target, step.partition, f"{step.partition:04}-{step.end:016}-latest")
    try:
        rows = newest(_rows(step))
        for at in range(0, rows.num_rows, CHUNK_ROWS):
            writer.add(rows.slice(at, CHUNK_ROWS))
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _rows(step: Compaction) -> pa.Table:
    io = file_io(step.target)
    low, high = step.after or 0, step.end
    kept = [rows for path in step.kept for rows in row_groups(io, path, ROWS)]
    added = [
        rows.filter((pc.field("offset") >= low) & (pc.field("offset") < high))
        for path in step.added
        for rows in row_groups(io, path, ROWS)
    ]
    return pa.concat_tables([ROWS.empty_table(), *kept, *added])


def newest(rows: pa.Table) -> pa.Table:
    """The newest row per key without tombstones, and all rows without a key, by offset."""
    keys, offsets = rows.column("key"), rows.column("offset")
    places = pa.table({"key": keys, "offset": offsets})
    last = places.group_by("key").aggregate([("offset", "max")]).column("offset_max")
    wins = pc.and_(
        pc.is_in(offsets, value_set=last.combine_chunks()), pc.is_valid(rows.column("value"))
    )
    return rows.filter(pc.or_(pc.is_null(keys), wins)).sort_by("offset")


def finish(
    table: Table, steps: Sequence[Compaction], written: Sequence[Sequence[DataFileFacts]]
) -> Table:
    """Replace the partitions' files and move the offsets, in one commit."""
    taken = [
        Taken(step.partition, step.after, step.end, files)
        for step, files in zip(steps, written, strict=True)
    ]
    return commit(table, taken, replaced=[path for step in steps for path in step.kept])
