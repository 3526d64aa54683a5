"""Finds the batches that hold the ranges a group delivers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nexo.batch import cut, decode
from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.partition import Cold, Partition
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Corrupt
from nexo.model import Buffer
from nexo.model.stream import Range
from nexo.storage.header import Flags, Header

READ_BYTES = 256 * 1024
_COMPRESSION = int(Flags.COMPRESSION)


@dataclass(slots=True)
class Gathered:
    """What to send to a consumer, and what to report to the group."""

    parts: list[Buffer] = field(default_factory=list)
    """Whole entries, one after another, some in several parts."""
    partitions: list[int] = field(default_factory=list)
    """The partition of each entry."""
    gaps: list[Range] = field(default_factory=list)
    """Delivered offsets that hold no record (any more)."""
    unsent: list[Range] = field(default_factory=list)
    """Delivered offsets that did not fit, or are not in memory or the log."""
    cold: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of records that only the lake may have."""
    size_bytes: int = 0
    reached: dict[int, int] = field(default_factory=dict)
    """Per partition: the end of the entries found."""
    damaged: tuple[int, Corrupt] | None = None
    """The partition of the damaged entry that ended the search, and its error."""

    def check(self) -> None:
        """Raise `Corrupt` if a damaged entry is all there is."""
        if self.damaged is not None and not self.parts:
            raise self.damaged[1]


def gather(stream: OpenStream, deliveries: Iterable[DeliveredRange], max_bytes: int) -> Gathered:
    """The entries that hold the delivered ranges, cut to them unless compressed.

    At least one available entry, then no more than ``max_bytes``. Stops before a damaged entry.
    """
    found = Gathered()
    for delivery in deliveries:
        if found.damaged is not None:
            found.unsent.append((delivery.partition, delivery.first, delivery.end))
            continue
        try:
            _gather_range(stream, delivery, max_bytes, found)
        except Cold as cold:
            found.cold.append((delivery.partition, cold.offset))
            found.unsent.append(_rest(delivery, found))
        except Corrupt as error:
            found.damaged = delivery.partition, error
            found.unsent.append(_rest(delivery, found))
    return found


def _rest(delivery: DeliveredRange, found: Gathered) -> Range:
    """The part of a delivery after the entries found for it."""
    reached = max(delivery.first, found.reached.get(delivery.partition, 0))
    return delivery.partition, reached, delivery.end


def _gather_range(
    stream: OpenStream, delivery: DeliveredRange, max_bytes: int, found: Gathered
) -> None:
    index, at, end = delivery.partition, delivery.first, delivery.end
    partition = stream.partition(index)
    while at < end:
        if found.parts and found.size_bytes >= max_bytes:
            found.unsent.append((index, at, end))
            return
        before = at
        for header, entry in partition.read(at, READ_BYTES):
            if header.base_offset >= end:
                break
            if found.parts and found.size_bytes + header.length > max_bytes:
                found.unsent.append((index, at, end))
                return
            if header.base_offset > at:
                found.gaps.append((index, at, header.base_offset))
            at = _add(index, header, entry, max(at, header.base_offset), end, found)
            if at >= end:
                return
        if at == before:
            found.gaps.append((index, at, end))
            return


def _add(
    index: int, header: Header, entry: memoryview, first: int, end: int, found: Gathered
) -> int:
    """Add the part of an entry from ``first`` up to ``end``; returns where that part ends."""
    after = header.next_offset
    stop = found.reached[index] = min(end, after)
    whole = first == header.base_offset and stop == after
    if header.span != header.count:
        found.gaps += _holes(index, entry, first, stop)
    if whole or header.flags & _COMPRESSION:
        found.parts.append(entry)
        found.partitions.append(index)
        found.size_bytes += len(entry)
        return stop
    part = cut(decode(entry), first, stop)
    if part is not None:
        found.parts += [part[0], *part[1]]
        found.partitions.append(index)
        found.size_bytes += len(part[0]) + sum(map(len, part[1]))
    return stop


def _holes(index: int, entry: memoryview, first: int, stop: int) -> list[Range]:
    """Offsets between ``first`` and ``stop`` that compaction removed."""
    batch, there = decode(entry), RangeSet()
    base, deltas = batch.base_offset, batch.deltas
    low, high = bisect_left(deltas, first - base), bisect_left(deltas, stop - base)
    for delta in deltas[low:high]:
        there.add(base + delta, base + delta + 1)
    return [(index, a, b) for a, b, inside in there.split(first, stop) if not inside]


def keys_between(partition: Partition, first: int, end: int) -> Mapping[int, bytes | None]:
    """The key of every record from ``first`` up to ``end``.

    A damaged record counts as one without a key: fetching it raises the error.
    """
    keys: dict[int, bytes | None] = {}
    at = first
    while at < end:
        before = at
        try:
            for header, entry in partition.read(at, READ_BYTES):
                if header.base_offset >= end:
                    return keys
                keys |= _keys(entry, at, end)
                at = max(at, header.next_offset)
        except Corrupt as error:
            at = min(end, error.next_offset or end)
            keys |= dict.fromkeys(range(max(before, error.offset or 0), at))
        if at == before:
            break
    return keys


def _keys(entry: memoryview, first: int, end: int) -> Mapping[int, bytes | None]:
    part = cut(decode(entry), first, end)
    if part is None:
        return {}
    batch = decode(bytes(part[0]) + b"".join(part[1]))
    return dict(zip(batch.offsets, batch.keys(), strict=True))


def offset_at(partition: Partition, timestamp_ms: int) -> int:
    """The first readable offset whose record is not older than ``timestamp_ms``."""
    at = max(partition.log.offset_at(timestamp_ms), partition.start_offset)
    for _, entry in partition.read(at, 1):
        return first_since(entry, timestamp_ms, at)
    return at


def first_since(entry: memoryview, timestamp_ms: int, at: int = 0) -> int:
    """The first offset from ``at`` on whose record is not older; the next entry's if none."""
    batch = decode(entry)
    for offset, stamp in zip(batch.offsets, batch.timestamps(), strict=True):
        if stamp >= timestamp_ms and offset >= at:
            return offset
    return batch.header.next_offset
