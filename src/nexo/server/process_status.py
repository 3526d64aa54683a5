"""What this process uses of the machine."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_status() -> dict[str, float]:
    return {"pid": os.getpid(), "rss_bytes": _rss_bytes(), "cpu_s": round(time.process_time(), 3)}


def _rss_bytes() -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:  # no /proc here: the peak is the best there is
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
