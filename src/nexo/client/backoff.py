"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random

_FIRST_S, _LONGEST_S = 0.05, 2.0


def pause_s(failures: int) -> float:
    """Seconds: doubling, and spread at random so that many clients do not return together."""
    longest_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(failures, 10))
    return longest_s * random.uniform(0.5, 1.0)
