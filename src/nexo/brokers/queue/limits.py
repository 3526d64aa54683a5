"""A token bucket: a rate per second, and a burst after a pause."""

from __future__ import annotations

from math import ceil


class TokenBucket:
    """Holds up to ``burst`` tokens and gains ``per_s`` a second; starts full."""

    __slots__ = ("_at_ms", "_tokens", "burst", "per_s")

    def __init__(self, per_s: float, burst: int, now_ms: int) -> None:
        self.per_s = per_s
        self.burst = burst
        self._tokens = float(burst)
        self._at_ms = now_ms

    def available(self, now_ms: int) -> int:
        """Whole tokens available now."""
        gained = max(0, now_ms - self._at_ms) * self.per_s / 1_000
        self._tokens = min(self.burst, self._tokens + gained)
        self._at_ms = max(now_ms, self._at_ms)
        # A small excess, or rounding loses a token due at this very millisecond.
        return int(self._tokens + 1e-6)

    def take(self, count: int) -> None:
        """Use ``count`` tokens that `available` reported."""
        self._tokens -= count

    def next_ms(self) -> int:
        """When the next whole token is available."""
        missing = 1 - self._tokens
        return self._at_ms if missing <= 1e-6 else self._at_ms + ceil(missing * 1_000 / self.per_s)

    def full(self, now_ms: int) -> bool:
        """Whether it is full: then dropping it changes nothing."""
        return self.available(now_ms) >= self.burst
