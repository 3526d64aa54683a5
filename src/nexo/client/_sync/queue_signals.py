"""Waits for the signals that ask a worker to stop; the async twin uses the event loop."""

from __future__ import annotations

import signal
import threading
from signal import SIGINT, SIGTERM


def stop_signal() -> None:
    """Return when the process is asked to stop: SIGTERM or Ctrl-C. Main thread only."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (SIGTERM, SIGINT)}
    try:
        stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
