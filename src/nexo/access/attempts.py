"""Limits failed logins, per address and user and per address alone (SPEC A10).

A lock-out rejects passwords, even the right one. A valid token is still accepted, since nobody
can guess one. `LoginReports` share failures between the processes of a server: without them,
guesses would be limited per broker, not per server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from nexo.errors import LockedOut
from nexo.limits import LOCKED_OUT_MS

PER_USER = 5
PER_ADDRESS = 50
_MOST_KEYS = 10_000


_KEY_BYTES = 16
REPORT_BYTES = 2 * _KEY_BYTES


class Attempts:
    """Counts failures in a window that each failure renews; memory is bounded."""

    def __init__(self) -> None:
        self._failures: dict[bytes, tuple[int, int]] = {}

    def locked(self, address: str, user: str, now_ms: int) -> LockedOut | None:
        """The error once there were too many failures; None before that."""
        tried = self._count(_key(address, user), now_ms) >= PER_USER
        if tried or self._count(_key(address, ""), now_ms) >= PER_ADDRESS:
            return LockedOut(f"too many failed logins; wait {LOCKED_OUT_MS // 1000} seconds")
        return None

    def failed(self, address: str, user: str, now_ms: int) -> bytes:
        """Count a failure; returns a report for other processes, empty if they need none."""
        whole = _key(address, "")
        report = _key(address, user) + whole
        self.heard(report, now_ms)
        return report if self._count(whole, now_ms) <= PER_ADDRESS else b""

    def heard(self, report: bytes, now_ms: int) -> None:
        """Count a failure that this or another process reported."""
        if len(self._failures) >= _MOST_KEYS:
            self._forget(now_ms)
        for key in (report[:_KEY_BYTES], report[_KEY_BYTES:]):
            self._failures[key] = (self._count(key, now_ms) + 1, now_ms)

    def _count(self, key: bytes, now_ms: int) -> int:
        count, last_ms = self._failures.get(key, (0, 0))
        return count if now_ms - last_ms < LOCKED_OUT_MS else 0

    def _forget(self, now_ms: int) -> None:
        """Drop expired counts; under a flood from everywhere, all of them."""
        kept = {key: row for key, row in self._failures.items() if now_ms - row[1] < LOCKED_OUT_MS}
        self._failures = kept if len(kept) < _MOST_KEYS // 2 else {}


def _key(address: str, user: str) -> bytes:
    """A key of fixed length, however long the name."""
    text = f"{address}\0{user}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_KEY_BYTES).digest()


log = logging.getLogger("nexo.access")

_MANY = 64


class LoginReports:
    """A socket in the run folder for reports of `Attempts`; ``heard`` receives those of others."""

    def __init__(self, run_folder: Path, heard: Callable[[bytes], None]) -> None:
        self._folder = run_folder
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._path = run_folder / f"{os.getpid()}.logins"
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self._path))
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def send(self, report: bytes) -> None:
        """Send a report to the other processes; one whose buffer is full has received enough."""
        for path in self._folder.glob("*.logins"):
            if path == self._path:
                continue
            try:
                self._socket.sendto(report, str(path))
            except ConnectionRefusedError:  # left by a process that was killed
                path.unlink(missing_ok=True)
            except OSError:
                log.debug("%s did not receive the report of a failed login", path.stem)

    def _receive(self) -> None:
        for _ in range(_MANY):
            try:
                report = self._socket.recv(REPORT_BYTES + 1)
            except OSError:
                return
            if len(report) == REPORT_BYTES:
                self._heard(report)

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._path.unlink(missing_ok=True)
