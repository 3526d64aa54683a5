"""Jobs whose end a client waits for."""

from __future__ import annotations

from nexo.brokers.queue.ledger import pairs, within
from nexo.brokers.queue.records import Died, Finished, QueueRecord, Replaced


class WatchedJobs:
    """The watched jobs of one queue; one is watched until it has ended."""

    __slots__ = ("_ended", "jobs")

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self._ended: list[int] = []

    def note(self, record: QueueRecord) -> None:
        """Find the watched jobs that a record ends, at the cost of the smaller side."""
        match record:
            case Finished(runs=runs):
                ended = [job for job_range in pairs(runs) for job in within(self.jobs, *job_range)]
            case Died(jobs=jobs):
                ended = [job for job in jobs if job in self.jobs]
            case Replaced(job=job):
                ended = [job] if job in self.jobs else []
            case _:
                return
        self._ended += ended
        self.jobs.difference_update(ended)

    def take_ended(self) -> list[int]:
        """The jobs that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended
