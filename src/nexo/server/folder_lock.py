"""One server per data folder: a lock that its processes hold together."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from pathlib import Path

from nexo.errors import ConfigError

log = logging.getLogger("nexo.supervisor")

FILE = "nexo.lock"


class FolderLock:
    """Held until every process that inherited it has ended."""

    def __init__(self, folder: Path, wait_s: float = 5.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._acquire(wait_s)

    def _acquire(self, wait_s: float) -> None:
        if self._taken():
            return
        holder = self._holder()
        if wait_s:
            log.warning("waiting for %s to leave %s", holder, self._path.parent)
        deadline = time.monotonic() + wait_s
        while not self._taken():
            if time.monotonic() > deadline:
                os.close(self.fd)
                folder = self._path.parent
                raise ConfigError(f"{folder} is in use by another Nexo server: {holder}")
            time.sleep(0.02)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> str:
        try:
            facts = json.loads(self._path.read_bytes())
            return f"process {facts['pid']} on {facts['host']}:{facts['port']}"
        except (ValueError, KeyError, TypeError):
            return "a process that is starting or stopping"

    def write(self, **facts: object) -> None:
        """Leave facts for tools that look at the folder: process id and ports."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(facts).encode(), 0)

    def close(self) -> None:
        """Let go."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)
