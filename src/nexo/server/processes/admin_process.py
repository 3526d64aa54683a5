"""The dashboard's process as the supervisor sees it; imports nothing of the dashboard itself."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nexo.config import Settings
from nexo.server.processes.child import Child
from nexo.server.processes.worker import settings_text


@dataclass(frozen=True, slots=True)
class Start:
    """The arguments of the process."""

    listener_fd: int
    lifeline_fd: int
    """Becomes readable when the supervisor ends."""
    run_folder: str
    url: str
    """The URL that users open."""


class AdminProcess:
    """The listening socket stays open while the process restarts."""

    def __init__(self, settings: Settings, listener: socket.socket, run: Path, url: str) -> None:
        self._settings = settings
        self._listener = listener
        self._lifeline, self._theirs = socket.socketpair()
        self._start = Start(listener.fileno(), self._theirs.fileno(), str(run), url)
        self.child = Child("admin", self._command)

    def _command(self) -> tuple[list[str], Sequence[int]]:
        text = msgspec.json.encode(self._start).decode()
        arguments = [text, settings_text(self._settings)]
        command = [sys.executable, "-m", "nexo.server.processes.admin_worker", *arguments]
        return command, (self._start.listener_fd, self._start.lifeline_fd)

    def close(self) -> None:
        for sock in (self._listener, self._lifeline, self._theirs):
            sock.close()
