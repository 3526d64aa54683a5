"""What a queue reports about itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from nexo.brokers.queue.batches import DEAD, DONE
from nexo.brokers.queue.engine import QueueEngine
from nexo.brokers.queue.leases import Lease
from nexo.model.blocks import id_text
from nexo.model.queue import JobState, QueueInfo, Schedule

MAX_LOSSES = 10
"""Losses that a queue reports."""


def info(name: str, queue: QueueEngine, losses: Iterable[object] = ()) -> QueueInfo:
    ledger, dispatch, totals = queue.ledger, queue.dispatch, queue.ledger.totals
    return QueueInfo(
        name=name,
        options=msgspec.to_builtins(ledger.options),
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


def job_state(queue: QueueEngine, job: int, now_ms: int) -> JobState:
    """Where a job is, and its history."""
    ledger = queue.ledger
    failed, by = ledger.failures.get(job), ledger.replaced.get(job)
    return JobState(
        state_of(queue, job),
        failed.count if failed else 0,
        failed.history[-1][1] if failed and failed.history else None,
        queue.progress.get(job),
        queue.result(job, now_ms),
        None if by is None else id_text(ledger.incarnation, by),
    )


def state_of(queue: QueueEngine, job: int) -> str:
    """Where a job is: waiting, scheduled, working, dead, replaced or done."""
    mark = queue.ledger.batches.mark_of(job)
    if mark == DEAD:
        return "dead"
    if mark == DONE:
        return "replaced" if job in queue.ledger.replaced else "done"
    if queue.dispatch.leases.hold(job):
        return "working"
    return "scheduled" if queue.dispatch.delays.holds(job) else "waiting"


def waiting_jobs(queue: QueueEngine, limit: int, offset: int) -> list[int]:
    """The next jobs in line; keys and limits may change that order."""
    runs = queue.dispatch.lanes.in_order()
    open_runs = (run for job_range in runs for _, run in queue.ledger.batches.runs(*job_range))
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


def schedules(queue: QueueEngine) -> list[Schedule]:
    return [
        Schedule(cron.name, cron.text, cron.next_ms, cron.priority, cron.key, cron.zone)
        for cron in queue.ledger.schedules.by_name.values()
    ]
