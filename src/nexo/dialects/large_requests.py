"""Memory for requests over the usual size, bounded over all connections of a protocol.

A request takes its room before it arrives and gives it back once it is answered. Without room its
connection is not read from; connections get room in the order in which they asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nexo import limits


class LargeRequests:
    """The room that is taken, and who waits for some."""

    def __init__(self, limit_bytes: int = limits.LARGE_REQUESTS_BYTES) -> None:
        self._limit = limit_bytes
        self._taken = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for room."""
        return bool(self._waiting)

    def take(self, size: int, given: Callable[[], None]) -> bool:
        """Take room for a request. If there is none yet, ``given`` is called once it is taken."""
        if self._waiting or not self._fits(size):
            self._waiting.append((size, given))
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """A request was answered, or its connection is gone."""
        self._taken -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, given = self._waiting.popleft()
            self._taken += size
            given()

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limit
