"""Time limits that hold on a busy machine too, where any single measure may be far off."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

WAIT_S = 60.0
"""Long enough for a machine that does ten other things."""


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


def wait_until(
    look: Callable[[], T],
    limit_s: float = WAIT_S,
    what: str = "it did not come about",
    every_s: float = 0.005,
    despite: tuple[type[Exception], ...] = (),
) -> T:
    """What ``look`` finds once it is true: another thread or process brings it about.

    Errors in ``despite`` mean that it is not true yet.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        with suppress(*despite):
            if found := look():
                return found
        assert time.monotonic() < deadline_s, what
        time.sleep(every_s)


async def eventually(look: Callable[[], Any], limit_s: float = WAIT_S) -> Any:
    """What ``look``, which may be async, finds once it is true: other tasks bring it about."""
    deadline_s = time.monotonic() + limit_s
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline_s, "it did not come about"
        await asyncio.sleep(0.001)
