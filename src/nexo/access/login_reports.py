"""Shares failed logins between the processes of one server.

Each broker's process logs connections in by itself. Without this, guesses would be limited
per broker, not per server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from nexo.access.attempts import REPORT_BYTES

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
