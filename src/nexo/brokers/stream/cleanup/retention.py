"""Retention: drops what is too old, or too much, from the front (SPEC E4).

Exact to the batch: limits apply within a single segment too. An open transaction keeps what
it wrote. While tiering is on, records that the lake has not taken are kept too, and so are
the newest records, whatever the limits say: the hot tier (SPEC I2).
"""

from __future__ import annotations

from dataclasses import dataclass

from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Corrupt
from nexo.storage.header import parse


@dataclass(frozen=True, slots=True)
class HotTier:
    """What a partition of a stream with tiering keeps at least, by age and by number."""

    age_ms: int
    messages: int

    def start(self, partition: Partition, now_ms: int) -> int:
        """Where it begins."""
        end = partition.stable_offset
        young = partition.log.offset_at(now_ms - self.age_ms) if self.age_ms else end
        return min(young, end - self.messages)


def retain(stream: OpenStream, now_ms: int, hot: HotTier) -> int:
    """Apply a stream's limits to all its partitions; returns the bytes freed."""
    if not stream.options.expires:
        return 0
    return sum(_retain(stream, i, part, now_ms, hot) for i, part in enumerate(stream.partitions()))


def _retain(stream: OpenStream, index: int, partition: Partition, now_ms: int, hot: HotTier) -> int:
    age_ms = stream.options.retention_ms
    by_age = partition.log.offset_at(now_ms - age_ms) if age_ms else 0
    target = max(by_age, _by_size(stream, partition))
    target = min(target, partition.stable_offset, freeable(stream, index, partition, now_ms, hot))
    return partition.drop_before(target) if target > partition.start_offset else 0


def freeable(
    stream: OpenStream, index: int, partition: Partition, now_ms: int, hot: HotTier
) -> int:
    """Where retention stops; with tiering, at what the lake lacks or the hot tier keeps."""
    if not stream.options.tiering:
        return partition.next_offset
    return min(stream.tiered[index], hot.start(partition, now_ms))


def _by_size(stream: OpenStream, partition: Partition) -> int:
    """The first offset of the batches at the end that fit the limit."""
    limit = stream.options.retention_bytes // stream.options.partitions
    if not stream.options.retention_bytes or partition.log.size_bytes <= limit:
        return 0
    at, excess = partition.start_offset, live_bytes(partition) - limit
    try:
        for entry in partition.log.entries(at):
            if excess <= 0:
                break
            excess -= len(entry)
            at = parse(entry).next_offset
    except Corrupt as error:
        at = max(at, error.next_offset or at)
    return at


def live_bytes(partition: Partition) -> int:
    """The size of what is kept, without dropped records that a segment still holds."""
    if partition.start_offset >= partition.next_offset:
        return 0
    return partition.log.size_bytes - partition.log.position_of(partition.start_offset)
