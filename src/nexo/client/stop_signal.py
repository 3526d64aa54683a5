"""Waits, without an event loop, for the signals that ask a process to stop."""

from __future__ import annotations

import os
import signal
import threading
from signal import SIGINT, SIGTERM


class ProcessStopSignal:
    """Catches signals from its creation, on the main thread, until ``with`` ends.

    A signal may interrupt the main thread while it holds a lock, so the handler must take none,
    which setting a `threading.Event` would. It writes to a pipe instead.
    """

    def __init__(self, *numbers: int) -> None:
        """Without ``numbers``: SIGTERM and Ctrl-C."""
        self._heard, self._tell = os.pipe()
        self._ending = threading.Lock()
        self._ended = False
        self._before = {
            number: signal.signal(number, lambda *_: os.write(self._tell, b"!"))
            for number in numbers or (SIGTERM, SIGINT)
        }

    def __enter__(self) -> ProcessStopSignal:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with self._ending:
            self._ended = True
            os.close(self._heard)
            os.close(self._tell)

    def set(self) -> None:
        """Let `wait` return as if a signal had come; for other threads, at any time."""
        with self._ending:
            if not self._ended:
                os.write(self._tell, b"!")

    def wait(self) -> None:
        """Return when the process is asked to stop."""
        os.read(self._heard, 1)
