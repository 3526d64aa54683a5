"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from random import SystemRandom

_FIRST_S, _LONGEST_S = 0.05, 2.0

_luck = SystemRandom()
"""Not the module's generator: what a program seeds for itself stays its own, on any thread."""


def pause_s(failures: int) -> float:
    """Seconds: doubling, and spread at random so that many clients do not return together."""
    longest_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(failures, 10))
    return longest_s * _luck.uniform(0.5, 1.0)
