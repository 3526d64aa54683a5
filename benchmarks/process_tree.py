"""CPU time of this process and everything below it, but not of servers under test."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(skip: str = "nexo.cli") -> float:
    """Seconds used so far; processes whose command line contains ``skip`` are left out."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if skip.encode() in command:
            continue
        pid = int(folder.name)
        children.setdefault(int(fields[1]), []).append(pid)
        # Own time, and that of children that have ended.
        used[pid] = sum(map(int, fields[11:15])) * _TICK_S
    return _total(os.getpid(), children, used)


def _total(pid: int, children: dict[int, list[int]], used: dict[int, float]) -> float:
    below = sum(_total(child, children, used) for child in children.get(pid, []))
    return used.get(pid, 0.0) + below
