"""Ranges of offsets: resolved against what the broker holds, cut into tasks, read as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nexo.errors import InvalidOption, OffsetOutOfRange
from nexo.lake.plan import Held
from nexo.lake.rows import chunked, rows
from pyspark_nexo.broker import StreamBroker, held
from pyspark_nexo.options import Position, SourceOptions

SMALL_ROWS = 2_048
"""Arrow batches below this are put together before they go to the JVM."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition from ``first`` up to before ``end``."""

    partition: int
    first: int
    end: int


def parts(options: SourceOptions) -> dict[int, Held]:
    """What the broker holds of the partitions that were asked for."""
    with StreamBroker(options.url) as broker:
        found = held(broker.describe(options.stream))
    wanted = range(len(found)) if options.partitions is None else options.partitions
    for partition in wanted:
        _check_partition(options.stream, partition, len(found))
    return {partition: found[partition] for partition in wanted}


def _check_partition(stream: str, partition: int, count: int) -> None:
    if not 0 <= partition < count:
        raise InvalidOption(
            f"partition {partition} does not exist: stream {stream!r} has {count}, from 0"
        )


def resolve(options: SourceOptions, at: Position, held_by: Mapping[int, Held]) -> dict[int, int]:
    """A position as an offset for every partition; partitions it leaves out begin at the start."""
    if isinstance(at, dict):
        for partition in at:
            if partition not in held_by:
                raise InvalidOption(
                    f"offsets name partition {partition}, which is not read from stream "
                    f"{options.stream!r}"
                )
    found = {}
    for partition, part in held_by.items():
        match at:
            case "earliest":
                offset = part.earliest
            case "latest":
                offset = part.stable
            case dict():
                offset = at.get(partition, part.earliest)
            case _:
                offset = int(at)
        found[partition] = _checked(options.stream, partition, offset, part)
    return found


def _checked(stream: str, partition: int, offset: int, part: Held) -> int:
    if not part.earliest <= offset <= part.stable:
        raise OffsetOutOfRange(
            f"stream {stream!r}, partition {partition}: offset {offset} is outside "
            f"{part.earliest}..{part.stable}"
        )
    return offset


def cut(starts: Mapping[int, int], ends: Mapping[int, int], rows_per_task: int) -> list[Range]:
    """Ranges between two sets of offsets, none longer than a task should be."""
    return [
        Range(partition, first, min(first + rows_per_task, end))
        for partition, end in ends.items()
        for first in range(starts.get(partition, 0), end, rows_per_task)
    ]


def read(options: SourceOptions, part: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range as Arrow batches of the columns asked for."""
    with StreamBroker(options.url) as broker:
        found = broker.read(options.stream, part.partition, part.first, part.end)
        batches = (rows(batch, part.partition, part.first, part.end) for batch in found)
        for table in chunked(batches):
            kept = _within(table, options).select(list(options.columns))
            yield from _put_together(kept)


def _put_together(table: pa.Table) -> list[pa.RecordBatch]:
    """Batches large enough for the JVM; those that are come through without a copy."""
    found: list[pa.RecordBatch] = table.to_batches()
    if len(found) * SMALL_ROWS > table.num_rows:
        found = table.combine_chunks().to_batches()
    return found


def _within(table: pa.Table, options: SourceOptions) -> pa.Table:
    if options.from_ms is not None:
        table = table.filter(pc.greater_equal(_micros(table), options.from_ms * 1000))
    if options.until_ms is not None:
        table = table.filter(pc.less(_micros(table), options.until_ms * 1000))
    return table


def _micros(table: pa.Table) -> pa.ChunkedArray:
    return table.column("timestamp").cast(pa.int64())


def limited(
    starts: Mapping[int, int], ends: Mapping[int, int], max_rows: int | None
) -> dict[int, int]:
    """Ends at most ``max_rows`` behind the starts in all, shared out by how much there is."""
    wanted = {partition: ends[partition] - starts.get(partition, 0) for partition in ends}
    total = sum(wanted.values())
    if max_rows is None or total <= max_rows:
        return dict(ends)
    found = {
        partition: starts.get(partition, 0) + rows * max_rows // total
        for partition, rows in wanted.items()
    }
    return _not_stuck(starts, ends, found, max_rows)


def _not_stuck(
    starts: Mapping[int, int], ends: Mapping[int, int], found: dict[int, int], max_rows: int
) -> dict[int, int]:
    """Hand out what rounding left over, so that a small limit still moves on."""
    left = max_rows - sum(found[partition] - starts.get(partition, 0) for partition in found)
    for partition, end in found.items():
        step = min(left, ends[partition] - end)
        found[partition] = end + step
        left -= step
    return found
