"""Time limits that hold on a busy machine too, where any single measure may be far off."""

from __future__ import annotations

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
