"""Publishes events without keeping the caller waiting.

Celery's event dispatcher publishes a buffer of events and then empties it, while its threads add
to it. An event that is added while the dispatcher waits for a broker is lost, so it must not wait.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

_FLUSH_S = 5.0
_MOST = 10_000
"""Messages that wait to be sent; beyond that, callers wait until the oldest have been sent."""


class BackgroundPublisher:
    """Sends messages in order, in a thread of its own."""

    def __init__(self) -> None:
        self._pid = 0
        self._restart()

    def _restart(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._change = threading.Condition()
        self._sending = False
        self._closed = False
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def add(self, publish: Callable[[], object]) -> None:
        """Call ``publish`` soon; raises what an earlier one raised in the background."""
        if self._pid != os.getpid():  # a thread does not survive a fork
            self._pid = os.getpid()
            self._restart()
        with self._change:
            if (failure := self._failure) is not None:
                self._failure = None
                raise failure
            if self._closed:
                publish()
                return
            self._change.wait_for(lambda: len(self._waiting) < _MOST)
            self._waiting.append(publish)
            if self._thread is None:
                self._start()
            self._change.notify_all()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="nexo-events", daemon=True)
        self._thread.start()
        _publishers.add(self)

    def flush(self, timeout_s: float = _FLUSH_S) -> None:
        """Wait until all has been sent, or failed."""
        if self._pid == os.getpid():
            with self._change:
                self._change.wait_for(lambda: not (self._waiting or self._sending), timeout_s)

    def close(self) -> None:
        """Send what waits, and end."""
        self.flush()
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        while (publish := self._next()) is not None:
            try:
                publish()
            except Exception as error:
                self._fail(error)

    def _next(self) -> Callable[[], object] | None:
        with self._change:
            self._sending = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            self._sending = True
            return self._waiting.popleft()

    def _fail(self, error: Exception) -> None:
        """What waits would fail alike: whoever publishes next is told."""
        with self._change:
            self._failure = error
            self._waiting.clear()


_publishers: weakref.WeakSet[BackgroundPublisher] = weakref.WeakSet()


@atexit.register
def _flush() -> None:
    """A process that ends right after it has published something still sends it."""
    for publisher in list(_publishers):
        publisher.flush()
