"""One server per data folder: a lock that its processes hold together."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from nexo.errors import ConfigError

FILE = "nexo.lock"


class FolderLock:
    """Held until every process that inherited it has ended."""

    def __init__(self, folder: Path, wait_s: float = 5.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._acquire(wait_s)

    def _acquire(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self.fd)
                    folder = self._path.parent
                    raise ConfigError(f"{folder} is in use by another Nexo server") from None
                time.sleep(0.02)
            else:
                return

    def write(self, **facts: object) -> None:
        """Leave facts for tools that look at the folder: process id and ports."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(facts).encode(), 0)

    def close(self) -> None:
        """Let go."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)
