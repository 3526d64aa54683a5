"""Users' code in a process of its own, so that nothing it does stops ingest.

``python -m pyspark_nexo.code.child``, with a `CodePlan` as one line of JSON on standard input, runs
the flows of a folder. It uses the Spark of the process that started it: the same JVM, the same
executors. It prints one JSON object per line, ``{"note": …}`` for people, ``{"aside": …}`` once the
tables to be made anew have other names, ``{"rows": …}`` at the end of ``once`` and ``{"error": …}``
if it fails, and ends when standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.settings import NAMESPACE, LakeSettings
from pyspark_nexo.code.runner import TRIGGER_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_nexo.code.graph import FlowGraph

# ruff: noqa: PLC0415 - pyspark takes a second to import


class CodePlan(msgspec.Struct, frozen=True):
    """What a process of users' code is to do."""

    code: str
    lake: str
    catalog: str = ""
    namespace: str = NAMESPACE
    url: str | None = None
    trigger_s: float = TRIGGER_S
    only: tuple[str, ...] = ()
    once: bool = False
    full: tuple[str, ...] = ()
    """Tables that are made anew, once."""
    gateway_port: int = 0
    """Of the JVM that is used, as is the secret."""
    gateway_secret: str = ""

    @property
    def settings(self) -> LakeSettings:
        return LakeSettings(Path(self.lake), self.catalog, self.namespace)


def graph_of(
    spark: SparkSession,
    plan: CodePlan,
    say: Callable[[dict[str, object]], None],
    *,
    make: bool = True,
) -> FlowGraph:
    """The flows of a folder, loaded and ordered."""
    from pyspark_nexo.code.anew import begin_anew
    from pyspark_nexo.code.graph import FlowGraph
    from pyspark_nexo.code.loading import code_folder, load
    from pyspark_nexo.tables.catalog import SparkCatalog

    folder = code_folder(Path(plan.code))
    for name, value in folder.conf.items():
        spark.conf.set(name, value)
    catalog = SparkCatalog(spark, Lake(plan.settings), plan.url)
    catalog.open()
    definitions = load(spark, folder)
    if plan.full:
        say({"aside": begin_anew(catalog.lake, definitions, plan.full)})
    graph = FlowGraph(definitions, catalog, folder.root, make)
    graph.build()
    return graph


def run(plan: CodePlan, stop: threading.Event, say: Callable[[dict[str, object]], None]) -> None:
    """Carry out a plan, until it is done or ``stop`` is set."""
    from pyspark_nexo.code.runner import FlowsRunner
    from pyspark_nexo.sessions import attached

    def note(text: str) -> None:
        say({"note": text})

    with attached(plan.gateway_port, plan.gateway_secret) as spark:
        graph = graph_of(spark, plan, say)
        runner = FlowsRunner(graph, note, plan.trigger_s, plan.only)
        if plan.once:
            say({"rows": runner.once()})
        else:
            note(f"{len(runner.runs)} flows of {plan.code}, every {plan.trigger_s:g} s")
            runner.run(stop)


def main() -> None:
    """Carry out the plan on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process above decides
    plan = msgspec.json.decode(sys.stdin.readline(), type=CodePlan)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what users' code prints is for people
    stop = threading.Event()

    def say(said: dict[str, object]) -> None:
        lines.write(json.dumps(said) + "\n")

    def read_on() -> None:
        sys.stdin.read()
        stop.set()
        if plan.once:
            os._exit(1)

    threading.Thread(target=read_on, daemon=True).start()
    try:
        run(plan, stop, say)
    except NexoError as error:
        say({"error": error.message})
        sys.exit(1)


if __name__ == "__main__":
    main()
