"""Calls of a process to the machine: descriptors, processor, memory, locks, systemd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import time
from collections.abc import Collection
from pathlib import Path

_SELF = Path("/proc/self")
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NICENESS = 10
"""Of what runs beside the brokers: about a tenth of a broker's share when both want it."""


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as the machine lets it have: connections need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def yield_to_brokers() -> None:
    """Let the brokers run first: for a process that serves people or the lake (SPEC K3)."""
    os.nice(_NICENESS)


def take_lock(fd: int) -> bool:
    """Lock an open file or folder, unless another process that still runs has the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def notify(text: str) -> None:
    """Send systemd one state, such as ``READY=1`` (``Type=notify``), if it runs this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(text.encode(), address)


def threads() -> int:
    """How many threads this process has."""
    return sum(1 for _ in (_SELF / "task").iterdir())


def close_descriptors(but: Collection[int]) -> None:
    """Close every descriptor of this process but some, and its standard ones."""
    for fd in [int(entry.name) for entry in (_SELF / "fd").iterdir()]:
        if fd > 2 and fd not in but:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(fd)


def name_process(name: str) -> None:
    """Have ``ps`` and ``top`` show ``name``, shortened to what there is space for.

    A command line lies where the process was started, and may be written over.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        (_SELF / "comm").write_text(name)
        after_name = (_SELF / "stat").read_text().rpartition(")")[2].split()
        start, end = map(int, after_name[45:47])
        text = name.encode()[: end - start - 1].ljust(end - start, b"\0")
        with (_SELF / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text)


def process_status() -> dict[str, float]:
    return {"pid": os.getpid(), "rss_bytes": _rss_bytes(), "cpu_s": round(time.process_time(), 3)}


def _rss_bytes() -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:  # no /proc here: the peak is the best there is
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
