"""A server for one suite, with its data in a temporary folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

STARTS_S = 60


@contextmanager
def serving(variables: Mapping[str, str]) -> Iterator[int]:
    """Run `nexo serve` with these variables; gives its port."""
    ports = _free_ports()
    names = ("port", "http-port", "health-port")
    flags = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    with tempfile.TemporaryDirectory(prefix="nexo-compat-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", "from nexo.cli import main; main()", "serve", *flags]
        server = subprocess.Popen(
            [*command, f"--data-dir={folder}"],
            env=os.environ | dict(variables), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(ports[0], server)
            yield ports[0]
        finally:
            server.terminate()
            server.wait()


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTS_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the server did not start")
