"""Busy-polls for the next request for a moment after a reply.

Waking a process that sleeps in its event loop takes 30 to 80 µs, longer than a small request
takes to serve. A client that asks, reads and asks again pays that every time. So while requests
do follow replies closely, the loop polls for a while before it sleeps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns

ENOUGH = 4
"""Start busy-polling after this many prompt requests in a row."""
TRUST = 12
"""The count of prompt requests stops here, so that ``TRUST - ENOUGH`` late ones end the polling."""
TAKEN_NS = 100_000
"""If the core comes back later than this, another process wanted it."""
SHARED = 50
"""After that, this many prompt requests must come before the next busy-polling."""
LARGE_BYTES = 8 * 1024
"""A client that sends more than this at once works in batches, and needs the core itself."""


class BusyPoll:
    """The busy-polling of one event loop; a ``poll_us`` of 0 switches it off."""

    __slots__ = ("_call_soon", "_poll_ns", "_polling", "_prompt", "_sent_ns", "_until_ns")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], poll_us: int) -> None:
        self._call_soon = call_soon
        self._poll_ns = poll_us * 1000 if len(os.sched_getaffinity(0)) > 1 else 0
        self._sent_ns = self._until_ns = 0
        self._prompt = 0
        self._polling = False

    def heard(self, now_ns: int, size: int) -> None:
        """Requests of ``size`` bytes arrived; polling stops until they are answered."""
        self._until_ns = 0
        if size > LARGE_BYTES:
            self._prompt = 0
        elif now_ns - self._sent_ns < self._poll_ns:
            if self._prompt < TRUST:
                self._prompt += 1
        elif self._prompt > 0:
            self._prompt -= 1

    def sent(self, now_ns: int) -> None:
        self._sent_ns = now_ns
        if self._prompt >= ENOUGH:
            self._until_ns = now_ns + self._poll_ns
            if not self._polling:
                self._polling = True
                self._call_soon(self._poll)

    def _poll(self) -> None:
        """Ask for one more turn of the loop, which polls its sockets first."""
        now_ns = monotonic_ns()
        self._polling = now_ns < self._until_ns
        if self._polling:
            os.sched_yield()  # other processes that want this core run first
            if monotonic_ns() - now_ns > TAKEN_NS:
                self._prompt, self._until_ns = -SHARED, 0
            self._call_soon(self._poll)
