"""A worker hears that it is to stop wherever it is interrupted (SPEC D3)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from nexo.client.worker_processes import ProcessStopSignal

INTERRUPTED = """
import signal, sys
from nexo.client.worker_processes import ProcessStopSignal

def at_each_line(frame, event, arg):
    signal.raise_signal(signal.SIGTERM)
    return at_each_line

with ProcessStopSignal() as asked:
    sys.settrace(at_each_line)
    asked.wait()
    sys.settrace(None)
print("stops")
"""


def test_a_signal_at_any_line_of_the_wait_ends_it() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "stops\n"), done.stderr


def test_another_thread_can_end_the_wait_and_may_come_late() -> None:
    """SPEC D3: a worker whose subscription has ended does not wait for a signal."""
    with ProcessStopSignal() as asked:
        thread = threading.Thread(target=asked.set)
        thread.start()
        asked.wait()
        thread.join()
    asked.set()


def test_signals_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ProcessStopSignal():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
