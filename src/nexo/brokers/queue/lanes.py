"""Ready jobs: by priority, then perhaps by key, then by age.

A line holds runs of job numbers, so a million jobs pushed in order are one run. Lines may
name jobs that have since finished; the ledger is checked again when they come up.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from nexo.brokers.queue.batches import JobRange

Allowance = Callable[[str | None], int]
"""How many more jobs of a key may be delivered now."""


class Line:
    """Runs ordered by age; a returned job takes its old place (SPEC D5).

    A job is in at most one run, so runs never overlap and their first jobs order them.
    """

    __slots__ = ("_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[JobRange] = deque()
        self._returned: list[JobRange] = []

    def __bool__(self) -> bool:
        return bool(self._fresh or self._returned)

    def __iter__(self) -> Iterator[JobRange]:
        """Every run, in no particular order."""
        yield from self._fresh
        yield from self._returned

    def add(self, lo: int, hi: int) -> None:
        """Insert a run at the place its age gives it."""
        fresh = self._fresh
        if not fresh or lo > fresh[-1][1]:
            fresh.append((lo, hi))
        elif lo == fresh[-1][1]:
            fresh[-1] = (fresh[-1][0], hi)
        else:
            heappush(self._returned, (lo, hi))

    def take(self, limit: int) -> JobRange:
        """The oldest run, cut at ``limit`` jobs. The line must not be empty."""
        fresh, returned = self._fresh, self._returned
        if returned and (not fresh or returned[0] < fresh[0]):
            lo, hi = heappop(returned)
            end = min(hi, lo + limit)
            if end < hi:
                heappush(returned, (end, hi))
            return lo, end
        lo, hi = fresh[0]
        end = min(hi, lo + limit)
        if end < hi:
            fresh[0] = (end, hi)
        else:
            fresh.popleft()
        return lo, end


class Lane:
    """The lines of one priority. Keys take turns; a blocked key is skipped."""

    __slots__ = ("_blocked", "_lines", "_turns")

    def __init__(self) -> None:
        self._lines: dict[str | None, Line] = {}
        self._turns: deque[str | None] = deque()
        self._blocked: set[str | None] = set()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[JobRange]:
        for line in self._lines.values():
            yield from line

    @property
    def ready(self) -> bool:
        """Whether some key can be served."""
        return bool(self._turns)

    def add(self, key: str | None, lo: int, hi: int) -> None:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
            self._turns.append(key)
        line.add(lo, hi)

    def unblock(self, key: str | None) -> None:
        if key in self._blocked:
            self._blocked.discard(key)
            self._turns.append(key)

    def take(self, limit: int, allowance: Allowance) -> tuple[str | None, JobRange] | None:
        """The next run and its key; None if every key is blocked or nothing waits."""
        turns = self._turns
        while turns:
            key = turns[0]
            allowed = allowance(key)
            if allowed <= 0:
                self._blocked.add(turns.popleft())
                continue
            # With several keys, one job each per turn.
            run = self._lines[key].take(min(limit, allowed) if len(self._lines) == 1 else 1)
            self._next_turn(key)
            return key, run
        return None

    def _next_turn(self, key: str | None) -> None:
        self._turns.popleft()
        if self._lines[key]:
            self._turns.append(key)
        else:
            del self._lines[key]


class Lanes:
    """All ready jobs of a queue, highest priority first."""

    __slots__ = ("_by_priority", "_order")

    def __init__(self) -> None:
        self._by_priority: dict[int, Lane] = {}
        self._order: list[int] = []
        """Negated priorities that have a lane, so that the highest comes first."""

    def __iter__(self) -> Iterator[JobRange]:
        for lane in self._by_priority.values():
            yield from lane

    def in_order(self) -> Iterator[JobRange]:
        """Every run, by priority and then by age."""
        return (run for negated in self._order for run in sorted(self._by_priority[-negated]))

    @property
    def ready(self) -> bool:
        """Whether `take` might find something."""
        return any(lane.ready for lane in self._by_priority.values())

    def add(self, priority: int, key: str | None, lo: int, hi: int) -> None:
        lane = self._by_priority.get(priority)
        if lane is None:
            lane = self._by_priority[priority] = Lane()
            insort(self._order, -priority)
        lane.add(key, lo, hi)

    def unblock(self, key: str | None) -> None:
        """Serve a key again, in every priority."""
        for lane in self._by_priority.values():
            lane.unblock(key)

    def take(self, limit: int, allowance: Allowance) -> tuple[str | None, JobRange] | None:
        """The next run and its key, at most ``limit`` jobs; None if nothing may be delivered."""
        for negated in self._order:
            lane = self._by_priority[-negated]
            found = lane.take(limit, allowance)
            if not lane:
                del self._by_priority[-negated]
                self._order.remove(negated)
            if found is not None:
                return found
        return None
