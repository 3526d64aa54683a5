"""What a queue reports about itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from nexo.blocks import id_text
from nexo.brokers.queue.batches import DEAD, OPEN
from nexo.brokers.queue.engine import QueueEngine
from nexo.brokers.queue.leases import Lease
from nexo.options.queue import QueueOptions

MAX_LOSSES = 10
"""Losses that a queue reports."""


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Options and counts of one queue."""

    name: str
    options: QueueOptions
    created_ms: int
    paused: bool
    waiting: int
    scheduled: int
    working: int
    dead: int
    schedules: int
    pushed_total: int
    finished_total: int
    failed_total: int
    died_total: int
    losses: list[str] = []
    """Known losses through damaged files."""


class JobStatus(msgspec.Struct, frozen=True):
    """Where a job is."""

    state: str
    """``waiting``, ``scheduled``, ``working``, ``dead``, ``replaced`` or ``done``."""
    failures: int
    error: str | None
    """The error of its last failure."""
    progress: bytes | None
    result: bytes | None
    replaced_by: str | None


class ScheduleStatus(msgspec.Struct, frozen=True):
    """A cron schedule, without the value it pushes."""

    name: str
    cron: str
    next_ms: int = 0
    priority: int = 0
    key: str | None = None
    zone: str = ""
    """The time zone of the expression; empty for UTC."""


def info(name: str, queue: QueueEngine, losses: Iterable[object] = ()) -> QueueStatus:
    """Options and counts of one queue."""
    ledger, dispatch, totals = queue.ledger, queue.dispatch, queue.ledger.totals
    return QueueStatus(
        name=name,
        options=ledger.options,
        created_ms=ledger.created_ms,
        paused=ledger.paused,
        waiting=queue.waiting,
        scheduled=dispatch.delays.jobs,
        working=dispatch.leases.jobs,
        dead=len(ledger.dead),
        schedules=len(ledger.schedules.by_name),
        pushed_total=totals["pushed"],
        finished_total=totals["finished"],
        failed_total=totals["failed"],
        died_total=totals["died"],
        losses=[*map(str, islice(losses, MAX_LOSSES))],
    )


def job_state(queue: QueueEngine, job: int, now_ms: int) -> JobStatus:
    """Where a job is, and its history."""
    ledger = queue.ledger
    failed, by = ledger.failures.get(job), ledger.replaced.get(job)
    return JobStatus(
        state_of(queue, job),
        failed.count if failed else 0,
        failed.history[-1][1] if failed and failed.history else None,
        queue.progress.get(job),
        queue.result(job, now_ms),
        None if by is None else id_text(ledger.incarnation, by),
    )


def state_of(queue: QueueEngine, job: int) -> str:
    """Where a job is: waiting, scheduled, working, dead, replaced or done."""
    match queue.ledger.batches.mark_of(job):
        case mark if mark == DEAD:
            return "dead"
        case mark if mark != OPEN:
            return "replaced" if job in queue.ledger.replaced else "done"
    if queue.dispatch.leases.hold(job):
        return "working"
    return "scheduled" if queue.dispatch.delays.holds(job) else "waiting"


def waiting_jobs(queue: QueueEngine, limit: int, offset: int) -> list[int]:
    """The next jobs in line; keys and limits may change that order."""
    runs = (run for _, ranges in queue.dispatch.lanes.in_order() for run in ranges)
    open_runs = (run for span in runs for _, run in queue.ledger.batches.runs(*span))
    return list(islice((job for run in open_runs for job in range(*run)), offset, offset + limit))


def working_jobs(queue: QueueEngine, limit: int, offset: int) -> list[tuple[int, Lease]]:
    """Leased jobs and their leases, oldest lease first."""
    leased = (
        (job, lease)
        for lease in queue.dispatch.leases
        for run in lease.remaining()
        for job in range(*run)
    )
    return list(islice(leased, offset, offset + limit))


def dead_jobs(queue: QueueEngine, limit: int, offset: int) -> list[int]:
    """Dead letters, newest first."""
    return list(islice(reversed(queue.ledger.dead), offset, offset + limit))


def schedules(queue: QueueEngine) -> list[ScheduleStatus]:
    return [
        ScheduleStatus(cron.name, cron.text, cron.next_ms, cron.priority, cron.key, cron.zone)
        for cron in queue.ledger.schedules.by_name.values()
    ]
