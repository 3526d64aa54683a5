"""The next of many deadlines; the cost depends only on how many are due."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyDeadlines(Generic[K]):
    """The earliest known deadline of each key.

    A deadline that moved later stays planned as before: the caller of `due` checks whether
    there is anything to do, and plans again. ``wake`` is called with the time of each deadline that
    may be the next one.
    """

    def __init__(self, wake: Callable[[int], None] = lambda _due_ms: None) -> None:
        self._wake = wake
        self._planned: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._planned)

    def plan(self, key: K, due_ms: int) -> None:
        """Let `due` return the key at ``due_ms``, or earlier if that is planned already."""
        planned_ms = self._planned.get(key)
        if planned_ms is None or due_ms < planned_ms:
            self._planned[key] = due_ms
            self._count += 1
            heappush(self._heap, (due_ms, self._count, key))
            self._wake(due_ms)

    def due(self, now_ms: int) -> Iterator[K]:
        """Yield and drop each key that is due; keys planned meanwhile wait."""
        taken = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heappop(self._heap)
            if self._planned.get(key) == due_ms:
                del self._planned[key]
                taken.append(key)
        if (next_ms := self.next_ms()) is not None:
            self._wake(next_ms)
        return iter(taken)

    def next_ms(self) -> int | None:
        """When `due` has something to return."""
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
