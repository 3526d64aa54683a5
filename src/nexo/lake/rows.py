"""Records as rows of a table, alike in lake files and in Spark.

Types are those that Spark takes without conversion: microseconds in UTC, 32-bit lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import pyarrow as pa

from nexo.batch import Batch
from nexo.lake.arrow import to_arrow
from nexo.lake.own_columns import ROWS

DAY_US = 86_400_000_000

CHUNK_ROWS = 65_536
"""Rows per Arrow batch that readers yield: enough to make the cost per batch small."""
CHUNK_BYTES = 8 * 1024**2
"""…unless they are large: a chunk is a row group of a file, which is what replay reads at once."""


def rows(batch: Batch, partition: int, first: int, end: int) -> pa.RecordBatch:
    """The records of ``batch`` with offsets from ``first``, below ``end``."""
    start, stop = batch.index_of(first), batch.index_of(end)
    found = to_arrow(batch)
    if stop - start < len(batch):
        found = found.slice(start, max(stop - start, 0))
    columns = [
        partitions(partition, found.num_rows),
        found.column("offset"),
        found.column("timestamp").cast(ROWS.field("timestamp").type),
        found.column("key"),
        found.column("value"),
        texts(found.column("headers")),
        found.column("value_type").cast(pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def texts(headers: pa.Array) -> pa.Array:
    """Headers as text; clients may publish anything, so bytes that are not UTF-8 are replaced."""
    found = headers.view(pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        shown = (each and each.decode(errors="replace") for each in headers.to_pylist())
        return pa.array(shown, pa.string())
    return found


@cache
def _many(partition: int) -> pa.Array:
    return pa.repeat(pa.scalar(partition, pa.int32()), CHUNK_ROWS)


def partitions(partition: int, count: int) -> pa.Array:
    """The column of rows that are all of one partition."""
    if count <= CHUNK_ROWS:
        return _many(partition).slice(0, count)
    return pa.repeat(pa.scalar(partition, pa.int32()), count)


def chunked(batches: Iterable[pa.RecordBatch], chunk_rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Small batches joined, so that later steps do not pay per batch."""
    kept: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        kept.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= chunk_rows or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(kept)
            kept, count, size = [], 0, 0
    if count:
        yield pa.Table.from_batches(kept)
