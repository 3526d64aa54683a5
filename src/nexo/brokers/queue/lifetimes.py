"""What expires: jobs with a maximum time to wait, and the results of jobs (SPEC D2, D9)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from nexo.brokers.queue.batches import Batches, JobRange
from nexo.brokers.queue.records import Resulted

SWEEP_MS = 1_000
"""Expired waiting jobs are removed at most this often; they are never delivered."""


class Lifetimes:
    """Whether any job of a queue has a lifetime, and when its waiting jobs were last swept."""

    __slots__ = ("_batches", "_swept_ms", "any")

    def __init__(self, batches: Batches, now_ms: int) -> None:
        self._batches = batches
        self.any = False
        """Whether a job of the queue has a lifetime; set when one is added."""
        self.swept(now_ms)

    def next_ms(self, now_ms: int) -> int:
        """When to sweep next; only asked if there is `any`."""
        return max(now_ms, self._swept_ms + SWEEP_MS)

    def expired(self, waiting: Iterable[JobRange], now_ms: int) -> list[JobRange]:
        """The open jobs among these that have expired."""
        return [
            run
            for job_range in waiting
            for batch, run in self._batches.runs(*job_range)
            if 0 < batch.expires_ms <= now_ms
        ]

    def swept(self, now_ms: int) -> None:
        """Expired jobs were removed; check again whether any job has a lifetime."""
        self.any = any(batch.expires_ms for batch in self._batches)
        self._swept_ms = now_ms


class Results:
    """The results of a queue's finished jobs, each kept until it expires.

    They need not expire in the order they came: the queue's ``result_ttl_ms`` may change.
    """

    __slots__ = ("_expiries", "by_job")

    def __init__(self, by_job: dict[int, Resulted] | None = None) -> None:
        self.by_job = by_job or {}
        self._expiries = [(result.expires_ms, job) for job, result in self.by_job.items()]
        heapify(self._expiries)

    def keep(self, result: Resulted) -> None:
        self.by_job[result.job] = result
        heappush(self._expiries, (result.expires_ms, result.job))

    def get(self, job: int, now_ms: int) -> bytes | None:
        """What a job returned, if it is still kept."""
        result = self.by_job.get(job)
        return result.value if result is not None and result.expires_ms > now_ms else None

    def drop_expired(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0][0] <= now_ms:
            job = heappop(self._expiries)[1]
            result = self.by_job.get(job)
            if result is not None and result.expires_ms <= now_ms:
                del self.by_job[job]

    def next_ms(self) -> int:
        """When the next one expires. There must be one."""
        return self._expiries[0][0]
