"""Child processes that cannot be started (SPEC A2)."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from typing import Any

import pytest

from nexo.server import child
from nexo.server.child import Child


async def test_a_failed_spawn_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN, as a machine short of processes gives it, must not end supervision."""
    monkeypatch.setattr(child, "LONGEST_PAUSE_S", 0.01)
    spawn, failures = asyncio.create_subprocess_exec, [1, 1, 1]

    async def short_of_processes(*command: str, **options: Any) -> asyncio.subprocess.Process:
        if failures:
            failures.pop()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await spawn(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", short_of_processes)
    started = asyncio.Event()

    def start() -> tuple[list[str], tuple[int, ...]]:
        if not failures:
            started.set()
        return [sys.executable, "-c", "input()"], ()

    kept = Child("test", start)
    kept.open()
    await asyncio.wait_for(started.wait(), 10)
    assert kept.restarts >= 3
    await kept.stop(5)
