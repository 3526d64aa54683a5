"""Stays awake for a moment after an answer while the next request is near.

A process asleep in its event loop is woken 30 to 80 µs after something has come, which is
longer than a small request takes. A client that asks, reads and asks again waits that long
every time. So while requests do come soon after answers, the loop looks for the next one a
while before it sleeps; as soon as they do not, it sleeps at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns

ENOUGH = 4
"""So many requests in a row came soon after an answer before the loop waits for one awake."""
TRUST = 12
"""The most that counts: after so many that came late less `ENOUGH`, the loop sleeps again."""
LARGE_BYTES = 8 * 1024
"""Who sends so much at once works in batches, and needs the processor more than a quick answer."""


class Vigil:
    """The wakefulness of one event loop; ``span_us`` of 0 is none."""

    __slots__ = ("_awake", "_call_soon", "_sent_ns", "_span_ns", "_trust", "_until_ns")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], span_us: int) -> None:
        self._call_soon = call_soon
        self._span_ns = span_us * 1000 if len(os.sched_getaffinity(0)) > 1 else 0
        self._sent_ns = self._until_ns = 0
        self._trust = 0
        self._awake = False

    def heard(self, now_ns: int, size: int) -> None:
        """Requests of so many bytes have come; what they need goes first."""
        self._until_ns = 0
        if size > LARGE_BYTES:
            self._trust = 0
        elif now_ns - self._sent_ns < self._span_ns:
            if self._trust < TRUST:
                self._trust += 1
        elif self._trust:
            self._trust -= 1

    def sent(self, now_ns: int) -> None:
        """An answer has left."""
        self._sent_ns = now_ns
        if self._trust >= ENOUGH:
            self._until_ns = now_ns + self._span_ns
            if not self._awake:
                self._awake = True
                self._call_soon(self._look)

    def _look(self) -> None:
        """One turn of the loop more: it looks for what has come before it calls this again."""
        if monotonic_ns() < self._until_ns:
            os.sched_yield()  # whoever else wants this processor goes first
            self._call_soon(self._look)
        else:
            self._awake = False
