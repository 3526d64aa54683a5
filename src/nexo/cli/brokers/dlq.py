"""``nexo dlq``: a queue's dead letters."""

from __future__ import annotations

import click

from nexo.cli import output
from nexo.cli.brokers.queue import show_jobs
from nexo.cli.options import Failure, client, limit_option, nothing_there, offset_option

_DEAD = ("id", "value", "reason", "attempts", "error", "died_ms")


@click.group()
def command() -> None:
    """Dead-letter queues: look, replay, delete."""


@command.command("list")
@click.argument("name")
@limit_option(20, 10_000)
@offset_option()
def list_(name: str, limit: int, offset: int) -> None:
    """The dead letters of the queue NAME, newest first."""
    with client() as nexo:
        found = nexo.queue(name).dlq.peek(limit, offset)
    show_jobs([*found], _DEAD, "there are no dead letters")


@command.command()
@click.argument("name")
@click.argument("job_id", required=False)
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the queue.")
def replay(name: str, job_id: str | None, everything: bool) -> None:
    """Let one dead letter of the queue NAME, or all, run again."""
    if (job_id is None) != everything:
        raise click.UsageError("name one job id, or say --all")
    with client() as nexo:
        count = nexo.queue(name).dlq.replay(job_id)
    if job_id is not None and not count:
        raise _absent(name, job_id)
    output.done(f"{count} jobs wait again", replayed=count)


@command.command()
@click.argument("name")
@click.argument("job_id")
def delete(name: str, job_id: str) -> None:
    """Remove one dead letter of the queue NAME for good."""
    with client() as nexo:
        removed = nexo.queue(name).dlq.delete(job_id)
    if not removed:
        raise _absent(name, job_id)
    output.done("removed", removed=removed)


@command.command()
@click.argument("name")
@click.confirmation_option(prompt="Remove all dead letters for good?")
def purge(name: str) -> None:
    """Remove all dead letters of the queue NAME for good."""
    with client() as nexo:
        count = nexo.queue(name).dlq.purge()
    output.done(f"{count} dead letters removed", removed=count)


def _absent(name: str, job_id: str) -> Failure:
    return nothing_there(f"no dead letter of queue {name!r} has the id {job_id!r}")
