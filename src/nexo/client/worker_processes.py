"""Several processes of one worker: started, watched, started again, and stopped together.

Processes are spawned, so that each imports the handler's module afresh: that is also how a
reload works. One that ends by itself is started again after a pause. SIGTERM and Ctrl-C pass on
to all; one that has not ended by then is killed. If the first process is lost, the others stop
as they do on SIGTERM. `stop_signal` waits for these signals without an event loop.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import FrameType

log = logging.getLogger("nexo.worker")

LOOK_S = 0.5
"""How often sources are looked at, and processes that ended are counted."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
KILL_S = 5.0
"""The time that a process has beyond the time its jobs have to end."""
WRONG_USAGE = 2
_SKIPPED = {"__pycache__", "node_modules", "venv", "build", "dist"}

Snapshot = dict[str, int]


def sources(folder: Path) -> Snapshot:
    """When each Python file below ``folder`` was changed; hidden folders are left out."""
    changed: Snapshot = {}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                file = Path(path, name)
                with suppress(FileNotFoundError):  # removed meanwhile
                    changed[str(file)] = file.stat().st_mtime_ns
    return changed


def stop_with_parent() -> None:
    """Stop this process, as SIGTERM would, when the one that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="nexo-parent", daemon=True).start()


@dataclass
class Slot:
    """One of the processes, over all its restarts."""

    process: SpawnProcess | None = None
    pause_s: float = FIRST_PAUSE_S
    started_s: float = 0.0
    due_s: float = 0.0


@dataclass
class WorkerProcesses:
    """Keeps ``count`` processes running ``work`` until a signal comes."""

    work: Callable[[], None]
    count: int
    stop_timeout_s: float | None = None
    reload_folder: Path | None = None
    _slots: list[Slot] = field(default_factory=list)
    _stopping: bool = False
    _exit_code: int = 0

    def run(self) -> int:
        """Return when all have ended: 0 after a signal, 2 if the command was wrong."""
        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._slots = [Slot() for _ in range(self.count)]
        seen = self._look()
        try:
            while not self._stopping:
                self._start_due()
                self._sleep()
                now = self._look()
                if now != seen:
                    seen = now
                    self._reload()
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._exit_code

    def _look(self) -> Snapshot:
        return {} if self.reload_folder is None else sources(self.reload_folder)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for process in self._running():
            process.terminate()

    def _running(self) -> list[SpawnProcess]:
        return [one.process for one in self._slots if one.process and one.process.is_alive()]

    def _sleep(self) -> None:
        wait([process.sentinel for process in self._running()], timeout=LOOK_S)

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for slot in self._slots:
            if slot.process is not None and not slot.process.is_alive():
                self._ended(slot, now_s)
            if slot.process is None and slot.due_s <= now_s and not self._stopping:
                slot.process = multiprocessing.get_context("spawn").Process(target=self.work)
                slot.started_s = now_s
                slot.process.start()

    def _ended(self, slot: Slot, now_s: float) -> None:
        assert slot.process is not None
        code = slot.process.exitcode
        slot.process = None
        if code == WRONG_USAGE and self.reload_folder is None:  # it would end so every time
            self._stopping, self._exit_code = True, WRONG_USAGE
            return
        if now_s - slot.started_s > LONGEST_PAUSE_S:
            slot.pause_s = FIRST_PAUSE_S
        log.warning("a process ended with %s: starting it again in %.1f s", code, slot.pause_s)
        slot.due_s = now_s + slot.pause_s
        slot.pause_s = min(2 * slot.pause_s, LONGEST_PAUSE_S)

    def _reload(self) -> None:
        log.info("sources changed: starting again")
        self._end_all()
        self._slots = [Slot() for _ in range(self.count)]

    def _end_all(self) -> None:
        for process in self._running():
            process.terminate()
        patience_s = None if self.stop_timeout_s is None else self.stop_timeout_s + KILL_S
        deadline_s = None if patience_s is None else time.monotonic() + patience_s
        for process in self._running():
            process.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                log.error("process %s did not stop in time: killing it", process.pid)
                process.kill()
                process.join()


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
