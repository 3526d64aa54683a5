"""Child processes that cannot be started, or take their time to stop (SPEC A2, A7)."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from nexo.server.processes import child
from nexo.server.processes.child import Child, Running
from tests.timing import wait_until


async def test_a_failed_spawn_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN, as a machine short of processes gives it, must not end supervision."""
    monkeypatch.setattr(child, "LONGEST_PAUSE_S", 0.01)
    failures, started = [1, 1, 1], asyncio.Event()

    async def start() -> Running:
        if failures:
            failures.pop()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.set()
        return await spawned(sys.executable, "-c", "input()")

    kept = Child("test", start)
    kept.open()
    await asyncio.wait_for(started.wait(), 10)
    assert kept.restarts >= 3
    await kept.stop(5)


async def spawned(*command: str) -> Running:
    return await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)


SLOW = """
import signal, sys, time, pathlib
steps, path = int(sys.argv[1]), pathlib.Path(sys.argv[2])
def stop(*_):
    for _ in range(steps):
        time.sleep(0.1)
        path.with_name("progress").touch()
    if steps < 0:
        time.sleep(60)
    sys.exit(int(sys.argv[3]))
signal.signal(signal.SIGTERM, stop)
path.touch()
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    ("steps", "code", "clean"), [(12, 0, True), (12, 1, False), (-1, 0, False), (0, 0, True)]
)
async def test_who_makes_progress_is_let_finish_and_a_loss_is_reported(
    tmp_path: Path, steps: int, code: int, clean: bool
) -> None:  # F3
    started, progress = tmp_path / "started", tmp_path / "progress"
    command = [sys.executable, "-c", SLOW, str(steps), str(started), str(code)]
    kept = Child("test", lambda: spawned(*command))
    kept.open()
    await asyncio.to_thread(wait_until, started.exists)
    stopped = await kept.stop(
        1.0, lambda: progress.stat().st_mtime_ns if progress.exists() else None
    )
    assert stopped == clean
    assert kept.pid is None
