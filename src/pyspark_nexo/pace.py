"""When each stream is taken: when its target lag is reached, and after a pause if it failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How late a stream may be in the lake; whichever limit is reached first counts."""

    seconds: float = 0.0
    rows: int | None = None
    bytes: int | None = None

    def reached(self, waited_s: float, rows: int, size_bytes: float) -> bool:
        """Whether to take a stream that has waited this long, with this many rows and bytes."""
        return (
            waited_s >= self.seconds
            or (self.rows is not None and rows >= self.rows)
            or (self.bytes is not None and size_bytes >= self.bytes)
        )


@dataclass(slots=True)
class Pace:
    """Decides for each stream; ``lags`` are exceptions from ``lag``."""

    lag: Lag = field(default_factory=Lag)
    lags: Mapping[str, Lag] = field(default_factory=dict)
    ahead_s: float = 0.0
    """About how long a micro-batch takes: a stream is taken that much earlier."""
    clock: Callable[[], float] = time.monotonic
    _waiting: dict[str, float] = field(default_factory=dict)
    """Since when each stream has had records that are not taken yet."""
    _failures: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often a stream failed in a row, and when it is tried again."""

    def ready(self, names: Iterable[str]) -> list[str]:
        """Streams that are not waiting after a failure."""
        now_s = self.clock()
        return [name for name in names if self._failures.get(name, (0, now_s))[1] <= now_s]

    def due(self, name: str, rows: int, size_bytes: float) -> bool:
        """Whether to take a stream now that lacks this many rows and bytes."""
        since_s = self._waiting.setdefault(name, self.clock())
        waited_s = self.clock() - since_s + self.ahead_s
        return self.lags.get(name, self.lag).reached(waited_s, rows, size_bytes)

    def took(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._failures.pop(name, None)

    def failed(self, name: str, every_s: float) -> None:
        """A stream failed: pause, twice as long as the last time."""
        count = self._failures.get(name, (0, 0.0))[0] + 1
        pause_s = min(max(every_s, 0.5) * 2.0**count, LONGEST_PAUSE_S)
        self._failures[name] = count, self.clock() + pause_s

    def went_well(self, names: Iterable[str]) -> None:
        """These streams did not fail this time."""
        for name in names:
            self._failures.pop(name, None)
