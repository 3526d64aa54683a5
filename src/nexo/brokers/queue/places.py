"""Where in the log each job's value is.

One place per log entry, in three flat arrays: 24 bytes however many jobs the entry holds.
Jobs whose values were copied forward (`records.Moved`) are looked up first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec


class JobPlace(NamedTuple):
    """The log entry that holds a job's value."""

    base: int
    """The first job of the entry."""
    offset: int
    pushed_ms: int


class Image(msgspec.Struct, array_like=True):
    """Places as a snapshot holds them."""

    bases: bytes
    offsets: bytes
    pushed_ms: bytes
    moved: dict[int, tuple[int, int]]


class Places:
    """The places of every job that is not done."""

    __slots__ = ("_bases", "_moved", "_offsets", "_pushed_ms")

    def __init__(self, image: Image | None = None) -> None:
        self._bases = array("Q", image.bases if image else b"")
        self._offsets = array("Q", image.offsets if image else b"")
        self._pushed_ms = array("Q", image.pushed_ms if image else b"")
        self._moved = dict(image.moved) if image else {}

    def image(self) -> Image:
        return Image(
            self._bases.tobytes(), self._offsets.tobytes(), self._pushed_ms.tobytes(), self._moved
        )

    def add(self, base: int, offset: int, now_ms: int) -> None:
        self._bases.append(base)
        self._offsets.append(offset)
        self._pushed_ms.append(now_ms)

    def move(self, job: int, offset: int, pushed_ms: int) -> None:
        """Record that a job's value was copied."""
        self._moved[job] = (offset, pushed_ms)

    def find(self, job: int) -> JobPlace:
        if self._moved and job in self._moved:
            return JobPlace(job, *self._moved[job])
        index = bisect_right(self._bases, job) - 1
        return JobPlace(self._bases[index], self._offsets[index], self._pushed_ms[index])

    def end_of(self, job: int) -> int | None:
        """The first job after the entry that holds ``job``; None for the last entry."""
        if job in self._moved:
            return job + 1
        index = bisect_right(self._bases, job)
        return self._bases[index] if index < len(self._bases) else None

    def is_moved(self, job: int) -> bool:
        return job in self._moved

    def lowest_moved(self, otherwise: int) -> int:
        """The lowest offset that a moved job needs."""
        return min((offset for offset, _ in self._moved.values()), default=otherwise)

    def first_job_from(self, offset: int, otherwise: int) -> int:
        """The first job pushed at or after ``offset`` in the log."""
        index = bisect_right(self._offsets, offset - 1)
        return self._bases[index] if index < len(self._bases) else otherwise

    def moved_from(self, offset: int) -> int:
        """How many moved jobs lie at or after ``offset``."""
        return sum(at >= offset for at, _ in self._moved.values())

    def trim(self, floor: int, is_over: Callable[[int], bool]) -> None:
        """Drop entries whose jobs are all below ``floor``, and moved jobs that are over."""
        index = bisect_right(self._bases, floor) - 1
        if index > 0:
            for column in (self._bases, self._offsets, self._pushed_ms):
                del column[:index]
        self._moved = {job: at for job, at in self._moved.items() if not is_over(job)}
