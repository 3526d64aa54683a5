"""The last hour of a number, one point a second; rates, computed from counts; no I/O."""

from __future__ import annotations

from array import array
from math import isnan, nan

SECONDS = 3_600


def step(count: int, most: int) -> int:
    """The number of ``count`` points to average into one, for at most ``most`` or one more."""
    return max(1, -(-count // most))


class Series:
    """Points of one number; None where it was not known."""

    __slots__ = ("_points", "_seconds")

    def __init__(self, seconds: int = SECONDS) -> None:
        self._seconds = seconds
        self._points = array("d")

    def add(self, value: float | None, seconds: int = 1) -> None:
        """The next second, or the next few if nobody looked meanwhile."""
        points = self._points
        points.extend((nan if value is None else value,) * min(seconds, self._seconds))
        if len(points) > self._seconds:
            del points[: len(points) - self._seconds]

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last(self) -> float | None:
        """The newest point."""
        return _known(self._points[-1]) if self._points else None

    def tail(self, seconds: int) -> list[float | None]:
        """The newest points, oldest first."""
        return [_known(point) for point in self._points[-seconds:]]

    def means(self, seconds: int, most: int) -> list[float | None]:
        """The newest ``seconds``, averaged into at most ``most`` points."""
        points = self.tail(seconds)
        size = step(len(points), most)
        first = len(points) % size  # whole steps are counted from the newest point back
        head = [_mean(points[:first])] if first else []
        return head + [_mean(points[at : at + size]) for at in range(first, len(points), size)]


class Rate:
    """A counter as a rate per second; a counter that fell was restarted from 0."""

    __slots__ = ("_at_s", "_count", "series")

    def __init__(self, series: Series) -> None:
        self.series = series
        self._count: float | None = None
        self._at_s = 0.0

    def add(self, count: float | None, now_s: float, seconds: int = 1) -> None:
        """The counter's next reading, which covers the last ``seconds``."""
        if count is None or self._count is None:
            self.series.add(None if count is None else 0.0)
        else:
            grown = count - self._count if count >= self._count else count
            self.series.add(grown / max(now_s - self._at_s, 1e-3), seconds)
        if count is not None:
            self._count, self._at_s = count, now_s


def _known(point: float) -> float | None:
    return None if isnan(point) else point


def _mean(points: list[float | None]) -> float | None:
    known = [point for point in points if point is not None]
    return round(sum(known) / len(known), 3) if known else None


SHORTEST_S = 1.0
"""Readings closer together than this share their rates."""
LONGEST_S = 30.0
"""After a longer pause, a rate would describe the distant past."""


class TopicRates:
    """The counts of the last reading, and the rates between the last two."""

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
