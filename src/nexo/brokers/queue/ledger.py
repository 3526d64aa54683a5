"""What must survive a crash: the queue as its records describe it.

The ledger changes only by `apply`, in normal work and in recovery alike; replaying a log
therefore gives the ledger that wrote it. Three things need no record: results are dropped
when they expire, `withdraw` undoes a push that was never written, and which jobs their workers
gave back is forgotten in a crash. It knows nothing of consumers.

`WatchedJobs` are those whose end a client waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from nexo.brokers.queue.batches import DEAD, DONE, OPEN, Batches, JobBatchRange, JobRange
from nexo.brokers.queue.lifetimes import Results
from nexo.brokers.queue.records import (
    Changed,
    CronMoved,
    CronSet,
    Died,
    Failed,
    Finished,
    Moved,
    Pushed,
    QueueCreated,
    QueueRecord,
    Replaced,
    Resulted,
    Revived,
)  # fmt: skip
from nexo.brokers.queue.schedules import Schedules
from nexo.options.queue import MAX_HISTORY, QueueOptions, read_options

LOST_JOBS = 1_000_000
"""More numbers than a lost journal entry can have used."""
_LEADER, _LEADERS = 16, 1_024
"""How often `LOST_JOBS` a leader may lose, and how many leaders in a row."""
MOST_REPLACED = 10_000
"""Replaced jobs that a queue remembers as such; older ones count as done."""


class Failures(msgspec.Struct, array_like=True):
    """A job's failed deliveries so far."""

    count: int = 0
    due_ms: int = 0
    """When it may run again."""
    history: list[tuple[int, str]] = []
    """Time and reason of the last few, oldest first."""


class JobDeath(msgspec.Struct, array_like=True, frozen=True):
    """Why and when a job died; its failures are kept beside it."""

    cause: str
    died_ms: int


class JobRun(NamedTuple):
    """Open jobs that wait alike: neighbours of one priority, key and due time."""

    lo: int
    hi: int
    priority: int
    key: str | None
    due_ms: int


class Ledger:
    """One queue's durable state."""

    __slots__ = (
        "batches", "created_ms", "dead", "dedup", "dedup_keys", "failures", "incarnation", "keys",
        "next_job", "open_jobs", "options", "paused", "replaced", "results", "returned",
        "schedules", "totals",
    )  # fmt: skip

    def __init__(self) -> None:
        self.incarnation = 0
        self.created_ms = 0
        self.options = QueueOptions()
        self.paused = False
        self.next_job = 0
        self.open_jobs = 0
        self.batches = Batches()
        self.failures: dict[int, Failures] = {}
        self.dead: dict[int, JobDeath] = {}
        """In the order they died."""
        self.keys: dict[int, str] = {}
        self.dedup: dict[str, int] = {}
        """The open job that holds each dedup key."""
        self.dedup_keys: dict[int, str] = {}
        """Of open jobs, and of dead ones for their replay."""
        self.replaced: dict[int, int] = {}
        """Jobs that made way for others, and for which; the last `MOST_REPLACED` of them."""
        self.returned: dict[int, None] = {}
        """Open jobs that a worker has seen and given back."""
        self.schedules = Schedules()
        self.results = Results()
        self.totals = {"pushed": 0, "finished": 0, "failed": 0, "died": 0}

    def apply(self, record: QueueRecord) -> None:
        _APPLY[type(record)](self, record)

    def runs(self, lo: int, hi: int) -> Iterator[JobRun]:
        """The open jobs within lo..hi, as runs that wait alike."""
        for batch, run in self.batches.runs(lo, hi):
            if not (self.failures or self.keys):
                yield JobRun(*run, batch.priority, None, batch.due_ms)
                continue
            yield from self._special_runs(batch, run)

    def _special_runs(self, batch: JobBatchRange, run: JobRange) -> Iterator[JobRun]:
        """Split where the key or the due time of a retry differs."""

        def traits(job: int) -> tuple[str | None, int]:
            failed = self.failures.get(job)
            return self.keys.get(job), failed.due_ms if failed else batch.due_ms

        for (key, due_ms), jobs in groupby(range(*run), traits):
            lo, *rest = jobs
            hi = rest[-1] + 1 if rest else lo + 1
            yield JobRun(lo, hi, batch.priority, key, due_ms)

    def attempt(self, job: int) -> int:
        """The number of the next delivery, from 1."""
        failed = self.failures.get(job)
        return failed.count + 1 if failed else 1

    def priority(self, job: int) -> int:
        """The priority of a job that is not long done."""
        batch = self.batches.of(job)
        return batch.priority if batch is not None else 0

    def owner(self, job: int) -> str:
        """The user who pushed a job; empty if nobody was logged in or the job is long done."""
        batch = self.batches.of(job)
        return batch.owner if batch is not None else ""

    def close_gaps(self) -> None:
        """After a recovery that lost records: drop what depends on them, and count again.

        Job numbers skip ahead, because lost pushes may have used some.
        """
        for mapping in (self.failures, self.dead, self.keys, self.dedup_keys):
            unknown = [job for job in mapping if self.batches.mark_of(job) == DONE]
            for job in unknown:
                del mapping[job]
        self.dedup = {key: job for job, key in self.dedup_keys.items() if job not in self.dead}
        self.open_jobs = sum(batch.marks.count(OPEN) for batch in self.batches)
        self.skip_ahead()

    def skip_ahead(self, epoch: int = 0) -> None:
        """Use no number again that pushes which are lost may have used.

        Leaders that begin with the same files, since those between them shipped nothing, have
        different epochs, and so different numbers.
        """
        self.next_job += LOST_JOBS * (1 + _LEADER * (epoch % _LEADERS))

    # -- one method per record ------------------------------------------------

    def _created(self, record: QueueCreated) -> None:
        self.incarnation = record.incarnation
        self.created_ms = record.now_ms
        self.options = read_options(record.options)

    def _changed(self, record: Changed) -> None:
        self.options, self.paused = read_options(record.options), record.paused

    def _pushed(self, record: Pushed) -> None:
        base, end = record.base, record.base + record.count
        self.next_job = end
        self.open_jobs += record.count
        self.totals["pushed"] += record.count - len(record.dropped or ())
        batch = JobBatchRange(
            base, record.count, record.priority, record.due_ms, record.expires_ms, record.owner
        )
        self.batches.add(batch)
        dropped = set(record.dropped or ())
        for index, key in enumerate(record.keys or ()):
            if key is not None and index not in dropped:
                self.keys[base + index] = key
        for index, key in enumerate(record.dedup_keys or ()):
            if key is not None and index not in dropped:
                self.dedup[key], self.dedup_keys[base + index] = base + index, key
        for index in dropped:
            self._close(base + index, base + index + 1)

    def withdraw(self, record: Pushed) -> None:
        """Undo a push that could not be written."""
        closed = self._close(record.base, record.base + record.count)
        self.totals["pushed"] -= closed

    def _finished(self, record: Finished) -> None:
        for lo, hi in pairs(record.runs):
            self.totals["finished"] += self._close(lo, hi)

    def _replaced(self, record: Replaced) -> None:
        self.totals["finished"] += self._close(record.job, record.job + 1)
        self.replaced[record.job] = record.by
        if len(self.replaced) > MOST_REPLACED:
            del self.replaced[next(iter(self.replaced))]

    def _close(self, lo: int, hi: int) -> int:
        closed = self.batches.set(lo, hi, DONE)
        self.open_jobs -= closed
        for mapping in (self.failures, self.keys, self.dead, self.returned):
            if mapping:
                forget(mapping, lo, hi)
        for job, key in forget(self.dedup_keys, lo, hi) if self.dedup_keys else ():
            if self.dedup.get(key) == job:
                del self.dedup[key]
        return closed

    def _failed(self, record: Failed) -> None:
        for job, due_ms in zip(record.jobs, record.due_ms, strict=True):
            self._count_failure(job, due_ms, record.now_ms, record.reason)
        self.totals["failed"] += len(record.jobs)

    def _count_failure(self, job: int, due_ms: int, now_ms: int, reason: str) -> None:
        failed = self.failures.setdefault(job, Failures(history=[]))
        failed.count += 1
        failed.due_ms = due_ms
        failed.history = [*failed.history, (now_ms, reason)][-MAX_HISTORY:]

    def _died(self, record: Died) -> None:
        for job in record.jobs:
            self._count_failure(job, 0, record.now_ms, record.reason)
            self.returned.pop(job, None)
            self.dead[job] = JobDeath(record.cause, record.now_ms)
            self.batches.set(job, job + 1, DEAD)
            key = self.dedup_keys.get(job)  # kept for a replay, though another job may take it now
            if key is not None and self.dedup.get(key) == job:
                del self.dedup[key]
        self.open_jobs -= len(record.jobs)
        self.totals["died"] += len(record.jobs)

    def _revived(self, record: Revived) -> None:
        for job in record.jobs:
            self.batches.set(job, job + 1, OPEN)
            del self.dead[job]
            self.failures.pop(job, None)
            if (key := self.dedup_keys.get(job)) is not None:
                self.dedup.setdefault(key, job)
        self.open_jobs += len(record.jobs)


_APPLY: dict[type, Any] = {
    QueueCreated: Ledger._created,
    Changed: Ledger._changed,
    Pushed: Ledger._pushed,
    Finished: Ledger._finished,
    Failed: Ledger._failed,
    Died: Ledger._died,
    Revived: Ledger._revived,
    CronSet: lambda ledger, record: ledger.schedules.set(record),
    CronMoved: lambda ledger, record: ledger.schedules.move(record),
    Resulted: lambda ledger, record: ledger.results.keep(record),
    Moved: lambda ledger, record: None,  # where values are is not kept here
    Replaced: Ledger._replaced,
}


def pairs(flat: list[int]) -> Iterator[JobRange]:
    """``[lo, hi, lo, hi]`` as ranges."""
    return zip(flat[::2], flat[1::2], strict=True)


def flatten(runs: Iterable[JobRange]) -> list[int]:
    """Ranges as ``[lo, hi, lo, hi]``; neighbours become one."""
    flat: list[int] = []
    for lo, hi in runs:
        if flat and flat[-1] == lo:
            flat[-1] = hi
        else:
            flat += (lo, hi)
    return flat


def forget(mapping: dict[int, Any], lo: int, hi: int) -> list[tuple[int, Any]]:
    """Remove the keys within lo..hi, at the cost of the smaller side."""
    return [(job, mapping.pop(job)) for job in within(mapping, lo, hi)]


def within(jobs: Collection[int], lo: int, hi: int) -> list[int]:
    """Return the ``jobs`` in lo..hi, at the cost of the smaller side."""
    if hi - lo <= len(jobs):
        return [job for job in range(lo, hi) if job in jobs]
    return [job for job in jobs if lo <= job < hi]


def without(held: list[JobRange], taken: list[JobRange]) -> list[JobRange]:
    """``held`` without ``taken``, which lies within it; both ascend."""
    if not taken or held == taken:
        return [] if taken else held
    gone = {job for job_range in taken for job in range(*job_range)}
    left = (job for job_range in held for job in range(*job_range) if job not in gone)
    return list(pairs(flatten((job, job + 1) for job in left)))


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
