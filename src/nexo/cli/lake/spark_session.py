"""Starts Spark for a command: holds back the output of its JVM, and shows progress."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from nexo.cli import output
from nexo.cli.options import F
from nexo.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ruff: noqa: PLC0415 - pyspark takes a second to import, and is optional

_REASON = re.compile(
    r"^(?:Exception in thread \S+ )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE
)
"""How Java prints an exception."""
_STDERR = 2
_LAST_WORDS_S = 1.0
"""How long to wait for the last output of a process that is ending."""
_LOOK_S = 0.3
WITHOUT_EXECUTORS_S = 15.0
"""After this long without one, a user is told."""


@contextmanager
def started(
    master: str | None,
    app: str,
    *,
    quiet: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """The running session, or a new one that ends with the block; see `quiet_start`."""
    from pyspark_nexo.failures import plain_errors
    from pyspark_nexo.sessions import borrowed

    with ExitStack() as stack:
        with plain_errors(), quiet_start(afterwards=quiet):
            spark = stack.enter_context(borrowed(master, app=app, conf=conf))
        stack.enter_context(executors_watched(spark, output.note))
        yield spark


def conf_option(function: F) -> F:
    """``--conf NAME=VALUE``: Spark's settings."""
    return click.option(
        "--conf", "conf", multiple=True, metavar="NAME=VALUE", callback=_settings,
        help="A setting of Spark, such as spark.executor.memory=4g; any number of them.",
    )(function)  # fmt: skip


def _settings(
    context: click.Context, option: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.BadParameter(f"{text!r}: give spark.name=value")
        found[name] = value
    return found


@contextmanager
def executors_watched(
    spark: SparkSession, say: Callable[[str], None], wait_s: float = WITHOUT_EXECUTORS_S
) -> Iterator[None]:
    """Say so, once, if a cluster gives no executor for a while: Spark waits without a word."""
    from pyspark_nexo.sessions import executors

    done = threading.Event()

    def watch() -> None:
        with suppress(Exception):  # the JVM has ended: others say so
            if not done.wait(wait_s) and executors(spark) == 0:
                say(
                    f"no executor on {spark.sparkContext.master} for {wait_s:.0f} s: its workers "
                    "have no free cores or memory, or there are none; still waiting "
                    "(see --conf spark.cores.max and spark.executor.memory)"
                )

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def quiet_start(*, afterwards: bool) -> Iterator[None]:
    """Hold back what processes started in the block write to standard error, ``afterwards`` too.

    If the block fails, the reason that they gave is raised; without one, all they wrote is shown.
    """
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    said = _HeldOutput(afterwards)
    os.dup2(said.entrance, _STDERR)
    os.close(said.entrance)
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
    if failure is not None:
        said.explain(failure)
        raise failure
    said.is_started = True


class _HeldOutput:
    """Reads ``entrance`` in a thread: keeps the text, then passes it on or drops it."""

    def __init__(self, drop: bool) -> None:
        self.is_started = False
        self._drop = drop
        self._text = b""
        exit_, self.entrance = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(exit_,), daemon=True)
        self._thread.start()

    def _read(self, exit_: int) -> None:
        while part := os.read(exit_, 65_536):
            if not self.is_started:
                self._text += part
            elif not self._drop:
                os.write(_STDERR, part)
        os.close(exit_)

    def explain(self, failure: Exception) -> None:
        """Raise the reason that was given, or show all that was said."""
        self._thread.join(_LAST_WORDS_S)
        text = self._text.decode(errors="replace")
        if reason := _REASON.search(text):
            raise ConfigError(f"Spark cannot be started: {reason[1]}") from failure
        click.echo(text, nl=False, err=True)


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
    from pyspark_nexo.tiering import tasks

    ended = False
    while not ended:
        ended = done.wait(_LOOK_S)
        finished, total = tasks(spark)
        if total:
            bar.show(finished, total)
