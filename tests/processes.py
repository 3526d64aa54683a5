"""The processes of a server that a test has started, each by its name."""

from __future__ import annotations

import contextlib
from pathlib import Path

from nexo.testing import Process

SUPERVISOR = "supervisor"
"""What the process that was started is called here; the others have names."""


def named(server: Process) -> dict[str, int]:
    """Every process of a server that runs: its brokers, ``admin``, ``warm`` and `SUPERVISOR`."""
    return {name: pid for pid, name in _in_group(server.pid).items()}


def broker_pids(server: Process) -> dict[str, int]:
    """The process of each broker."""
    brokers = ("store", "pubsub", "queue", "stream")
    return {name: pid for name, pid in named(server).items() if name in brokers}


def pids(server: Process) -> list[int]:
    """Every process of a server that runs."""
    return list(_in_group(server.pid))


def _in_group(group: int) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            head, _, tail = (folder / "stat").read_text().rpartition(")")
            state, _, its_group = tail.split()[:3]
            if int(its_group) == group and state != "Z":
                name = head.partition("(")[2].removeprefix("nexo: ")
                found[pid] = SUPERVISOR if pid == group else name
    return found
