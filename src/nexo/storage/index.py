"""The sparse index of a segment: where to start looking for an offset or a time (SPEC E5).

A point is noted about every `SPACING` bytes, as three integers: the base offset of an entry,
its position in the segment, and the greatest timestamp of all entries before it. Points are
kept in memory while the segment grows and written beside it (`<segment>.idx`) when it is
closed, as a sealed file whose mark is the segment's next offset and whose payload is::

    int64 length of the segment the points cover
    int64 first timestamp, int64 greatest timestamp
    three int64 per point

An index can always be rebuilt from its segment, so it needs no sync.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path
from sys import byteorder

from nexo.errors import Corrupt
from nexo.storage import sealed
from nexo.storage.ports import Files

MAGIC = b"NEXOIDX\0"
SPACING = 8 * 1024
_HEAD = 3
NEVER = -(1 << 63)
"""The greatest timestamp of an empty segment."""


class SparseIndex:
    """Points of one segment, in rising order of offset and position."""

    __slots__ = ("_due", "_offsets", "_positions", "_times", "first_ms", "max_ms")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        self._due = 0
        self.first_ms = NEVER
        self.max_ms = NEVER

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, offset: int, position: int, first_ms: int, last_ms: int) -> None:
        """Add the next entry of the segment."""
        if position >= self._due:
            self._offsets.append(offset)
            self._positions.append(position)
            self._times.append(self.max_ms)
            self._due = position + SPACING
        if self.first_ms == NEVER:
            self.first_ms = first_ms
        if last_ms > self.max_ms:  # noqa: PLR1730 - a call costs more than the branch
            self.max_ms = last_ms

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Offset and position of the last point at or before ``offset``."""
        at = bisect_right(self._offsets, offset) - 1
        return (self._offsets[at], self._positions[at]) if at >= 0 else None

    def before_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The last point before which no entry is at or after ``timestamp_ms``."""
        at = bisect_left(self._times, timestamp_ms) - 1
        return (self._offsets[at], self._positions[at]) if at >= 0 else None

    def last(self) -> tuple[int, int] | None:
        return (self._offsets[-1], self._positions[-1]) if self._offsets else None

    def cut(self, position: int) -> None:
        """Remove the points at or after ``position``; the times stay as upper bounds."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:], self._positions[keep:], self._times[keep:]
        self._due = self._positions[-1] + SPACING if keep else 0

    def pack(self, size: int, next_offset: int) -> bytes:
        """The bytes of the side file of a segment of ``size`` bytes."""
        flat = array("q", bytes(8 * (_HEAD + 3 * len(self))))
        flat[:_HEAD] = array("q", [size, self.first_ms, self.max_ms])
        for place, column in enumerate((self._offsets, self._positions, self._times)):
            flat[_HEAD + place :: 3] = column
        if byteorder == "big":
            flat.byteswap()
        return sealed.pack(MAGIC, flat.tobytes(), next_offset)


def read(files: Files, path: Path) -> tuple[SparseIndex, int, int] | None:
    """Index, segment length and next offset from a side file; `Corrupt` if it is damaged."""
    stored = sealed.read(files, path, MAGIC)
    if stored is None:
        return None
    payload, next_offset = stored
    if len(payload) % 8 or len(payload) // 8 < _HEAD or (len(payload) // 8) % 3:
        raise Corrupt("index has a broken length")
    flat = array("q", payload)
    if byteorder == "big":
        flat.byteswap()
    index = SparseIndex()
    size, index.first_ms, index.max_ms = flat[:_HEAD]
    index._offsets, index._positions, index._times = (flat[_HEAD + i :: 3] for i in range(3))
    if any(a >= b for a, b in pairwise(index._positions)):
        raise Corrupt("index points are out of order")
    if index._positions:
        index._due = index._positions[-1] + SPACING
    return index, size, next_offset
