"""Which jobs are open, dead or done: a byte per job, in batches pushed alike.

The batch is the unit: jobs pushed with the same priority and times share one object, and
finishing a run of them is one slice assignment. A batch with no open or dead jobs is
dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

OPEN, DONE, DEAD = 0, 1, 2

MERGE_JOBS = 1_024
"""Small pushes grow the last batch up to this size, so that single jobs cost no object each."""

JobRange = tuple[int, int]
"""Job numbers from the first up to, not including, the second."""


class JobBatchRange:
    """Jobs ``base`` to ``end`` that share priority, times and owner."""

    __slots__ = ("base", "due_ms", "expires_ms", "kept", "marks", "owner", "priority")

    def __init__(
        self, base: int, count: int, priority: int, due_ms: int, expires_ms: int, owner: str = ""
    ) -> None:
        self.base = base
        self.priority = priority
        self.due_ms = due_ms
        self.expires_ms = expires_ms
        self.owner = owner
        """The user who pushed them, where users log in."""
        self.marks = bytearray(count)
        self.kept = count
        """Jobs that are not done."""

    @property
    def end(self) -> int:
        """One past the number of the last job."""
        return self.base + len(self.marks)

    def runs(self, lo: int, hi: int, mark: int = OPEN) -> Iterator[JobRange]:
        """The runs of jobs within lo..hi that have this mark."""
        marks, base = self.marks, self.base
        at, stop = lo - base, hi - base
        if hi - lo == 1:  # as most workers take them
            if marks[at] == mark:
                yield lo, hi
            return
        while (start := marks.find(mark, at, stop)) >= 0:
            at = start + 1
            # Runs are long and other marks are rare: find the nearest one.
            ends = (marks.find(other, at, stop) for other in (OPEN, DONE, DEAD) if other != mark)
            at = min((end for end in ends if end >= 0), default=stop)
            yield base + start, base + at

    def set(self, lo: int, hi: int, mark: int) -> int:
        """Mark a run of jobs; returns how many of them were open."""
        start, stop = lo - self.base, hi - self.base
        was_open = self.marks.count(OPEN, start, stop)
        was_done = self.marks.count(DONE, start, stop) if was_open < stop - start else 0
        self.marks[start:stop] = bytes((mark,)) * (stop - start)
        self.kept += was_done - (stop - start if mark == DONE else 0)
        return was_open


class Batches:
    """Every batch with a job that is not done, by number."""

    __slots__ = ("_bases", "_by_base")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._by_base: dict[int, JobBatchRange] = {}

    def __iter__(self) -> Iterator[JobBatchRange]:
        return iter(self._by_base.values())

    def __len__(self) -> int:
        return len(self._by_base)

    def add(self, batch: JobBatchRange) -> None:
        """Add a batch whose numbers are above all others."""
        last = self._by_base.get(self._bases[-1]) if self._bases else None
        if last is not None and _alike(last, batch):
            last.marks += batch.marks
            last.kept += batch.kept
            return
        self._bases.append(batch.base)
        self._by_base[batch.base] = batch

    def within(self, lo: int, hi: int) -> Iterator[tuple[JobBatchRange, int, int]]:
        """The batches that overlap lo..hi, and where."""
        index = max(0, bisect_right(self._bases, lo) - 1)
        while index < len(self._bases) and self._bases[index] < hi:
            batch = self._by_base.get(self._bases[index])
            if batch is not None and batch.end > lo:
                yield batch, max(lo, batch.base), min(hi, batch.end)
            index += 1

    def of(self, job: int) -> JobBatchRange | None:
        """The batch of a job; None once the whole batch is done."""
        return next((batch for batch, *_ in self.within(job, job + 1)), None)

    def mark_of(self, job: int) -> int:
        """The mark of a job; numbers never assigned count as done."""
        batch = self.of(job)
        return DONE if batch is None else batch.marks[job - batch.base]

    def set(self, lo: int, hi: int, mark: int) -> int:
        """Mark a run of jobs; returns how many were open. Drops batches that are all done."""
        was_open = 0
        for batch, start, stop in self.within(lo, hi):
            was_open += batch.set(start, stop, mark)
            if not batch.kept:
                del self._by_base[batch.base]
        if len(self._bases) > 2 * len(self._by_base) + 64:
            self._bases = list(self._by_base)
        return was_open

    def runs(self, lo: int, hi: int, mark: int = OPEN) -> Iterator[tuple[JobBatchRange, JobRange]]:
        """The runs within lo..hi that have this mark, each with its batch."""
        for batch, start, stop in self.within(lo, hi):
            for run in batch.runs(start, stop, mark):
                yield batch, run


def _alike(last: JobBatchRange, new: JobBatchRange) -> bool:
    return (
        last.end == new.base
        and len(last.marks) + len(new.marks) <= MERGE_JOBS
        and (last.priority, last.due_ms, last.expires_ms, last.owner)
        == (new.priority, new.due_ms, new.expires_ms, new.owner)
    )
