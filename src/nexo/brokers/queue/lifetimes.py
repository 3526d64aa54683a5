"""Jobs with a maximum time to wait (SPEC D2): when to look for expired ones."""

from __future__ import annotations

from collections.abc import Iterable

from nexo.brokers.queue.batches import Batches, Range

SWEEP_MS = 1_000
"""Expired waiting jobs are removed at most this often; they are never delivered."""


class Lifetimes:
    """Whether any job of a queue has a lifetime, and when its waiting jobs were last swept."""

    __slots__ = ("_batches", "_swept_ms", "any")

    def __init__(self, batches: Batches, now_ms: int) -> None:
        self._batches = batches
        self.any = False
        """Whether a job of the queue has a lifetime; whoever adds one sets it."""
        self.swept(now_ms)

    def next_ms(self, now_ms: int) -> int:
        """When to sweep next; only asked if there is `any`."""
        return max(now_ms, self._swept_ms + SWEEP_MS)

    def expired(self, waiting: Iterable[Range], now_ms: int) -> list[Range]:
        """The open jobs among these that have expired."""
        return [
            run
            for span in waiting
            for batch, run in self._batches.runs(*span)
            if 0 < batch.expires_ms <= now_ms
        ]

    def swept(self, now_ms: int) -> None:
        """Expired jobs were removed; check again whether any job has a lifetime."""
        self.any = any(batch.expires_ms for batch in self._batches)
        self._swept_ms = now_ms
