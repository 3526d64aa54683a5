"""Several worker processes under one command: started, watched, stopped together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from nexo.client.stop_signal import ProcessStopSignal

log = logging.getLogger("nexo.django")

PARENT = "NEXO_WORKER_PARENT"
"""Set in the environment of a worker that another process has started: its id."""
_LOOK_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 10.0
"""A worker that ran this long before it ended is started again at once."""


class CommandProcesses:
    """Keeps ``count`` processes of ``command`` running until this one is asked to stop."""

    def __init__(self, command: Sequence[str], count: int, stop_timeout_s: float) -> None:
        self._command = command
        self._environment = {**os.environ, PARENT: str(os.getpid())}
        self._stop_timeout_s = stop_timeout_s
        self._slots = [_Slot() for _ in range(count)]
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until SIGTERM or Ctrl-C, which the workers are then sent."""
        with ProcessStopSignal() as asked:
            watch = threading.Thread(target=self._watch, name="nexo-workers")
            watch.start()
            try:
                asked.wait()
            finally:
                self._stopping.set()
                watch.join()
                self._stop()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for slot in self._slots:
                if slot.is_due():
                    slot.start(self._command, self._environment)
            self._stopping.wait(_LOOK_S)

    def _stop(self) -> None:
        deadline_s = time.monotonic() + self._stop_timeout_s + 5
        running = [slot.process for slot in self._slots if slot.process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("worker %d does not stop: it is killed", process.pid)
                process.kill()
                process.wait()


class _Slot:
    """One of the processes, and when it may be started again."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._not_before_s = 0.0
        self._pause_s = 0.0

    def is_due(self) -> bool:
        if self.process is not None:
            if self.process.poll() is None:
                return False
            self._ended(self.process)
        return time.monotonic() >= self._not_before_s

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        log.warning("worker %d ended with %d", process.pid, process.returncode)
        now_s = time.monotonic()
        steady = now_s - self._started_s >= _STEADY_S
        self._pause_s = 0.0 if steady else min(_LONGEST_PAUSE_S, self._pause_s * 2 or 0.5)
        self._not_before_s = now_s + self._pause_s
        self.process = None

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._started_s = time.monotonic()
        self.process = subprocess.Popen(command, env=environment)


def orphaned() -> bool:
    """Whether the process that started this worker is gone."""
    parent = os.environ.get(PARENT)
    return parent is not None and os.getppid() != int(parent)
