"""``nexo queue``: create queues, push and pop jobs, look inside."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.cells import time_text
from nexo.cli.options import (
    SignedGroup,
    as_option,
    client,
    common,
    given,
    limit_option,
    nothing_there,
    offset_option,
    option_flags,
    read_value,
)
from nexo.cli.times import seconds
from nexo.client._sync.requests import request
from nexo.errors import Forbidden, NexoError, NotFound
from nexo.model import Broker
from nexo.options.queue import QueueOptions
from nexo.protocol.ops import Op
from nexo.protocol.queue import PeekJobs
from nexo.protocol.values import decode_value

if TYPE_CHECKING:
    from nexo import Client
    from nexo.client.views import JobView
    from nexo.model.queue import QueueInfo

_COUNTS = ("name", "waiting", "scheduled", "working", "dead", "paused")
_IN_WORK = ("id", "value", "holder", "lease_left_ms", "attempt", "key")
_JOB = ("id", "value", "priority", "key", "attempts", "due_ms")
_priority = click.option("--priority", type=click.IntRange(0, 255), default=0, show_default=True,
                         help="Jobs with the highest run first.")  # fmt: skip


@click.group(cls=SignedGroup)
def command() -> None:
    """Jobs: create, push, pop, inspect."""


@command.command()
@click.argument("name")
@click.option("--update", is_flag=True, help="Change an existing queue to these options.")
@option_flags(QueueOptions)
def create(name: str, update: bool, **options: Any) -> None:
    """Create the queue NAME, or find it if it has the options given."""
    with client() as nexo:
        _show_briefly(nexo.queue(name).create(update=update, **given(options)).info())


@command.command()
@click.argument("name")
@option_flags(QueueOptions)
def update(name: str, **options: Any) -> None:
    """Change options of the queue NAME while it runs."""
    with client() as nexo:
        _show_briefly(nexo.queue(name).update(**given(options)))


@command.command("list")
@click.argument("prefix", default="")
@click.option("--names", is_flag=True, help="Only names.")
def list_(prefix: str, names: bool) -> None:
    """All queues and their counts, or those whose names begin with PREFIX."""
    with client() as nexo:
        found = nexo.queue_infos(prefix)
    if names:
        output.rows(({"name": info.name} for info in found), ("name",))
    else:
        output.rows(map(asdict, found), _COUNTS, "there are no queues")


@command.command()
@click.argument("name")
def info(name: str) -> None:
    """Options and counts of the queue NAME."""
    with client() as nexo:
        _show(nexo.queue(name).info())


def _show_briefly(info: QueueInfo) -> None:
    """What matters first; `nexo queue info` has the rest."""
    if common().as_json:
        _show(info)
        return
    keys = ("visibility_timeout_ms", "max_retries", "persistence")
    output.fields({"name": info.name} | {key: info.options[key] for key in keys})


def _show(info: QueueInfo) -> None:
    shown = asdict(info)
    output.fields(shown if common().as_json else shown | shown.pop("options"))


@command.command()
@click.argument("name")
@click.argument("values", nargs=-1, required=True)
@as_option
@_priority
@click.option("--delay", type=seconds(), default="0s", help="Hold the jobs back: 10s, 2h.")
@click.option(
    "--ttl", type=seconds(), default="0s", help="Drop jobs that have not started by then."
)
@click.option("--key", help="The key of the jobs, for fairness and limits.")
@click.option("--dedup-key", help="Push nothing while a job with this key waits or runs.")
def push(
    name: str, values: tuple[str, ...], kind: str, priority: int, delay: float, ttl: float,
    key: str | None, dedup_key: str | None,
) -> None:  # fmt: skip
    """Push VALUES to the queue NAME and print their ids.

    A value is - for standard input or @name for a file.
    """
    content = [read_value(value, kind) for value in values]
    with client() as nexo:
        ids = nexo.queue(name).push_many(
            content,
            priority=priority,
            delay=delay,
            ttl=ttl,
            keys=key and [key] * len(content),
            dedup_keys=dedup_key and [dedup_key] * len(content),
        )
    for job_id in ids:
        output.done(job_id, id=job_id)


@command.command()
@click.argument("name")
@click.option("--count", type=click.IntRange(1, 10_000), default=1, show_default=True,
              help="Take at most this many.")  # fmt: skip
@click.option("--wait", type=seconds(), default="0s", help="How long to wait for the first job.")
@click.option("--no-ack", is_flag=True, help="Give the jobs back instead of finishing them.")
def pop(name: str, count: int, wait: float, no_ack: bool) -> None:
    """Take jobs off the queue NAME, print and finish them."""
    with client() as nexo:
        jobs = nexo.queue(name).pop(count, wait=wait)
        for job in jobs:
            if common().as_json:
                output.line({"id": job.id, "value": job.value, "attempt": job.attempt})
            else:
                output.value(job.value)
        if no_ack:
            jobs.release()
        else:
            jobs.ack()
    if not jobs:
        raise nothing_there(f"no job of queue {name!r} is ready")


@command.command()
@click.argument("name")
@limit_option(20, 10_000)
@offset_option()
@click.option("--scheduled", is_flag=True, help="Jobs that are not due yet.")
@click.option("--working", is_flag=True, help="Jobs in work: who holds them, and until when.")
def peek(name: str, limit: int, offset: int, scheduled: bool, working: bool) -> None:
    """Show the next jobs of the queue NAME without taking them."""
    if scheduled and working:
        raise click.UsageError("--scheduled and --working exclude each other")
    with client() as nexo:
        if working:
            found_rows = _jobs_in_work(nexo, name, limit, offset)
            output.rows(found_rows, _IN_WORK, "no job is in work")
            return
        queue = nexo.queue(name)
        found = (queue.scheduled.list if scheduled else queue.peek)(limit, offset)
    show_jobs(found, _JOB, "no job waits")


def _jobs_in_work(nexo: Client, name: str, limit: int, offset: int) -> list[dict[str, Any]]:
    """Each job with who holds it and how long its lease lasts."""
    ask = PeekJobs(name, limit, offset, "working")
    rows = request(nexo.link(Broker.QUEUE).call, Op.Q_PEEK, ask, list[dict[str, Any]])
    names = _connection_names(nexo) if rows else {}
    now_ms = int(time.time() * 1000)
    return [
        {
            "id": row["id"],
            "value": decode_value(row["value"]),
            "holder": names.get(row["holder"], f"connection {row['holder']}"),
            "lease_left_ms": max(0, row["expires_ms"] - now_ms),
            "attempt": row["attempts"] + 1,
            "key": row["key"],
        }
        for row in rows
    ]


def _connection_names(nexo: Client) -> dict[int, str]:
    """The names of connections, if the caller may know them."""
    try:
        reply = nexo.link(Broker.QUEUE).call(Op.PEERS, bytes((Broker.QUEUE,)))
    except Forbidden:
        return {}
    return {row["id"]: row["name"] for row in decode_value(reply or b"\x02[]")}


def show_jobs(found: list[JobView[Any]], columns: tuple[str, ...], empty: str) -> None:
    """A table of jobs."""
    output.rows((_row(job) for job in found), columns, empty)


def _row(job: JobView[Any]) -> dict[str, Any]:
    fields = asdict(job)
    encoded, _ = fields.pop("encoded"), fields.pop("type_")
    try:
        value = job.value
    except NexoError:  # stored by a client that wrote no valid value
        value = encoded[1:]
    return {"id": fields.pop("id"), "value": value, **fields}


@command.command()
@click.argument("name")
@click.argument("job_id")
def cancel(name: str, job_id: str) -> None:
    """Remove a job of the queue NAME that has not started."""
    with client() as nexo:
        removed = nexo.queue(name).scheduled.cancel(job_id)
    if not removed:
        raise nothing_there(
            f"no job {job_id!r} waits in queue {name!r}: it may have started or ended"
        )
    output.done("removed", removed=removed)


@command.command()
@click.argument("name")
@click.confirmation_option(prompt="Remove all jobs that have not started?")
def purge(name: str) -> None:
    """Remove every job of the queue NAME that has not started."""
    with client() as nexo:
        count = nexo.queue(name).purge()
    output.done(f"{count} jobs removed", removed=count)


@command.command()
@click.argument("name")
@click.confirmation_option(prompt="Delete the queue with all its jobs?")
def delete(name: str) -> None:
    """Delete the queue NAME."""
    with client() as nexo:
        existed = nexo.queue(name).delete()
    if not existed:
        raise NotFound(f"queue {name!r} not found")
    output.done(f"{name} deleted", name=name, deleted=True)


@command.command()
@click.argument("name")
def pause(name: str) -> None:
    """Deliver no jobs of the queue NAME until it is resumed."""
    with client() as nexo:
        nexo.queue(name).pause()
    output.done(f"{name} is paused", name=name, paused=True)


@command.command()
@click.argument("name")
def resume(name: str) -> None:
    """Deliver jobs of the queue NAME again."""
    with client() as nexo:
        nexo.queue(name).resume()
    output.done(f"{name} is running", name=name, paused=False)


@command.group()
def cron() -> None:
    """Schedules that push jobs by themselves."""


@cron.command("set")
@click.argument("name")
@click.argument("schedule")
@click.argument("expression")
@click.argument("value")
@as_option
@_priority
@click.option(
    "--timezone", default="", help="Time zone of EXPRESSION, such as Europe/Rome; else UTC."
)
def set_cron(
    name: str, schedule: str, expression: str, value: str, kind: str, priority: int, timezone: str
) -> None:
    """Push VALUE to the queue NAME whenever EXPRESSION (five fields) matches."""
    with client() as nexo:
        crons = nexo.queue(name).cron
        content = read_value(value, kind)
        next_ms = crons.set(schedule, expression, content, priority=priority, timezone=timezone)
    output.done(f"{schedule} fires next at {time_text(next_ms)}", name=schedule, next_ms=next_ms)


@cron.command("list")
@click.argument("name")
def list_crons(name: str) -> None:
    """The schedules of the queue NAME."""
    with client() as nexo:
        found = [asdict(schedule) for schedule in nexo.queue(name).cron.list()]
    output.rows(found, ("name", "cron", "zone", "next_ms", "priority"), "there are no schedules")


@cron.command("delete")
@click.argument("name")
@click.argument("schedule")
def delete_cron(name: str, schedule: str) -> None:
    """Delete a schedule of the queue NAME."""
    with client() as nexo:
        existed = nexo.queue(name).cron.delete(schedule)
    if not existed:
        raise NotFound(f"queue {name!r} has no schedule {schedule!r}")
    output.done(f"{schedule} deleted", name=schedule, deleted=True)
