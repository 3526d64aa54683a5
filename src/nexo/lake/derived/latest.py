"""Key compaction: a table of the newest record per key, kept up step by step (SPEC I1, I2).

A step reads the table and what is new since the last step. It reads keys and offsets first; values
are read only where a newest record is, and never aggregated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nexo.batch.partitions import Growths
from nexo.lake.catalog import Lake
from nexo.lake.derived import derive
from nexo.lake.derived.derive import DeriveStep
from nexo.lake.files import DataFileFacts
from nexo.lake.own_columns import ROWS
from nexo.lake.rows import chunked
from nexo.lake.tables import NEWEST, StreamId, held_offsets

if TYPE_CHECKING:
    from pyiceberg.table import Table

FOLD_ROWS = 4_000_000
"""Rows read before older ones of the same key are dropped, so that distinct keys bound memory."""
_PLACES = pa.schema([ROWS.field("offset"), ROWS.field("key")])
_TIMED = pa.schema([ROWS.field("offset"), ROWS.field("timestamp"), ROWS.field("key")])


def plan(
    lake: Lake, stream: StreamId, growths: Growths | None = None, starts: Sequence[int] = ()
) -> tuple[Table, list[DeriveStep]]:
    """The table of the newest records, and what it lacks.

    After ``growths`` of the stream a key may have records in several partitions. Then they are
    taken era by era, and each of those partitions knows the others' keys. The broker has nothing
    below ``starts``, so what the source lacks of that never comes.
    """
    table, source = lake.ensure(stream, ROWS, NEWEST), lake.known(stream)
    if source is None:
        return table, []
    if not growths:
        return table, derive.steps(source, table)
    held = held_offsets(source)
    there = {number: max(end, *starts[number : number + 1], 0) for number, end in held.items()}
    there |= {n: start for n, start in enumerate(starts) if n not in held and start}
    ends = {number: min(end, growths.reached(number, there)) for number, end in held.items()}
    count = max([len(growths.ends[-1]), *(number + 1 for number in ends), len(starts)])

    def sharing(partition: int) -> list[int]:
        return [number for number in growths.sharing(partition, count) if number in ends]

    found = derive.steps(source, table, ends=ends, together=sharing)
    alone = {step.partition: replace(step, growths=growths) for step in found}
    return table, [
        replace(step, rivals=[alone[number] for number in sharing(step.partition)])
        for step in alone.values()
    ]


def run(step: DeriveStep) -> list[DataFileFacts]:
    """Write the partition's newest records; runs as one Spark task."""
    picked = (batch for rows in _picked(step) for batch in rows.to_batches())
    return step.writer("latest").save(chunked(picked))


def _picked(step: DeriveStep) -> Iterator[pa.Table]:
    """The newest row per key without tombstones, and all rows without a key, by offset."""
    newest, keyless = _newest(step)
    if step.rivals:
        newest = _unrivalled(step, newest)
    found = pa.chunked_array([*newest.column("offset").chunks, *keyless], pa.int64())
    offsets = found.combine_chunks()
    offsets = offsets.take(pc.sort_indices(offsets))
    ordered = memoryview(offsets.buffers()[1])[: 8 * len(offsets)].cast("q")

    def between(first: int, last: int) -> tuple[int, int]:
        return bisect_left(ordered, first), bisect_right(ordered, last)

    def any_between(first: int, last: int) -> bool:
        start, stop = between(first, last)
        return stop > start

    for rows in step.rows(ROWS, any_between):
        if not rows.num_rows:
            continue
        at = rows.column("offset")
        start, stop = between(at[0].as_py(), at[-1].as_py())
        survives = pc.is_in(at, value_set=offsets.slice(start, stop - start))
        lives = pc.or_(pc.is_null(rows.column("key")), pc.is_valid(rows.column("value")))
        yield rows.filter(pc.and_(survives, lives))


def _newest(step: DeriveStep) -> tuple[pa.Table, list[pa.Array]]:
    """The place of the newest record of each key, and the offsets of all records without one."""
    columns = _TIMED if step.growths else _PLACES
    newest, keyless = columns.empty_table(), list[pa.Array]()
    waiting: list[pa.Table] = []
    count = 0
    for rows in step.rows(columns):
        if rows.column("key").null_count:
            offsets = rows.column("offset").filter(pc.is_null(rows.column("key")))
            keyless += offsets.chunks
        waiting.append(rows.filter(pc.field("key").is_valid()))
        count += rows.num_rows
        if count >= FOLD_ROWS:
            newest, waiting, count = _folded([newest, *waiting]), [], 0
    return _folded([newest, *waiting]), keyless


def _folded(places: Sequence[pa.Table]) -> pa.Table:
    """The last offset of each key; in a partition, times do not fall."""
    rows = pa.concat_tables(places)
    others = [name for name in rows.column_names if name != "key"]
    found = rows.group_by("key").aggregate([(name, "max") for name in others])
    columns = {
        name: found.column("key" if name == "key" else f"{name}_max") for name in rows.column_names
    }
    return pa.table(columns)


_ORDER = ("era", "timestamp", "offset", "partition")


def _unrivalled(step: DeriveStep, newest: pa.Table) -> pa.Table:
    """The keys whose newest record is in this partition: by era, then by time."""
    rivals = [_placed(each, _newest(each)[0]) for each in step.rivals]
    every = pa.concat_tables([_placed(step, newest), *rivals])
    every = every.sort_by([(name, "ascending") for name in _ORDER])
    last = every.group_by("key", use_threads=False).aggregate(
        [("offset", "last"), ("partition", "last")]
    )
    mine = last.filter(pc.equal(last.column("partition_last"), step.partition))
    return pa.table({"offset": mine.column("offset_last")})


def _placed(step: DeriveStep, newest: pa.Table) -> pa.Table:
    assert step.growths is not None
    offsets, era = newest.column("offset"), pa.repeat(0, newest.num_rows)
    for border in step.growths.ends:
        least = border[step.partition] if step.partition < len(border) else 0
        era = pc.add(era, pc.greater_equal(offsets, least).cast(pa.int64()))
    partition = pa.repeat(pa.scalar(step.partition, pa.int64()), newest.num_rows)
    return newest.append_column("era", era).append_column("partition", partition)


def finish(
    table: Table, steps: Sequence[DeriveStep], written: Sequence[Sequence[DataFileFacts]]
) -> Table:
    """Replace the partitions' files and move the offsets, in one commit."""
    kept = {file.path for step in steps for file in step.kept}
    return derive.finish(table, steps, written, sorted(kept))
