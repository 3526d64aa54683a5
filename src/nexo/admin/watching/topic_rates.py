"""How fast topics get messages, told from the counts that looks at them found; no I/O."""

from __future__ import annotations

SHORTEST_S = 1.0
"""Looks closer together than this share their rates."""
LONGEST_S = 30.0
"""After a longer pause a rate would be about a time long gone."""


class TopicRates:
    """The counts of the last look, and the rates between the last two."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._at_s = float("-inf")
        self._rates: dict[str, float] = {}

    def looked(self, counts: dict[str, int], now_s: float) -> dict[str, float]:
        """The rates per second of topics known before."""
        passed_s = now_s - self._at_s
        if passed_s < SHORTEST_S:
            return self._rates
        before = self._counts if passed_s <= LONGEST_S else {}
        self._rates = {
            topic: max(0, count - before.get(topic, 0)) / passed_s
            for topic, count in counts.items()
            if before
        }
        self._counts, self._at_s = counts, now_s
        return self._rates
