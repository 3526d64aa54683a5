"""``nexo worker module:function``: run a handler on a queue's jobs until stopped."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import nexo
from nexo.cli.options import client, terms
from nexo.cli.sizes import seconds
from nexo.client._async.queue.worker import Worker as AsyncWorker
from nexo.client._sync.queue.worker import Worker


@click.command()
@click.argument("target")
@click.option("--queue", "name", help="The queue, if the function is not a worker of one already.")
@click.option("--concurrency", type=click.IntRange(min=1), default=5, show_default=True,
              help="Jobs in work at once; 1 keeps their order.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10_000), default=50, show_default=True,
              help="Jobs fetched at a time.")  # fmt: skip
@click.option("--stop-timeout", type=seconds(), help="How long running jobs may take to end.")
def command(
    target: str, name: str | None, concurrency: int, batch: int, stop_timeout: float | None
) -> None:
    """Run the handler TARGET, given as module:function, until SIGTERM or Ctrl-C.

    TARGET is what @queue.worker() made, or with --queue any function that takes a job.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    handler = load(target)
    options = {"concurrency": concurrency, "batch": batch}
    match handler:
        case AsyncWorker():
            asyncio.run(handler.run(stop_timeout))
        case Worker():
            handler.run(stop_timeout)
        case _ if name is None:
            raise click.UsageError(f"{target} is a plain function: name its --queue")
        case _ if inspect.iscoroutinefunction(handler):
            asyncio.run(_run_async(handler, name, options, stop_timeout))
        case _:
            with client(patient=True) as connection:
                connection.queue(name).worker(**options)(handler).run(stop_timeout)


async def _run_async(
    handler: Callable[..., Any], name: str, options: dict[str, Any], stop_timeout: float | None
) -> None:
    async with nexo.AsyncClient(terms().url, **terms().client_options()) as connection:
        await connection.queue(name).worker(**options)(handler).run(stop_timeout)


def load(target: str) -> Callable[..., Any]:
    """What ``module:function`` names; the working folder is searched first, as with python -m."""
    module_name, colon, path = target.partition(":")
    if not (colon and module_name and path):
        raise click.BadParameter(f"{target!r} is not module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise click.BadParameter(f"cannot import {module_name}: {error}") from None
    for name in path.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise click.BadParameter(f"{module_name} has no function {path}")
    return found  # type: ignore[no-any-return]
