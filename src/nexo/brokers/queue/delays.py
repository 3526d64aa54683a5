"""Jobs that may not run yet: pushed with a delay, or waiting for a retry."""

from __future__ import annotations

from heapq import heappop, heappush, nsmallest
from itertools import islice

from nexo.brokers.queue.batches import JobRange


class Delays:
    """Runs of jobs by due time."""

    __slots__ = ("_heap", "_runs", "jobs")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._runs: dict[int, tuple[int, int]] = {}
        """First job of a run → due time and end. The heap may hold what is no longer here."""
        self.jobs = 0

    def add(self, lo: int, hi: int, due_ms: int) -> None:
        """Hold a run back until ``due_ms``."""
        self._runs[lo] = (due_ms, hi)
        heappush(self._heap, (due_ms, lo))
        self.jobs += hi - lo

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap and self._runs.get(heap[0][1], (None,))[0] != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ms: int) -> list[JobRange]:
        """Remove and return every run that is due."""
        found: list[JobRange] = []
        while (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            lo = heappop(self._heap)[1]
            found.append((lo, self._remove(lo)))
        return found

    def _remove(self, lo: int) -> int:
        hi = self._runs.pop(lo)[1]
        self.jobs -= hi - lo
        return hi

    def discard(self, job: int) -> bool:
        """Remove one job; returns whether it was here."""
        lo = self._run_of(job)
        if lo is None:
            return False
        due_ms = self._runs[lo][0]
        hi = self._remove(lo)
        for start, stop in ((lo, job), (job + 1, hi)):
            if start < stop:
                self.add(start, stop, due_ms)
        return True

    def _run_of(self, job: int) -> int | None:
        if job in self._runs:
            return job
        # Only cancelling a job inside a batch comes here, so a walk is cheap enough.
        return next((lo for lo, (_, hi) in self._runs.items() if lo < job < hi), None)

    def holds(self, job: int) -> bool:
        return self._run_of(job) is not None

    def clear(self) -> list[JobRange]:
        """Remove and return everything."""
        found = [(lo, hi) for lo, (_, hi) in self._runs.items()]
        self._runs.clear()
        self._heap.clear()
        self.jobs = 0
        return found

    def upcoming(self, limit: int, offset: int) -> list[tuple[int, int]]:
        """``(due_ms, job)`` of the next jobs, soonest first."""
        soonest = nsmallest(limit + offset, ((due, lo, hi) for lo, (due, hi) in self._runs.items()))
        jobs = ((due, job) for due, lo, hi in soonest for job in range(lo, hi))
        return list(islice(jobs, offset, offset + limit))
