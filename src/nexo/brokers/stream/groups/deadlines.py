"""Which of many things is due next, at the cost of what is due."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """The earliest known deadline of each key.

    A deadline that moved later stays planned as it was: whoever `due` gives the key to looks
    whether anything is to be done, and plans again.
    """

    def __init__(self) -> None:
        self._planned: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._planned)

    def plan(self, key: K, due_ms: int) -> None:
        """Have `due` give the key at ``due_ms``, or earlier if that is planned already."""
        planned_ms = self._planned.get(key)
        if planned_ms is None or due_ms < planned_ms:
            self._planned[key] = due_ms
            self._count += 1
            heappush(self._heap, (due_ms, self._count, key))

    def due(self, now_ms: int) -> Iterator[K]:
        """Give, and forget, each key that is due; what is planned meanwhile waits."""
        taken = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heappop(self._heap)
            if self._planned.get(key) == due_ms:
                del self._planned[key]
                taken.append(key)
        return iter(taken)

    def next_ms(self) -> int | None:
        """When `due` has something to give."""
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
