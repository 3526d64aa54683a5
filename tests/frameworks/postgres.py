"""A PostgreSQL server for a test: Debian's binaries, a temporary folder, a Unix socket only."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.timing import wait_until


@contextmanager
def postgres(**settings: str) -> Iterator[str]:
    """The folder of its socket, which is a host for its clients; user and database: postgres."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="nexo-postgres-") as name:
        folder = Path(name)
        as_whom = _unprivileged(folder)
        make: list[str | Path] = [
            programs / "initdb",
            "-D",
            folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        quick = ["-N", "--no-locale", "-E", "UTF8"]
        subprocess.run([*as_whom, *make, *quick], check=True, stdout=subprocess.DEVNULL)
        serve: list[str | Path] = [
            programs / "postgres",
            "-D",
            folder / "data",
            "-k",
            folder,
            "-h",
            "",
            "-F",
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen([*as_whom, *serve], stdout=log, stderr=log)
        try:
            ready: list[str | Path] = [programs / "pg_isready", "-q", "-h", folder]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 60)
            yield name
        finally:
            server.terminate()
            server.wait(30)


class _Relay(socketserver.BaseRequestHandler):
    """One connection, passed on to the Unix socket."""

    server: _RelayServer

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as inner:
            inner.connect(f"{self.server.folder}/.s.PGSQL.5432")
            back = threading.Thread(target=_copy, args=(inner, self.request), daemon=True)
            back.start()
            _copy(self.request, inner)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class _RelayServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    folder = ""


@contextmanager
def tcp_port(folder: str) -> Iterator[int]:
    """A port on 127.0.0.1 for clients that know no Unix sockets; nobody else can take it."""
    with _RelayServer(("127.0.0.1", 0), _Relay) as relay:
        relay.folder = folder
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        yield relay.server_address[1]
        relay.shutdown()


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs PostgreSQL: apt install postgresql")
    return found[-1].parent


def _unprivileged(folder: Path) -> list[str]:
    """It refuses to run as root."""
    if os.getuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    shutil.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
