"""The folder of one run: sockets between the server's processes, and their token.

Its owner holds a lock on the folder itself. A server that was killed cannot remove its
folder, so the next one to start removes every folder that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from nexo.server.processes.system import take_lock

_PREFIX = "nexo-run-"


class RunFolder:
    """A new folder, which only this server's user may enter; ``path`` is gone after `close`."""

    def __init__(self) -> None:
        remove_stale()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            fd = _hold(self.path)
            if fd is not None:
                self._fd = fd
                return

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def remove_stale() -> None:
    """Remove the folders of this user's servers that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            fd = _open(path)
        except OSError:  # removed meanwhile, a link, or somebody else's
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid() and take_lock(fd):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _hold(path: Path) -> int | None:
    """Lock a new folder; None if another server has just removed it as stale."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_EX)
    if path.exists():
        return fd
    os.close(fd)
    return None
