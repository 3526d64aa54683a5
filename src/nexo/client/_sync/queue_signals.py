"""Waits for the signals that ask a worker to stop; the async twin uses the event loop."""

from __future__ import annotations

import signal
import threading
from signal import SIGINT, SIGTERM


class StopSignal:
    """Heard from the moment it is made: SIGTERM or Ctrl-C. In ``with``, on the main thread."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._before = {
            number: signal.signal(number, lambda *_: self._stop.set())
            for number in (SIGTERM, SIGINT)
        }

    def __enter__(self) -> StopSignal:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self) -> None:
        """Return when the process is asked to stop."""
        self._stop.wait()
