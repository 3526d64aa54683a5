"""How long things take: counts by the power of two that each stays below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BITS = 64
_LEAST, _MOST = 13, 34
BOUNDS_S = tuple(2**bits / 1e9 for bits in range(_LEAST, _MOST + 1))
"""Upper bounds of `Histogram.buckets`, from 8 µs to 17 s; one more bucket has no bound."""


class Histogram:
    """Durations. To add a thousand equal ones costs what one does."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * _BITS
        """At ``b``: how many took less than ``2**b`` ns, but no less than half of that."""
        self.total_ns = 0

    def add(self, took_ns: int, count: int = 1) -> None:
        """``count`` things took this long; a negative count takes them back."""
        self.counts[took_ns.bit_length()] += count
        self.total_ns += took_ns * count

    def buckets(self) -> list[int]:
        """The counts below each of `BOUNDS_S` but not below the one before, then the rest."""
        counts = self.counts
        middle = counts[_LEAST + 1 : _MOST + 1]
        return [sum(counts[: _LEAST + 1]), *middle, sum(counts[_MOST + 1 :])]

    def status(self) -> dict[str, Any]:
        """For a broker's status: the buckets, the sum, and what half and nearly all stay below."""
        buckets = self.buckets()
        return {
            "buckets": buckets,
            "sum_s": self.total_ns / 1e9,
            "p50_ms": quantile_ms(buckets, 0.5),
            "p99_ms": quantile_ms(buckets, 0.99),
        }


def quantile_ms(buckets: Sequence[int], share: float) -> float | None:
    """`quantile_s` in milliseconds, rounded for people."""
    found_s = quantile_s(buckets, share)
    return None if found_s is None else round(found_s * 1000, 3)


def quantile_s(buckets: Sequence[int], share: float) -> float | None:
    """How long a ``share`` of all took at most, about; None if there were none."""
    rank, below = share * sum(buckets), 0
    for at, count in enumerate(buckets):
        if count and below + count >= rank:
            # Within a bucket, durations are taken to lie evenly on the logarithmic scale.
            upper = BOUNDS_S[min(at, len(BOUNDS_S) - 1)]
            return float(upper * 2 ** ((rank - below) / count - 1))
        below += count
    return None
