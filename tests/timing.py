"""Time limits that hold on a busy machine too, where any single measure may be far off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def often_within(
    limit_s: float, measure: Callable[[], float], wanted: int = 3, tries: int = 30
) -> bool:
    """Whether ``measure`` takes no longer than this ``wanted`` times in at most ``tries``."""
    found = 0
    for _ in range(tries):
        found += measure() <= limit_s
        if found == wanted:
            return True
    return False


def wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for what another thread or process brings about."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.005)


async def eventually(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for what other tasks of this loop bring about."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about"
        await asyncio.sleep(0.001)
