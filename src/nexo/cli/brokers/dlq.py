"""``nexo dlq``: a queue's dead letters."""

from __future__ import annotations

import click

from nexo.cli import output
from nexo.cli.brokers.queue import show_jobs
from nexo.cli.options import act_on_each, client, limit_option, offset_option

_DEAD = ("id", "value", "cause", "attempts", "reason", "died_ms")


@click.group()
def command() -> None:
    """Dead letters of queues: list, replay, delete, purge."""


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
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the queue.")
def replay(name: str, job_ids: tuple[str, ...], everything: bool) -> None:
    """Let dead letters of the queue NAME run again."""
    if bool(job_ids) == everything:
        raise click.UsageError("name job ids, or say --all")
    with client() as nexo:
        dlq = nexo.queue(name).dlq
        count = dlq.replay() if everything else act_on_each(job_ids, dlq.replay, _absent(name))
    output.done(f"{count} jobs wait again", replayed=count)


@command.command()
@click.argument("name")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
def delete(name: str, job_ids: tuple[str, ...]) -> None:
    """Delete dead letters of the queue NAME for good."""
    with client() as nexo:
        count = act_on_each(job_ids, nexo.queue(name).dlq.delete, _absent(name))
    output.done(f"{count} dead letters deleted", deleted=count)


@command.command()
@click.argument("name")
@click.confirmation_option(prompt="Delete all dead letters for good?")
def purge(name: str) -> None:
    """Delete all dead letters of the queue NAME for good."""
    with client() as nexo:
        count = nexo.queue(name).dlq.purge()
    output.done(f"{count} dead letters deleted", deleted=count)


def _absent(name: str) -> str:
    return f"queue {name!r} has no such dead letters"
