"""A real Redis for the tests: nothing on disk, a free port, ended with the session."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from nexo.testing import free_port
from tests.timing import wait_until


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Yields its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
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
    with redis.Redis(port=port) as client:
        wait_until(client.ping, what="Redis does not answer", despite=(redis.ConnectionError,))
