"""One stream's part of a micro-batch: the ranges to be written, and what is committed after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from nexo.errors import NexoError, StreamReplaced
from nexo.lake.files import DataFileFacts, target
from nexo.lake.once import WrittenRange
from nexo.lake.paths import delete_files
from nexo.lake.plan import BatchLimits, PlannedRange, cost_s, record_bytes
from nexo.lake.tables import CREATED_MS, held_offsets
from nexo.lake.typed.columns import columns_of
from nexo.lake.typed.infer import MOST_COLUMNS, merged
from nexo.protocol import stream as wire
from pyspark_nexo.tiering import TableRange

if TYPE_CHECKING:
    from pyiceberg.table import Table

WrittenFiles: TypeAlias = dict[tuple[str, int], list[DataFileFacts]]
"""What was written, by stream and partition."""


@dataclass(frozen=True, slots=True)
class StreamStep:
    """A stream's next step: its table, and the range of each partition."""

    info: wire.StreamInfo
    table: Table
    planned: Sequence[PlannedRange]

    @property
    def name(self) -> str:
        return self.info.name

    def ranges(self, limits: BatchLimits) -> Iterator[TableRange]:
        """Its work, cut for Spark."""
        where, info = target(self.table), self.info
        for each in self.planned:
            for first, end in each.tasks(limits):
                cost = cost_s(end - first, (end - first) * each.record_bytes)
                yield TableRange(
                    info.name, info.created_ms, each.partition, first, end, where, cost
                )

    @property
    def complete(self) -> bool:
        """Whether it takes all that readers may see now."""
        ends = {step.partition: step.end for step in self.planned}
        parts = enumerate(self.info.partitions)
        return all(ends.get(p, part.stable_offset) == part.stable_offset for p, part in parts)

    def written(self, files: WrittenFiles) -> list[WrittenRange]:
        """What to commit to its table, with the files of each partition."""
        return [
            WrittenRange(
                each.partition, each.after, each.end, files[self.name, each.partition], each.gap
            )
            for each in self.planned
        ]

    def discard(self, files: WrittenFiles) -> None:
        """Delete files that will not be committed."""
        for part in self.planned:
            paths = (each.path for each in files[self.name, part.partition])
            delete_files(self.table.io, paths)


def new_fields(step: StreamStep, files: WrittenFiles) -> dict[str, str]:
    """Fields that are to become columns, within the limit, with types that fit every file."""
    found = dict[str, str]()
    for facts in (facts for part in step.written(files) for facts in part.files):
        found = merged(found, facts.new_fields)
    room = MOST_COLUMNS - len(columns_of(step.table.properties))
    return dict(islice(found.items(), max(room, 0)))


def replaced(info: wire.StreamInfo | NexoError, created_ms: int) -> NexoError | None:
    """Why a stream cannot be described, or is not the one that was created at that time."""
    if isinstance(info, NexoError):
        return info
    if info.created_ms != created_ms:
        return StreamReplaced(f"stream {info.name!r} was deleted and created again")
    return None


def matches(table: Table, info: wire.StreamInfo) -> bool:
    """Whether a table is this stream's and not ahead of the broker."""
    if table.properties.get(CREATED_MS) != str(info.created_ms):
        return False
    offsets = held_offsets(table)
    if max(offsets, default=-1) >= len(info.partitions):
        return False
    return all(offsets.get(p, 0) <= part.stable_offset for p, part in enumerate(info.partitions))


def behind(table: Table, parts: Sequence[wire.PartitionInfo]) -> tuple[int, float]:
    """Records, and about how many bytes, that the broker has and the table lacks."""
    offsets, rows, size_bytes = held_offsets(table), 0, 0.0
    for number, part in enumerate(parts):
        missing = max(part.stable_offset - max(offsets.get(number, 0), part.hot_offset), 0)
        rows += missing
        size_bytes += missing * record_bytes(part)
    return rows, size_bytes


def unreported(info: wire.StreamInfo, table: Table) -> Iterator[wire.TieredTo]:
    """What the table holds and the broker does not know to be tiered."""
    for partition, offset in held_offsets(table).items():
        known = info.partitions[partition] if partition < len(info.partitions) else None
        if known is not None and offset > known.tiered_offset:
            yield wire.TieredTo(
                stream=info.name, partition=partition, offset=offset, created_ms=info.created_ms
            )
