"""Compaction: of every key only the newest record is kept, at its own offset (SPEC I1).

Works on closed segments, one at a time; what is written meanwhile lies in the open one and
is not touched. Records without a key stay. A deletion stays until readers had time to see it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Protocol

from nexo.brokers.stream.keys import KeyIndex
from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.registry import Stream
from nexo.errors import Corrupt, OffsetOutOfRange
from nexo.protocol.batch import Batch, decode, select
from nexo.storage.header import parse


class Segment(Protocol):
    """One file of the log."""

    base_offset: int
    next_offset: int


class SegmentedLog(Protocol):
    """What compaction asks of a log beyond `nexo.storage.ports.Log`."""

    def segments(self) -> Sequence[Segment]:
        """All segments; the last is open."""

    def roll(self) -> None:
        """Close the open segment."""

    def rewrite(self, first: int, end: int, entries: Iterable[bytes]) -> int:
        """Replace a closed segment; returns the bytes freed."""


def is_due(stream: Stream, partition: Partition) -> bool:
    """Whether enough was written since the last compaction."""
    total = partition.stable_offset - partition.start_offset
    dirty = partition.stable_offset - max(partition.clean_offset, partition.start_offset)
    return stream.options.compacts and dirty > 0 and dirty >= stream.options.min_dirty_ratio * total


def compact(
    stream: Stream, partition: Partition, index: KeyIndex, now_ms: int, *, keep_deletions: bool
) -> Generator[None, None, int]:
    """Compact everything readable, in small steps; returns the bytes freed.

    Without ``keep_deletions`` tombstones go at once, however young. Records may be written,
    and the front of the log be dropped, between steps.
    """
    log: SegmentedLog = partition.log  # type: ignore[assignment]
    yield from index.steps()
    log.roll()
    end = partition.stable_offset
    horizon_ms = now_ms - stream.options.delete_retention_ms if keep_deletions else None
    freed = 0
    for segment in log.segments()[:-1]:
        if segment.next_offset <= end:
            freed += yield from _rewrite(partition, log, segment, index, horizon_ms)
    partition.clean_offset = end
    return freed


def _rewrite(
    partition: Partition,
    log: SegmentedLog,
    segment: Segment,
    index: KeyIndex,
    horizon_ms: int | None,
) -> Generator[None, None, int]:
    first, end = segment.base_offset, segment.next_offset
    kept: list[bytes] = []
    changed = False
    try:
        for entry in _entries(partition, first, end):
            thinned = _thinned(partition, entry, index, horizon_ms)
            changed = changed or thinned is not entry
            if thinned is not None:
                kept.append(thinned)
            yield
    except (Corrupt, OffsetOutOfRange):
        return 0  # damaged: nothing of it is to be lost; or dropped meanwhile
    if not changed or not _is_there(log, first, end):
        return 0
    freed = log.rewrite(first, end, kept)
    partition.cooled()
    return freed


def _is_there(log: SegmentedLog, first: int, end: int) -> bool:
    """Whether retention has not removed the segment meanwhile."""
    return any((s.base_offset, s.next_offset) == (first, end) for s in log.segments()[:-1])


def _entries(partition: Partition, first: int, end: int) -> Iterator[bytes]:
    for entry in partition.log.entries(max(first, partition.start_offset)):
        if parse(entry).base_offset >= end:
            return
        yield entry


def _thinned(
    partition: Partition, entry: bytes, index: KeyIndex, horizon_ms: int | None
) -> bytes | None:
    """The entry without what is out of date; None if nothing is left."""
    if parse(entry).base_offset in partition.aborted:
        return None
    batch = decode(entry)
    if batch.layout.keys is None:
        return entry
    kept = _kept(batch, index, horizon_ms)
    if len(kept) == len(batch):
        return entry
    if not kept:
        return None
    head, body = select(batch, kept)
    return bytes(head) + b"".join(body)


def _kept(batch: Batch, index: KeyIndex, horizon_ms: int | None) -> list[int]:
    rows = zip(batch.offsets, batch.keys(), batch.values(), batch.timestamps(), strict=True)
    return [
        i
        for i, (offset, key, value, stamp) in enumerate(rows)
        if key is None
        or (index.newest.get(key) == offset and (value is not None or _young(stamp, horizon_ms)))
    ]


def _young(stamp_ms: int, horizon_ms: int | None) -> bool:
    """Whether a deletion must still be shown."""
    return horizon_ms is not None and stamp_ms >= horizon_ms
