"""Sends what callers add in a thread of its own: in order, and without keeping them waiting."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

_FLUSH_S = 5.0
_GATHER_S = 0.002
_MOST = 10_000
"""The most that may wait to be sent; beyond it, callers wait until the oldest have been sent."""


class BackgroundSender(ABC, Generic[T]):
    """All that is added while `send` runs is sent together, in its next call."""

    def __init__(self, thread: str, enough: int = 1) -> None:
        """Added items wait a moment for more, unless ``enough`` wait already."""
        self._thread_name = thread
        self._enough = enough
        self._waiting: deque[T] = deque()
        self._change = threading.Condition()
        self._sending = self._flushing = self._closed = False
        self._thread: threading.Thread | None = None

    @abstractmethod
    def send(self, items: list[T]) -> None:
        """Send these; must not raise."""

    def add(self, item: T) -> None:
        """Send this soon; before `close`."""
        with self._change:
            while len(self._waiting) >= _MOST:
                self._change.wait()
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._thread_name, daemon=True
                )
                self._thread.start()
            if len(self._waiting) in (1, self._enough):
                self._change.notify_all()

    def discard(self) -> None:
        """Forget what waits."""
        with self._change:
            self._waiting.clear()

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Wait until all was sent; False if that took too long."""
        with self._change:
            self._flushing = True
            self._change.notify_all()
            try:
                return self._change.wait_for(
                    lambda: not self._waiting and not self._sending, timeout_s
                )
            finally:
                self._flushing = False

    def close(self) -> None:
        """Send what waits, and end."""
        self.flush()
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        while items := self._next():
            self.send(items)

    def _next(self) -> list[T]:
        """The waiting items, as soon as they are enough; none after `close`."""
        with self._change:
            self._sending = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._waiting or self._closed)
            self._change.wait_for(self._is_enough, _GATHER_S)
            items = list(self._waiting)
            self._waiting.clear()
            self._sending = bool(items)
            return items

    def _is_enough(self) -> bool:
        return self._closed or self._flushing or len(self._waiting) >= self._enough
