"""What the processes of a server share of replication, in files of the run.

The supervisor writes what is known of the replicas, for the dashboard. Numbers that are read often
are in `Cells`, without a system call: the supervisor says until when the lease lasts, each
broker's process how far its log is.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from struct import Struct
from typing import Protocol

import msgspec

_CELLS = Struct("<2d")
FILE = "replica.json"
"""In the folder of the run."""


class ReplicaState(msgspec.Struct):
    """This server among those that share an object store."""

    role: str = "starting"
    """``leader``, ``standby`` or ``starting``."""
    leader: str = ""
    """Where clients find the leader."""
    term: str = ""
    """Names the leadership."""
    lag_ms: int = 0
    """Leader: how long the oldest unshipped write has waited. Standby: how far it is behind."""
    lease_number: int = -1
    last_put_ms: int = 0
    """When this leader last renewed its lease; 0 for a standby."""
    standbys: list[str] = []
    """Those that the leader knows of, by their server ids."""
    problem: str = ""
    """What is wrong now."""
    prepared: bool = False
    """Of a standby: whether processes wait, so that a takeover is quick."""
    takeover_ms: int = 0
    """From asking for the lease until all brokers served, the last time."""


class Cells(Protocol):
    """Two floats that one process of a server writes and others read."""

    def get(self) -> tuple[float, ...]: ...

    def set(self, first: float, second: float = 0.0) -> None: ...


class FileCells:
    """`Cells` in a file that is mapped into memory."""

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

    def set(self, first: float, second: float = 0.0) -> None:
        _CELLS.pack_into(self._map, 0, first, second)


def now_s() -> float:
    """Seconds on a clock that never steps and also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
