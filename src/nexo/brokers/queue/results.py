"""Results of finished jobs, each kept until it expires (SPEC D9)."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from nexo.brokers.queue.records import Resulted


class Results:
    """The results of one queue.

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
