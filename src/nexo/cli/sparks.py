"""Spark as a command starts it: what its JVM says is held back, and its work is shown."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from nexo.cli import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ruff: noqa: PLC0415 - pyspark takes a second to import, and is optional

_STDERR = 2
_LOOK_S = 0.3


@contextmanager
def quiet_start() -> Iterator[None]:
    """Hold back what processes started in the block write to standard error, also later.

    If the block fails, what they said by then is shown.
    """
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), _STDERR)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)


@contextmanager
def shown(spark: SparkSession, label: str) -> Iterator[None]:
    """A bar of Spark's tasks on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    with output.progress(label) as bar:
        watcher = threading.Thread(target=_watch, args=(spark, bar, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _watch(spark: SparkSession, bar: output.ProgressTask, done: threading.Event) -> None:
    from pyspark_nexo.sessions import tasks

    while not done.wait(_LOOK_S):
        finished, total = tasks(spark)
        if total:
            bar.show(finished, total)


def tell_start() -> None:
    """Say that Spark is started, which takes seconds, to one who waits for it."""
    if sys.stderr.isatty():
        click.echo("starting Spark…", err=True)
