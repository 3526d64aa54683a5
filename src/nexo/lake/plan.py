"""What to take next: ranges of offsets between what the lake holds and what readers may see."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nexo.errors import Conflict
from nexo.protocol.stream import PartitionInfo


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much a micro-batch and one of its tasks take."""

    batch_rows: int = 8_000_000
    task_rows: int = 1_000_000
    task_bytes: int = 128 * 1024**2
    task_s: float = 2.0
    """About how long a task with ranges of several streams may take (`cost_s`)."""


def record_bytes(part: PartitionInfo) -> float:
    """About how many bytes a record of a partition takes in the log."""
    return part.size_bytes / max(part.stable_offset - part.hot_offset, 1)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What a partition gives next: offsets from ``first``, below ``end``, in one commit.

    ``after`` is the table's offset when it was planned, None if it had none.
    """

    partition: int
    after: int | None
    first: int
    end: int
    record_bytes: float
    gap: tuple[int, int] | None = None
    """Offsets before ``first`` whose records neither the broker nor the table has."""

    def tasks(self, limits: BatchLimits) -> Iterator[tuple[int, int]]:
        """The range, cut so that no task takes too much."""
        step = max(1, min(limits.task_rows, int(limits.task_bytes / max(self.record_bytes, 1))))
        for first in range(self.first, self.end, step):
            yield first, min(first + step, self.end)


def planned_ranges(
    stream: str,
    offsets: Mapping[int, int],
    parts: Sequence[PartitionInfo],
    limits: BatchLimits,
    ends: Sequence[int] | None = None,
) -> list[PlannedRange]:
    """The next range of every partition that has new records, below ``ends`` if given.

    Another pipeline may have taken what is below ``ends``, and more, in the meantime.

    A partition that dropped records before tiering was on begins with the first that it still has.
    Raises `Conflict` if the lake is ahead: the broker lost records that the lake has.
    """
    check_partitions(stream, offsets, parts)
    found = []
    share = max(1, limits.batch_rows // max(len(parts), 1))
    for partition, part in enumerate(parts):
        after = offsets.get(partition)
        first = max(part.hot_offset, after or 0)
        if (after or 0) > part.stable_offset:
            raise Conflict(
                f"stream {stream!r}, partition {partition}: the lake holds offsets up to {after}, "
                f"the broker only up to {part.stable_offset}: the broker lost records; restore its "
                "data, or delete the stream and create it again"
            )
        end = min(part.stable_offset, first + share)
        if ends is not None:
            end = min(end, ends[partition])
        gap = (first - lost, first) if (lost := missing_before(part, after)) else None
        if end > first or (gap and end == first):  # a gap is noted, if only that is new
            found.append(PlannedRange(partition, after, first, end, record_bytes(part), gap))
    return found


def check_partitions(
    stream: str, offsets: Mapping[int, int], parts: Sequence[PartitionInfo]
) -> None:
    """`Conflict` if the lake has a partition that the broker lacks."""
    most = max(offsets, default=-1)
    if most >= len(parts):
        raise Conflict(
            f"stream {stream!r}, partition {most}: the lake has it, the broker has only "
            f"{len(parts)} partitions: the broker lost that some were added; restore its data, or "
            "add them again"
        )


def missing_before(part: PartitionInfo, after: int | None) -> int:
    """Records that a table, which holds what is below ``after``, can no longer get.

    They were reported as tiered, so the broker dropped them, and another program rolled the table
    back, or dropped it. What the stream itself dropped is not missing.
    """
    return max(part.hot_offset - max(after or 0, part.start_offset), 0)


RANGE_S, RECORD_S, BYTE_S = 0.006, 1e-6, 1e-8
"""About what a range costs, and each of its records and bytes, as measured."""


def cost_s(records: int, size_bytes: float) -> float:
    """About how long a task takes to write a range."""
    return RANGE_S + records * RECORD_S + size_bytes * BYTE_S


def packed(costs: Sequence[float], slots: int, task_s: float) -> list[list[int]]:
    """Pack ranges into few tasks of about equal cost; each task is a list of range numbers.

    There are as many tasks as run at once, or more if they would take longer than ``task_s``.
    """
    count = min(len(costs), max(slots, math.ceil(sum(costs) / task_s)))
    heap = [(0.0, number) for number in range(count)]
    tasks: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(costs)), key=lambda each: -costs[each]):
        total, task = heapq.heappop(heap)
        tasks[task].append(number)
        heapq.heappush(heap, (total + costs[number], task))
    return tasks
