"""Key compaction: a table of the newest record per key, kept up step by step (SPEC I1, I2).

A step reads the table and what is new since the last step. It reads keys and offsets first; values
are read only where a newest record is, and never aggregated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nexo.lake.catalog import Lake
from nexo.lake.derived import derive
from nexo.lake.derived.derive import DeriveStep
from nexo.lake.files import DataFileFacts
from nexo.lake.rows import ROWS, chunked
from nexo.lake.tables import NEWEST, StreamId

if TYPE_CHECKING:
    from pyiceberg.table import Table

FOLD_ROWS = 4_000_000
"""Rows read before older ones of the same key are dropped, so that distinct keys bound memory."""
_PLACES = pa.schema([ROWS.field("offset"), ROWS.field("key")])


def plan(lake: Lake, stream: StreamId) -> tuple[Table, list[DeriveStep]]:
    """The table of the newest records, and what it lacks."""
    table, source = lake.ensure(stream, ROWS, NEWEST), lake.known(stream)
    return table, derive.steps(source, table) if source is not None else []


def run(step: DeriveStep) -> list[DataFileFacts]:
    """Write the partition's newest records; runs as one Spark task."""
    picked = (batch for rows in _picked(step) for batch in rows.to_batches())
    return step.writer("latest").save(chunked(picked))


def _picked(step: DeriveStep) -> Iterator[pa.Table]:
    """The newest row per key without tombstones, and all rows without a key, by offset."""
    offsets = _survivors(step.rows(_PLACES))
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


def _survivors(places: Iterable[pa.Table]) -> pa.Array:
    """The offsets of the newest record of each key and of all without one, in order."""
    newest, keyless = _PLACES.empty_table(), list[pa.ChunkedArray]()
    waiting: list[pa.Table] = []
    count = 0
    for rows in places:
        if rows.column("key").null_count:
            keyless.append(rows.column("offset").filter(pc.is_null(rows.column("key"))))
        waiting.append(rows.filter(pc.field("key").is_valid()))
        count += rows.num_rows
        if count >= FOLD_ROWS:
            newest, waiting, count = _folded([newest, *waiting]), [], 0
    newest = _folded([newest, *waiting])
    chunks = [*newest.column("offset").chunks, *(c for column in keyless for c in column.chunks)]
    found = pa.chunked_array(chunks, pa.int64()).combine_chunks()
    return found.take(pc.sort_indices(found))


def _folded(places: Sequence[pa.Table]) -> pa.Table:
    """The last offset of each key."""
    found = pa.concat_tables(places).group_by("key").aggregate([("offset", "max")])
    return pa.table({"offset": found.column("offset_max"), "key": found.column("key")})


def finish(
    table: Table, steps: Sequence[DeriveStep], written: Sequence[Sequence[DataFileFacts]]
) -> Table:
    """Replace the partitions' files and move the offsets, in one commit."""
    kept = {file.path for step in steps for file in step.kept}
    return derive.finish(table, steps, written, sorted(kept))
