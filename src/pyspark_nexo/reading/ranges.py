"""Ranges of offsets: resolved against what there is, cut into tasks, read as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from nexo.errors import InvalidOption, OffsetOutOfRange
from nexo.lake.own_columns import ROWS
from nexo.lake.rows import chunked, rows
from nexo.lake.typed.values import parsed
from nexo.protocol.stream import PartitionInfo, StreamInfo
from pyspark_nexo.options import ReadPosition, SourceOptions
from pyspark_nexo.reading.origins import RecordOrigin
from pyspark_nexo.reading.pushdown import EVERYTHING, NumberRange

SMALL_ROWS = 2_048
"""Arrow batches below this are joined before they are sent to the JVM."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Offsets of one partition from ``first``, below ``end``."""

    partition: int
    first: int
    end: int


def plan(
    options: SourceOptions, origin: RecordOrigin, within: Mapping[str, NumberRange]
) -> list[ReadRange]:
    """What a batch query reads: between its offsets and times, and ``within`` these ranges."""
    found = parts(options, origin.describe())
    limits = within.get("timestamp", EVERYTHING) & NumberRange(
        options.from_ms or 0, options.until_ms
    )
    ends = resolve(options, options.ending, found, "latest")
    starts = resolve(options, options.starting, found)
    _check_order(options.stream, starts, ends)
    starts, ends = since(origin, starts, limits.first), until(origin, ends, limits.end)
    offsets, wanted = within.get("offset", EVERYTHING), within.get("partition", EVERYTHING)
    starts = {p: max(at, offsets.first) for p, at in starts.items() if p in wanted}
    if offsets.end is not None:
        ends = {p: min(end, offsets.end) for p, end in ends.items()}
    return cut(starts, {p: ends[p] for p in starts}, options.rows_per_task)


def _check_order(stream: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    for partition, start in starts.items():
        if ends[partition] < start:
            raise InvalidOption(
                f"stream {stream!r}, partition {partition}: endingOffsets {ends[partition]} is "
                f"before startingOffsets {start}"
            )


def since(origin: RecordOrigin, starts: dict[int, int], time_ms: int) -> dict[int, int]:
    """``starts``, or the first record of that time if it is later; 0 is no limit."""
    if not time_ms:
        return starts
    times = origin.offsets_at(time_ms)
    return {p: max(at, times[p]) for p, at in starts.items()}


def until(origin: RecordOrigin, ends: dict[int, int], time_ms: int | None) -> dict[int, int]:
    """``ends``, or the first record of that time if it is earlier."""
    if time_ms is None:
        return ends
    times = origin.offsets_at(time_ms)
    return {p: min(end, times[p]) for p, end in ends.items()}


def parts(options: SourceOptions, info: StreamInfo) -> dict[int, PartitionInfo]:
    """The partitions that were asked for."""
    found = info.partitions
    wanted = range(len(found)) if options.partitions is None else options.partitions
    for partition in wanted:
        _check_partition(options.stream, partition, len(found))
    return {partition: found[partition] for partition in wanted}


def _check_partition(stream: str, partition: int, count: int) -> None:
    if not 0 <= partition < count:
        raise InvalidOption(
            f"partition {partition} does not exist: stream {stream!r} has {count}, from 0"
        )


def resolve(
    options: SourceOptions,
    at: ReadPosition,
    held_by: Mapping[int, PartitionInfo],
    other: str = "earliest",
) -> dict[int, int]:
    """A position as an offset for every partition; ``other`` is for those that it leaves out."""
    if isinstance(at, dict):
        for partition in at:
            if partition not in held_by:
                raise InvalidOption(
                    f"offsets name partition {partition}, which is not read from stream "
                    f"{options.stream!r}"
                )
    found = {}
    for partition, part in held_by.items():
        match at.get(partition, other) if isinstance(at, dict) else at:
            case "earliest":
                offset = part.start_offset
            case "latest":
                offset = part.stable_offset
            case given:
                offset = int(given)
        found[partition] = _checked(options.stream, partition, offset, part)
    return found


def _checked(stream: str, partition: int, offset: int, part: PartitionInfo) -> int:
    if not part.start_offset <= offset <= part.stable_offset:
        raise OffsetOutOfRange(
            f"stream {stream!r}, partition {partition}: offset {offset} is outside "
            f"{part.start_offset}..{part.stable_offset}"
        )
    return offset


def cut(starts: Mapping[int, int], ends: Mapping[int, int], rows_per_task: int) -> list[ReadRange]:
    """Ranges between two sets of offsets, none longer than a task should be."""
    return [
        ReadRange(partition, first, min(first + rows_per_task, end))
        for partition, end in ends.items()
        for first in range(starts.get(partition, 0), end, rows_per_task)
    ]


class ReadTask(InputPartition):
    """A range that one Spark task reads, and from where.

    If there are no tasks, Spark reads a partition of its own, which is not a `ReadTask`.
    """

    def __init__(self, part: ReadRange, origin: RecordOrigin) -> None:
        super().__init__(part)
        self.part = part
        self.origin = origin

    def tables(self, columns: Sequence[str] = ROWS.names) -> Iterator[pa.Table]:
        """The records; a column that is not among ``columns`` may be missing."""
        partition, first, end = self.part.partition, self.part.first, self.part.end
        found = self.origin.read(partition, first, end)
        return chunked(rows(batch, partition, first, end) for batch in found)


def read(options: SourceOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a task as Arrow batches of the columns asked for."""
    if isinstance(task, ReadTask):
        needed = options.columns if options.typed is None else ROWS.names
        for table in parsed(task.tables(needed), options.typed):
            yield from _put_together(table.select(list(options.columns)))


def _put_together(table: pa.Table) -> list[pa.RecordBatch]:
    """Batches large enough for the JVM; only smaller ones are copied."""
    found: list[pa.RecordBatch] = table.to_batches()
    if len(found) * SMALL_ROWS > table.num_rows:
        found = table.combine_chunks().to_batches()
    return found


def share(total: int, least_tasks: int, rows_per_task: int) -> int:
    """Rows per task, so that there are about ``least_tasks`` of them and none is too long."""
    return max(min(-(-total // max(least_tasks, 1)), rows_per_task), 1)


K = TypeVar("K")
"""A partition, or a stream and a partition."""


def limited(starts: Mapping[K, int], ends: Mapping[K, int], max_rows: int | None) -> dict[K, int]:
    """Ends that leave at most ``max_rows`` in all, shared in proportion to what there is."""
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
    starts: Mapping[K, int], ends: Mapping[K, int], found: dict[K, int], max_rows: int
) -> dict[K, int]:
    """Share out what rounding left, so that a small limit still makes progress."""
    left = max_rows - sum(found[partition] - starts.get(partition, 0) for partition in found)
    for partition, end in found.items():
        step = min(left, ends[partition] - end)
        found[partition] = end + step
        left -= step
    return found
