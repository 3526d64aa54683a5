"""Work that is due for many: one that fails is logged, and the others still get their turn.

Without this, an error that comes back with every tick would stop all that follows it in the tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from nexo.brokers.deadlines import KeyDeadlines

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
