"""Python processes beside the driver that do small tasks without a Spark job.

A Spark job costs its tasks more than a few records are worth, and Spark's Python workers begin with
cold caches. On one machine, tasks that together are small are done by these processes instead,
which are kept for as long as they are needed (``python -m pyspark_nexo.warm``). Each reads pickled
tasks from its standard input, answers on its standard output, and ends with the driver.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO

from nexo.errors import NexoError, Unavailable

PROCESSES = 2
"""More would wait: the driver plans and commits in one thread."""
IDLE_S = 60.0
"""A process without work ends after this long."""
_LENGTH = struct.Struct("<Q")


class TaskLost(Unavailable):
    """The process of a task ended before the task did."""


@dataclass(slots=True)
class WarmWorkers:
    """Runs tasks in a few processes, which it starts when they are needed."""

    count: int = PROCESSES
    idle_s: float = IDLE_S
    tasks: tuple[int, int] = (0, 0)
    """How many tasks of what runs now are done, and how many there are."""
    _idle: SimpleQueue[_Worker | None] = field(default_factory=SimpleQueue)
    _started: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tasks: Sequence[Callable[[], bytes]]) -> list[bytes]:
        """What each task returns; raises what the first one raised that failed."""
        with self._lock:
            if not self._started:
                self._started = True
                for _ in range(self.count):
                    self._idle.put(None)
        self.tasks = 0, len(tasks)
        with ThreadPoolExecutor(self.count, "nexo-warm") as pool:
            return [self._counted(found) for found in pool.map(self._done, tasks)]

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            for _ in range(self.count if self._started else 0):
                if (worker := self._idle.get()) is not None:
                    worker.code()
            self._started = False

    def _counted(self, found: bytes) -> bytes:
        done, total = self.tasks
        self.tasks = done + 1, total
        return found

    def _done(self, task: Callable[[], bytes]) -> bytes:
        from pyspark import cloudpickle  # noqa: PLC0415 - pyspark takes a second to import

        asked: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        worker = self._idle.get()
        try:
            if worker is not None and (found := worker.answer(asked)) is not None:
                return _opened(found)
            worker = _Worker(self.idle_s)
            if (found := worker.answer(asked)) is None:
                raise TaskLost(f"a task was lost: its process ended with {worker.code()}")
            return _opened(found)
        except TaskLost:
            worker = None
            raise
        finally:
            self._idle.put(worker)


def _opened(found: bytes) -> bytes:
    made = pickle.loads(found)
    if isinstance(made, Exception):
        raise made
    return bytes(made)


class _Worker:
    """One process."""

    def __init__(self, idle_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_nexo.warm", str(idle_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def answer(self, asked: bytes) -> bytes | None:
        """The reply to a request; None if the process had ended for lack of work, or was lost."""
        entrance, exit_ = self._process.stdin, self._process.stdout
        assert entrance is not None
        assert exit_ is not None
        try:
            _send(entrance, asked)
            found = _received(exit_)
        except BrokenPipeError:
            found = None
        if found is None and self.code():
            raise TaskLost(f"a task was lost: its process ended with {self.code()}")
        return found

    def code(self) -> int:
        """How the process ended; 0 if it had no work."""
        self._close()
        return self._process.wait()

    def _close(self) -> None:
        """Have the process end once it has nothing to do."""
        for end in (self._process.stdin, self._process.stdout):
            if end is not None:
                with suppress(BrokenPipeError):
                    end.close()


def _send(file: IO[bytes], content: bytes) -> None:
    file.write(_LENGTH.pack(len(content)))
    file.write(content)
    file.flush()


def _received(file: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = file.read(size)
    return content if len(content) == size else None


def main() -> None:
    """Do tasks until there are none for a while, or the driver has ended."""
    idle_s = float(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tasks print is for people
    asked = sys.stdin.buffer
    while (task := _received(asked)) is not None:
        _send(out, pickle.dumps(_outcome(task)))
        if not select.select([asked], [], [], idle_s)[0]:
            return


def _outcome(task: bytes) -> bytes | Exception:
    try:
        return bytes(pickle.loads(task)())
    except NexoError as error:
        return error
    except Exception as error:  # as Spark tells of it
        return NexoError(f"a task failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
