"""The counts of all queues together, at a bounded cost however many there are."""

from __future__ import annotations

from collections.abc import Iterator

from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.registry import QueueRegistry

LEVELS = ("waiting", "scheduled", "working", "dead")
TOTALS = ("pushed", "finished", "failed", "died")
NAMES = (*LEVELS, *(f"{name}_total" for name in TOTALS))
PER_READ = 250
"""Queues counted again by one reading; if there are more, the others keep their last counts."""
_NOTHING = (0,) * len(NAMES)


class Totals:
    """Sums of which each reading refreshes some queues, in turn.

    The totals of a deleted queue stay, because they only grow; its other counts are dropped
    within one round over all queues.
    """

    def __init__(self, registry: QueueRegistry) -> None:
        self._registry = registry
        self._sums = [0] * len(NAMES)
        self._seen: dict[OpenQueue, tuple[int, ...]] = {}
        self._round: Iterator[OpenQueue] = iter(())

    def read(self) -> dict[str, int]:
        for _ in range(min(PER_READ, max(len(self._registry), len(self._seen)))):
            self._count(self._next())
        return dict(zip(NAMES, self._sums, strict=True))

    def _next(self) -> OpenQueue | None:
        queue = next(self._round, None)
        if queue is None:
            self._round = iter({**dict.fromkeys(self._registry), **self._seen})
            queue = next(self._round, None)
        return queue

    def _count(self, queue: OpenQueue | None) -> None:
        if queue is None:
            return
        before = self._seen.pop(queue, _NOTHING)
        if self._registry.holds(queue):
            now = self._seen[queue] = _counts(queue)
        else:
            now = _NOTHING[: len(LEVELS)] + before[len(LEVELS) :]
        for at, (then, count) in enumerate(zip(before, now, strict=True)):
            self._sums[at] += count - then


def _counts(queue: OpenQueue) -> tuple[int, ...]:
    engine = queue.engine
    ledger, dispatch = engine.ledger, engine.dispatch
    totals = ledger.totals
    return (
        engine.waiting, dispatch.delays.jobs, dispatch.leases.jobs, len(ledger.dead),
        *(totals[name] for name in TOTALS),
    )  # fmt: skip
