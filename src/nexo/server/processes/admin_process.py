"""The dashboard's process as the supervisor sees it; imports nothing of the dashboard itself."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from nexo.config import Settings
from nexo.server.processes.child import Child
from nexo.server.processes.worker import settings_text


class AdminProcess:
    """The listening socket stays open while the process restarts."""

    def __init__(self, settings: Settings, listener: socket.socket, run: Path, url: str) -> None:
        """``url`` is what users open."""
        self._settings = settings
        self._listener = listener
        self._run = run
        self._url = url
        self._lifeline, self._theirs = socket.socketpair()
        self.child = Child("admin", self._command)

    def _command(self) -> tuple[list[str], Sequence[int]]:
        fds = (self._listener.fileno(), self._theirs.fileno())
        arguments = [*map(str, fds), str(self._run), self._url, settings_text(self._settings)]
        return [sys.executable, "-m", "nexo.server.processes.admin_worker", *arguments], fds

    def close(self) -> None:
        for sock in (self._listener, self._lifeline, self._theirs):
            sock.close()
