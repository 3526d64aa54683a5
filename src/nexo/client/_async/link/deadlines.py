"""Finds overdue requests without a timer or a clock reading for each.

Requests with the default timeout are found by age: periodically the last id used is
recorded, and one timeout later all requests up to that id are overdue. Ids rise, so the
oldest come first in the table. Only requests with their own timeout are recorded one by
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

MAX_ID = 0xFFFFFFFF
_SWEEPS_PER_TIMEOUT = 8


class Waiting(Protocol):
    """A request's future; only `done` is used."""

    def done(self) -> Any: ...


AwaitedRequest: TypeAlias = tuple[Waiting, *tuple[Any, ...]]
"""A request: its future, and what else its connection keeps of it."""


class RequestDeadlines:
    """The deadlines of one connection's requests."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._period_s = timeout_s / _SWEEPS_PER_TIMEOUT
        self._own: dict[int, float] = {}
        self._marks: deque[tuple[float, int]] = deque()

    def set(self, request_id: int, due_s: float) -> None:
        """Give a request its own deadline."""
        self._own[request_id] = due_s

    def next_s(self, now_s: float) -> float:
        """When to look for overdue requests again."""
        return min((now_s + self._period_s, *self._own.values()))

    def overdue(
        self, waiting: Mapping[int, AwaitedRequest], last_id: int, now_s: float
    ) -> list[int]:
        """The ids to time out now; ``last_id`` is the last one used."""
        by_age = [*self._overdue_by_age(waiting, last_id, now_s)]
        return [*self._overdue_own(waiting, now_s), *by_age]

    def _overdue_own(self, waiting: Mapping[int, AwaitedRequest], now_s: float) -> Iterator[int]:
        for request_id, due_s in list(self._own.items()):
            answered = request_id not in waiting or waiting[request_id][0].done()
            if answered or due_s <= now_s:
                del self._own[request_id]
            if not answered and due_s <= now_s:
                yield request_id

    def _overdue_by_age(
        self, waiting: Mapping[int, AwaitedRequest], last_id: int, now_s: float
    ) -> Iterator[int]:
        self._marks.append((now_s, last_id))
        newest: int | None = None
        while self._marks and self._marks[0][0] <= now_s - self._timeout_s:
            newest = self._marks.popleft()[1]
        if newest is None:
            return
        for request_id, (future, *_) in waiting.items():
            if (newest - request_id) % MAX_ID > MAX_ID // 2:
                break
            if not future.done() and request_id not in self._own:
                yield request_id
