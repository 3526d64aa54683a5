"""A real Redis for the tests: nothing on disk, a free port, ended with the session."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from nexo.testing import free_port

_READY_S = 10.0


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Yields its URL. Without the binary: skipped on a laptop, failed in CI."""
    binary = shutil.which("redis-server")
    if binary is None:
        if os.environ.get("CI") == "true":
            pytest.fail("redis-server is not installed")
        pytest.skip("redis-server is not installed")
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL)
    try:
        _await_ready(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def _await_ready(port: int) -> None:
    deadline_s = time.monotonic() + _READY_S
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)
            else:
                return
