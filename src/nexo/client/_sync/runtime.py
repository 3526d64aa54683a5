"""What the brokers' clients need of concurrency, on threads; the async twin uses asyncio."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from nexo.client.worker_processes import ProcessStopSignal as StopSignal

__all__ = [
    "DONE",
    "Event",
    "Mutex",
    "StopSignal",
    "Task",
    "Workers",
    "invoke",
    "invoke_within",
    "is_failure",
    "now_s",
    "sleep",
    "spawn",
]

T = TypeVar("T")

now_s = time.monotonic
sleep = time.sleep
DONE: None = None
"""What a call returns that may be awaited in the async client."""


class Mutex:
    """Held with ``with``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


class Event(threading.Event):
    """A flag to wait for."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until set; False if the time ran out first."""
        return super().wait(timeout_s)


class Task:
    """Work running in a thread of its own."""

    def __init__(
        self, work: Callable[..., object], args: tuple[Any, ...], name: str | None
    ) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work, args), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            work(*args)
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        """Whether the caller runs in it, and thus must not join it."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end and raise what it raised; False if the time ran out first."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True


def spawn(work: Callable[..., object], *args: Any, name: str | None = None) -> Task:
    """Run ``work(*args)`` in a thread, until it returns."""
    return Task(work, args, name)


def invoke(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a user's handler."""
    return handler(*args)


def invoke_within(limit_s: float | None, handler: Callable[..., Any], *args: Any) -> Any:
    """`invoke` for at most so long, then `TimeoutError`; a thread cannot be ended, so that the
    handler goes on unheard."""
    if limit_s is None:
        return handler(*args)
    results: list[Any] = []
    task = Task(lambda: results.append(handler(*args)), (), "nexo-handler")
    if not task.join(limit_s):
        raise TimeoutError(f"the handler ran longer than {limit_s:g} s")
    return results[0]


def is_failure(_error: BaseException) -> bool:
    """Whether a handler failed with it: always, as nothing ends a thread from outside."""
    return True


class Workers:
    """At most ``limit`` pieces of work at once, in threads that stay for the next piece."""

    def __init__(self, limit: int, name: str = "nexo-worker") -> None:
        self._limit = limit
        self._name = name
        self._change = threading.Condition()
        self._work: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._busy = 0
        self._idle = 0
        self._threads: set[threading.Thread] = set()

    def start(self, work: Callable[..., object], *args: Any) -> None:
        """Wait for a free place, then run ``work(*args)`` in it; ``work`` must not raise."""
        with self._change:
            self._change.wait_for(lambda: self._busy < self._limit)
            self._begin(work, args)

    def start_next(self, take: Callable[[], T | None], work: Callable[[T], object]) -> None:
        """Wait for a free place, then run ``work`` in it with what ``take`` gives, if anything."""
        with self._change:
            self._change.wait_for(lambda: self._busy < self._limit)
            item = take()
            if item is not None:
                self._begin(work, (item,))

    def _begin(self, work: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._busy += 1
        self._work.append((work, args))
        if self._idle >= len(self._work):
            self._change.notify_all()
        else:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def is_current(self) -> bool:
        """Whether the caller runs in one of them, and thus must not wait for all."""
        return threading.current_thread() in self._threads

    def _serve(self) -> None:
        self._threads.add(threading.current_thread())
        try:
            self._serve_all()
        finally:
            self._threads.discard(threading.current_thread())

    def _serve_all(self) -> None:
        while (piece := self._next()) is not None:
            work, args = piece
            try:
                work(*args)
            finally:
                with self._change:
                    self._busy -= 1
                    self._change.notify_all()

    def _next(self) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
        """The next piece; None sends an idle thread home after a while."""
        with self._change:
            self._idle += 1
            found = self._change.wait_for(lambda: bool(self._work), timeout=1.0)
            self._idle -= 1
            return self._work.popleft() if found else None

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs; False if the time ran out first."""
        with self._change:
            return self._change.wait_for(lambda: not self._busy, timeout_s)


def in_thread(work: Callable[[], T]) -> T:
    """Do work that blocks, here."""
    return work()
