"""What a queue shows of itself."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from nexo.brokers.queue.batches import DEAD, OPEN
from nexo.brokers.queue.engine import Queue
from nexo.brokers.queue.leases import Lease


def info(name: str, queue: Queue) -> dict[str, Any]:
    """Options and counts of one queue."""
    ledger, dispatch = queue.ledger, queue.dispatch
    return {
        "name": name,
        "options": msgspec.to_builtins(ledger.options),
        "created_ms": ledger.created_ms,
        "paused": ledger.paused,
        "waiting": queue.waiting,
        "scheduled": dispatch.delays.jobs,
        "working": dispatch.leases.jobs,
        "dead": len(ledger.dead),
        "schedules": len(ledger.schedules.by_name),
        **{f"{what}_total": count for what, count in ledger.totals.items()},
    }


def state_of(queue: Queue, job: int) -> str:
    """Where a job is: waiting, scheduled, working, dead, replaced or done."""
    match queue.ledger.batches.mark_of(job):
        case mark if mark == DEAD:
            return "dead"
        case mark if mark != OPEN:
            return "replaced" if job in queue.ledger.replaced else "done"
    if queue.dispatch.leases.hold(job):
        return "working"
    return "scheduled" if queue.dispatch.delays.holds(job) else "waiting"


def waiting_jobs(queue: Queue, limit: int, offset: int) -> list[int]:
    """The next jobs in line, as far as lines tell: keys and limits are not looked at."""
    runs = (run for _, ranges in queue.dispatch.lanes.in_order() for run in ranges)
    open_runs = (run for span in runs for _, run in queue.ledger.batches.runs(*span))
    return list(islice((job for run in open_runs for job in range(*run)), offset, offset + limit))


def working_jobs(queue: Queue, limit: int, offset: int) -> list[tuple[int, Lease]]:
    """Jobs in work and the leases on them, those leased first first."""
    leased = (
        (job, lease)
        for lease in queue.dispatch.leases
        for run in lease.remaining()
        for job in range(*run)
    )
    return list(islice(leased, offset, offset + limit))


def dead_jobs(queue: Queue, limit: int, offset: int) -> list[int]:
    """Dead letters, newest first."""
    return list(islice(reversed(queue.ledger.dead), offset, offset + limit))


def schedules(queue: Queue) -> list[dict[str, Any]]:
    """The queue's cron schedules."""
    return [
        {"name": cron.name, "cron": cron.text, "next_ms": cron.next_ms, "priority": cron.priority,
         "key": cron.key}
        for cron in queue.ledger.schedules.by_name.values()
    ]  # fmt: skip
