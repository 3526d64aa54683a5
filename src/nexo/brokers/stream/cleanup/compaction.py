"""Compaction: keeps only the newest record of every key, at its own offset (SPEC I1).

It works on closed segments, one at a time; new records are written to the open one, which
is not touched. Neighbouring segments are merged up to `MERGED_BYTES`, so that their number
does not grow with every run. Records without a key stay. A deletion stays until readers
have had time to see it.

It runs in small steps, which yield None, or the caller's ``sync`` where everything written must
be synced before the next one: so a large segment reaches the disk in portions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from nexo.batch import Batch, decode, select
from nexo.brokers.stream.keys import KeyIndex
from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Corrupt, OffsetOutOfRange
from nexo.storage.header import parse
from nexo.storage.log import SegmentedLog
from nexo.storage.segment import SegmentInfo

MERGED_BYTES = 32 * 1024**2
"""Maximum size of a merged segment, which is held in memory while it is built."""
PORTION_BYTES = 4 * 1024**2
"""How much of a new segment is written between syncs."""


Sync = TypeVar("Sync")
Freed: TypeAlias = Generator[Sync | None, None, int]
"""Steps that return the bytes freed."""


def is_due(stream: OpenStream, number: int, partition: Partition) -> bool:
    """Whether enough was written since the last compaction."""
    end = compactable(stream, number, partition)
    total = end - partition.start_offset
    dirty = end - max(partition.clean_offset, partition.start_offset)
    return stream.options.compacts and dirty > 0 and dirty >= stream.options.min_dirty_ratio * total


def compactable(stream: OpenStream, number: int, partition: Partition) -> int:
    """Where compaction stops; with tiering, only what the lake has is removed (SPEC I9)."""
    end = partition.stable_offset
    return min(end, stream.tiered[number]) if stream.options.tiering else end


def compact(
    stream: OpenStream,
    number: int,
    index: KeyIndex,
    now_ms: int,
    sync: Sync,
    *,
    keep_deletions: bool,
    is_elsewhere: Callable[[bytes], bool] | None = None,
) -> Freed[Sync]:
    """Compact the readable part of a partition.

    Without ``keep_deletions`` tombstones are removed at once, however recent, but never while an
    older record of their key ``is_elsewhere``. Between steps, records may be written and the front
    of the log dropped.
    """
    partition = stream.partition(number)
    log = partition.log
    yield from index.steps()
    end = compactable(stream, number, partition)
    segments = log.segments()
    if segments and segments[-1].base_offset < end:
        log.roll()
    horizon_ms = now_ms - stream.options.delete_retention_ms if keep_deletions else None
    deletions = _Deletions(horizon_ms, is_elsewhere)
    run, freed = _Run(), 0
    for segment in [each for each in log.segments()[:-1] if each.next_offset <= end]:
        thinned = yield from _thin(partition, segment, index, deletions)
        if run.segments and (thinned is None or run.size + thinned.size > MERGED_BYTES):
            freed += yield from _replace(partition, log, run, sync)
            run = _Run()
        if thinned is not None:
            run.add(thinned)
            partition.clean_offset = segment.next_offset
    freed += yield from _replace(partition, log, run, sync)
    return freed


@dataclass(slots=True)
class _Run:
    """What is left of one segment, or of several in a row, which become one."""

    segments: list[SegmentInfo] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    size: int = 0
    changed: bool = False

    def add(self, more: _Run) -> None:
        self.changed = self.changed or more.changed or bool(self.segments)
        self.segments += more.segments
        self.kept += more.kept
        self.size += more.size


def _thin(
    partition: Partition, segment: SegmentInfo, index: KeyIndex, deletions: _Deletions
) -> Generator[None, None, _Run | None]:
    """A segment without outdated records; None if it is damaged or was dropped meanwhile."""
    run = _Run([segment])
    try:
        for entry in _entries(partition, segment.base_offset, segment.next_offset):
            thinned = _thinned(partition, entry, index, deletions)
            run.changed = run.changed or thinned is not entry
            if thinned is not None:
                run.kept.append(thinned)
                run.size += len(thinned)
            yield
    except (Corrupt, OffsetOutOfRange):
        return None
    return run


def _replace(partition: Partition, log: SegmentedLog, run: _Run, sync: Sync) -> Freed[Sync]:
    """Write what is left in place of the original segments."""
    if not run.changed:
        return 0
    first, end = run.segments[0].base_offset, run.segments[-1].next_offset
    if not _is_there(log, first, end):
        return 0
    rewriting = log.begin_rewrite(first, end)
    try:
        for portion in _portions(run.kept):
            rewriting.add(portion)
            yield sync
        freed = log.finish_rewrite(rewriting) if _is_there(log, first, end) else 0
    finally:
        rewriting.abandon()
    partition.cooled()
    return freed


def _portions(entries: list[bytes]) -> Iterator[list[bytes]]:
    portion: list[bytes] = []
    size = 0
    for entry in entries:
        portion.append(entry)
        size += len(entry)
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _is_there(log: SegmentedLog, first: int, end: int) -> bool:
    """Whether retention has left all the segments in place."""
    closed = log.segments()[:-1]
    return first in {s.base_offset for s in closed} and end in {s.next_offset for s in closed}


def _entries(partition: Partition, first: int, end: int) -> Iterator[bytes]:
    for entry in partition.log.entries(max(first, partition.start_offset)):
        if parse(entry).base_offset >= end:
            return
        yield entry


def _thinned(
    partition: Partition, entry: bytes, index: KeyIndex, deletions: _Deletions
) -> bytes | None:
    """The entry without outdated records; None if nothing is left."""
    if parse(entry).next_offset - 1 in partition.aborted:
        return None
    batch = decode(entry)
    if batch.layout.keys is None:
        return entry
    kept = _kept(batch, index, deletions)
    if len(kept) == len(batch):
        return entry
    if not kept:
        return None
    head, body = select(batch, kept)
    return bytes(head) + b"".join(body)


def _kept(batch: Batch, index: KeyIndex, deletions: _Deletions) -> list[int]:
    rows = zip(batch.offsets, batch.keys(), batch.values(), batch.timestamps(), strict=True)
    return [
        i
        for i, (offset, key, value, stamp) in enumerate(rows)
        if key is None
        or (index.newest.get(key) == offset and (value is not None or deletions.keep(key, stamp)))
    ]


@dataclass(frozen=True, slots=True)
class _Deletions:
    """Which tombstones must stay."""

    horizon_ms: int | None
    is_elsewhere: Callable[[bytes], bool] | None

    def keep(self, key: bytes, stamp_ms: int) -> bool:
        """Whether a deletion must still be visible, or hides a record of another partition."""
        if self.horizon_ms is not None and stamp_ms >= self.horizon_ms:
            return True
        return self.is_elsewhere is not None and self.is_elsewhere(key)
