"""Due work and long work, so that neither stops anything else.

Of the work that is due for many, one that fails is logged, and the others still get their turn:
otherwise an error that comes back with every tick would stop all that follows it in the tick.
Long work runs in slices, between which requests are answered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from nexo.brokers.deadlines import KeyDeadlines
from nexo.errors import NexoError, internal_error
from nexo.services.service import Runtime

log = logging.getLogger("nexo.tick")

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

RETRY_MS = 1_000
"""How soon work that failed is tried again."""


def for_each(
    items: Iterable[T], work: Callable[[T], object], failed: Callable[[T], object]
) -> None:
    """Do ``work`` for each of ``items``; ``failed`` gets those for which it raised."""
    for item in items:
        try:
            work(item)
        except Exception:
            log.exception("the work that was due for %.100r failed", item)
            failed(item)


def for_each_due(deadlines: KeyDeadlines[K], now_ms: int, work: Callable[[K], object]) -> None:
    """Do ``work`` for each key that is due, and again after `RETRY_MS` if it raised."""
    for_each(deadlines.due(now_ms), work, lambda key: deadlines.plan(key, now_ms + RETRY_MS))


SLICE_MS = 4
"""How long requests may have to wait for a slice."""

WhenFailed: TypeAlias = Callable[[NexoError], None]


class Slices:
    """Iterators that are advanced in turn, a slice with each `run`, which ``wake_at`` asks for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[tuple[Iterator[None], WhenFailed]] = deque()

    def add(self, steps: Iterator[None], failed: WhenFailed = lambda _: None) -> None:
        """Start work of short steps, the first of them now; ``failed`` gets what one raises."""
        self._waiting.append((steps, failed))
        self.run()

    def run(self) -> None:
        """Run one slice."""
        clock = self._runtime.clock
        until_ms = clock.now_ms() + SLICE_MS
        while self._waiting and clock.now_ms() < until_ms:
            self._step(*self._waiting.popleft())
        if self._waiting:
            self._runtime.wake_at(clock.now_ms() + 1)

    def _step(self, steps: Iterator[None], failed: WhenFailed) -> None:
        try:
            next(steps)
        except StopIteration:
            return
        except NexoError as error:
            failed(error)
        except Exception:
            log.exception("long work failed")
            failed(internal_error())
        else:
            self._waiting.append((steps, failed))
