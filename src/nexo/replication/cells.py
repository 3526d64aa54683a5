"""Numbers that the processes of a server share through a file, read without a system call.

The supervisor says until when the lease lasts; each broker's process says how far its log is.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from struct import Struct

_CELLS = Struct("<2d")
FOREVER = float("inf")


class Cells:
    """Two floats in a file."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < _CELLS.size:
                os.ftruncate(fd, _CELLS.size)
            self._map = mmap.mmap(fd, _CELLS.size)
        finally:
            os.close(fd)

    def get(self) -> tuple[float, ...]:
        return _CELLS.unpack_from(self._map)

    def first(self) -> float:
        return float(_CELLS.unpack_from(self._map)[0])

    def set(self, first: float, second: float = 0.0) -> None:
        _CELLS.pack_into(self._map, 0, first, second)


def now_s() -> float:
    """Seconds on a clock that never steps and also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
