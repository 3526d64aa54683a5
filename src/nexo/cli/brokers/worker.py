"""``nexo worker module:function``: run a handler on a queue's jobs until stopped (SPEC O6)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import nexo
from nexo.cli.options import common, load_name
from nexo.cli.times import seconds
from nexo.client._async.queue.subscription import Worker as AsyncWorker
from nexo.client._sync.queue.subscription import Worker
from nexo.client.address import ConnectOptions
from nexo.client.worker_processes import WorkerProcesses, stop_with_parent
from nexo.errors import NexoError

log = logging.getLogger("nexo.worker")

_OPTIONS = ("concurrency", "batch", "time_limit")
"""For plain functions; a worker gets them where it is created."""


@dataclass(frozen=True)
class Work:
    """The task of one process; it is sent to processes that are started for it."""

    target: str
    queue: str | None
    options: dict[str, Any]
    given: frozenset[str]
    """Options that were on the command line."""
    stop_timeout: float | None
    url: str | None
    client_options: ConnectOptions

    def __call__(self) -> None:
        """Work in a process of its own; the exit code says why it ended."""
        stop_with_parent()
        _start_log()
        try:
            self.run()
        except click.UsageError as error:
            log.error("%s", error.format_message())
            sys.exit(error.exit_code)
        except NexoError as error:
            log.error("%s: %s", error.code, error.message)
            sys.exit(1)

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C."""
        handler = load_name(self.target)
        if not callable(handler):
            raise click.BadParameter(f"{self.target} is not a function")
        if isinstance(handler, AsyncWorker | Worker) and self.given:
            options = ", ".join(f"{name}=" for name in sorted(self.given))
            raise click.UsageError(f"{self.target} is a worker: set {options} where it is created")
        match handler:
            case AsyncWorker():
                asyncio.run(handler.run(self.stop_timeout))
            case Worker():
                handler.run(self.stop_timeout)
            case _ if self.queue is None:
                raise click.UsageError(f"{self.target} is a plain function: name its --queue")
            case _ if inspect.iscoroutinefunction(handler):
                asyncio.run(self._run_async(handler, self.queue))
            case _:
                with nexo.connect(self.url, **self.client_options) as client:
                    client.queue(self.queue).worker(**self.options)(handler).run(self.stop_timeout)

    async def _run_async(self, handler: Callable[..., Any], queue: str) -> None:
        async with nexo.AsyncClient(self.url, **self.client_options) as client:
            await client.queue(queue).worker(**self.options)(handler).run(self.stop_timeout)


@click.command()
@click.argument("target")
@click.option("--queue", "name", help="The queue, if the function is not a worker of one already.")
@click.option("--concurrency", "--threads", type=click.IntRange(min=1), default=5,
              show_default=True, help="Jobs in work at once in each process: threads, or tasks of "
              "an async function; 1 keeps their order.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 1_000), default=1, show_default=True,
              help="Processes; one that ends is started again.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10_000), default=50, show_default=True,
              help="Jobs fetched at a time.")  # fmt: skip
@click.option("--time-limit", type=seconds(least_ms=1),
              help="Give up a handler that takes longer, and nack its job.")  # fmt: skip
@click.option("--stop-timeout", type=seconds(), help="How long running jobs may take to end.")
@click.option("--reload", is_flag=True,
              help="Start again when a Python file below the working folder changes.")  # fmt: skip
@click.pass_context
def command(
    context: click.Context, /, target: str, name: str | None, processes: int,
    stop_timeout: float | None, reload: bool, **options: Any,
) -> None:  # fmt: skip
    """Run the handler TARGET, given as module:function, until SIGTERM or Ctrl-C.

    TARGET is what @queue.worker() made, or with --queue any function that takes a job.
    """
    _start_log()
    said = ParameterSource.COMMANDLINE
    given = {option for option in _OPTIONS if context.get_parameter_source(option) is said}
    work = Work(
        target,
        name,
        options,
        frozenset(given),
        stop_timeout,
        common().url,
        common().client_options(),
    )
    if processes == 1 and not reload:
        work.run()
        return
    folder = Path.cwd() if reload else None
    context.exit(WorkerProcesses(work, processes, stop_timeout, folder).run())


def _start_log() -> None:
    form = "%(asctime)s %(levelname)s %(process)d %(message)s"
    logging.basicConfig(level=logging.INFO, format=form)
