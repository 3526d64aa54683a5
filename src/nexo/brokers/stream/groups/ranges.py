"""Sorted, disjoint, half-open integer ranges: a set, and a map with one value per range.

Cost and memory depend on the number of ranges, never on the integers in them: a thousand
contiguous offsets are one entry. Every ``(first, end)`` means ``first <= n < end``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class _Ranges:
    """Where each range begins and ends, in order."""

    __slots__ = ("_ends", "_starts")

    _starts: list[int]
    _ends: list[int]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        """The number of ranges, not of integers; see `count`."""
        return len(self._starts)

    def count(self) -> int:
        """How many integers the ranges hold."""
        return sum(self._ends) - sum(self._starts)


class RangeSet(_Ranges):
    """A set of integers kept as ranges; touching ranges are merged."""

    __slots__ = ()

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts = []
        self._ends = []
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def head(self) -> tuple[int, int]:
        """The lowest range; the set must not be empty."""
        return self._starts[0], self._ends[0]

    def add(self, first: int, end: int) -> None:
        """Add every integer of the range."""
        low = bisect_left(self._ends, first)
        high = bisect_right(self._starts, end, low)
        if low < high:
            first = min(first, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = (first,)
        self._ends[low:high] = (end,)

    def remove(self, first: int, end: int) -> None:
        """Remove every integer of the range; a range around it is split."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, end, low)
        if low >= high:
            return
        kept = []
        if self._starts[low] < first:
            kept.append((self._starts[low], first))
        if self._ends[high - 1] > end:
            kept.append((end, self._ends[high - 1]))
        self._starts[low:high] = [start for start, _ in kept]
        self._ends[low:high] = [stop for _, stop in kept]

    def next_gap(self, number: int) -> int:
        """The lowest integer from ``number`` on that is not in the set."""
        at = bisect_right(self._starts, number) - 1
        return max(number, self._ends[at]) if at >= 0 else number

    def nth_gap(self, number: int, count: int) -> int:
        """Like `next_gap`, but ``count`` integers that are not in the set are passed first."""
        at = bisect_right(self._starts, number)
        if at and number < self._ends[at - 1]:
            number = self._ends[at - 1]
        while at < len(self._starts) and self._starts[at] - number <= count:
            count -= self._starts[at] - number
            number = self._ends[at]
            at += 1
        return number + count

    def next_start(self, number: int, default: int) -> int:
        """The start of the first range after ``number``, or ``default``."""
        at = bisect_right(self._starts, number)
        return self._starts[at] if at < len(self._starts) else default

    def missing(self, first: int, end: int) -> int:
        """How many integers of a range are not in the set."""
        if first >= end:
            return 0
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, end, low)
        if low == high:
            return end - first
        inside = sum(self._ends[low:high]) - sum(self._starts[low:high])
        outside = max(0, first - self._starts[low]) + max(0, self._ends[high - 1] - end)
        return end - first - (inside - outside)

    def split(self, first: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Cut a range into parts inside the set (True) or outside it."""
        while first < end:
            inside = first in self
            stop = self.next_gap(first) if inside else self.next_start(first, end)
            stop = min(stop, end)
            yield first, stop, inside
            first = stop


class RangeMap(_Ranges, Generic[Value]):
    """A value per range; touching ranges with equal values are merged."""

    __slots__ = ("_values",)

    def __init__(self, entries: Iterable[tuple[int, int, Value]] = ()) -> None:
        self._starts = []
        self._ends = []
        self._values: list[Value] = []
        for first, end, value in entries:
            self.set(first, end, value)

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        return zip(self._starts, self._ends, self._values, strict=True)

    def __reversed__(self) -> Iterator[tuple[int, int, Value]]:
        starts, ends = reversed(self._starts), reversed(self._ends)
        return zip(starts, ends, reversed(self._values), strict=True)

    def set(self, first: int, end: int, value: Value) -> None:
        """Give the whole range one value, replacing any it had."""
        if self._starts and first < self._ends[-1]:
            self.cut(first, end)
        at = bisect_left(self._starts, first)
        low = high = at
        if at > 0 and self._ends[at - 1] == first and self._values[at - 1] == value:
            low, first = at - 1, self._starts[at - 1]
        if at < len(self._starts) and self._starts[at] == end and self._values[at] == value:
            high, end = at + 1, self._ends[at]
        self._replace(low, high, [(first, end, value)])

    def _replace(self, low: int, high: int, entries: list[tuple[int, int, Value]]) -> None:
        starts, ends, values = zip(*entries, strict=True) if entries else ((), (), ())
        self._starts[low:high] = starts
        self._ends[low:high] = ends
        self._values[low:high] = values

    def starting(self, first: int) -> Iterator[tuple[int, int, Value]]:
        """The entries that end after ``first``, in order; the map must not change meanwhile."""
        for at in range(bisect_right(self._ends, first), len(self._starts)):
            yield self._starts[at], self._ends[at], self._values[at]

    def overlapping(self, first: int, end: int) -> list[tuple[int, int, Value]]:
        """The entries within the range, clipped to it."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, end, low)
        return [
            (max(first, self._starts[at]), min(end, self._ends[at]), self._values[at])
            for at in range(low, high)
        ]

    def cut(self, first: int, end: int) -> list[tuple[int, int, Value]]:
        """Remove the range; returns the entries that were within it, clipped to it."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, end, low)
        if low == high:
            return []
        taken = self.overlapping(first, end)
        kept = []
        if self._starts[low] < first:
            kept.append((self._starts[low], first, self._values[low]))
        if self._ends[high - 1] > end:
            kept.append((end, self._ends[high - 1], self._values[high - 1]))
        self._replace(low, high, kept)
        return taken

    def run(self, first: int, end: int) -> tuple[int, Value | None]:
        """How far one value (None for absence) extends from ``first``, at most to ``end``."""
        at = bisect_right(self._starts, first) - 1
        if at >= 0 and first < self._ends[at]:
            return min(end, self._ends[at]), self._values[at]
        if at + 1 < len(self._starts):
            end = min(end, self._starts[at + 1])
        return end, None
