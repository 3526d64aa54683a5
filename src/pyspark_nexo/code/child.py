"""Users' code in a process of its own, so that nothing it does stops ingest.

``python -m pyspark_nexo.code.child``, with a `CodePlan` as one line of JSON on standard input, runs
the flows of a folder. It uses the Spark of the process that started it: the same JVM, the same
executors. It prints one JSON object per line, ``{"note": …}`` for people, ``{"refreshed": …}`` once
a table was made anew, ``{"rows": …}`` at the end of ``once`` and ``{"error": …}`` if it fails, and
ends when standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nexo.errors import InvalidInput, NexoError
from nexo.lake.catalog import Lake
from nexo.lake.settings import NAMESPACE, LakeSettings
from pyspark_nexo.code.runner import TRIGGER_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_nexo.code.definitions import Definitions
    from pyspark_nexo.code.graph import FlowGraph
    from pyspark_nexo.code.loading import CodeFolder
    from pyspark_nexo.tables.catalog import SparkCatalog

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
    """Tables that are made anew, once, in this order."""
    only_full: bool = False
    """Whether that is all."""
    since: str = ""
    """From when on records of streams count for these tables, as is until when."""
    until: str = ""
    gateway_port: int = 0
    """Of the JVM that is used, as is the secret."""
    gateway_secret: str = ""

    @property
    def settings(self) -> LakeSettings:
        return LakeSettings(Path(self.lake), self.catalog, self.namespace)


def graph_of(spark: SparkSession, plan: CodePlan, *, make: bool = True) -> FlowGraph:
    """The flows of a folder, loaded and ordered."""
    from pyspark_nexo.code.graph import FlowGraph

    folder, catalog, definitions = _loaded(spark, plan)
    graph = FlowGraph(definitions, catalog, folder.root, make)
    graph.build()
    return graph


def _loaded(spark: SparkSession, plan: CodePlan) -> tuple[CodeFolder, SparkCatalog, Definitions]:
    from pyspark_nexo.code.loading import code_folder, load
    from pyspark_nexo.tables.catalog import SparkCatalog

    folder = code_folder(Path(plan.code))
    for name, value in folder.conf.items():
        spark.conf.set(name, value)
    catalog = SparkCatalog(spark, Lake(plan.settings), plan.url)
    catalog.open()
    return folder, catalog, load(spark, folder)


def refresh(spark: SparkSession, plan: CodePlan, say: Callable[[dict[str, object]], None]) -> int:
    """Make tables anew, one after the other; returns how many rows were written."""
    from pyspark_nexo.code.refreshing import Refresh, check_refreshed

    rows = 0
    folder, catalog, definitions = _loaded(spark, plan)
    check_refreshed(definitions, plan.full)
    for name in plan.full:
        work = Refresh(catalog.lake, name)
        filling = Filling(work.definitions(definitions), catalog, folder.root, plan, say)
        aside = work.run(filling)
        rows += filling.rows
        say({"refreshed": name, "aside": aside or ""})
    return rows


@dataclass(slots=True)
class Filling:
    """Runs the flows of a table that is made anew once."""

    definitions: Definitions
    catalog: SparkCatalog
    root: Path
    plan: CodePlan
    say: Callable[[dict[str, object]], None]
    rows: int = 0

    def __call__(self) -> None:
        from pyspark_nexo.code.graph import FlowGraph
        from pyspark_nexo.code.runner import FlowsRunner

        self.catalog.open()
        self.catalog.between = (self.plan.since, self.plan.until)
        try:
            graph = FlowGraph(self.definitions, self.catalog, self.root)
            graph.build()
            self._check(graph)
            note = FlowsRunner(graph, lambda text: self.say({"note": text}))
            self.rows = note.once()
        finally:
            self.catalog.between = ("", "")

    def _check(self, graph: FlowGraph) -> None:
        """A time limits only what is read of streams, and no table that needs every change."""
        if not (self.plan.since or self.plan.until):
            return
        for flow in graph.order:
            others = [name for name in graph.reads[flow.name] if not self.catalog.is_stream(name)]
            if others or flow.changes is not None:
                what = f"reads {others[0]!r}" if others else "applies changes to its table"
                raise InvalidInput(
                    f"flow {flow.name!r} {what}: --from and --to are for flows that read streams "
                    "alone; leave them out to make the table anew from all history"
                )


def run(plan: CodePlan, stop: threading.Event, say: Callable[[dict[str, object]], None]) -> None:
    """Carry out a plan, until it is done or ``stop`` is set."""
    from pyspark_nexo.code.runner import FlowsRunner
    from pyspark_nexo.sessions import attached

    def note(text: str) -> None:
        say({"note": text})

    with attached(plan.gateway_port, plan.gateway_secret) as spark:
        rows = refresh(spark, plan, say) if plan.full else 0
        if plan.only_full:
            say({"rows": rows})
            return
        runner = FlowsRunner(graph_of(spark, plan), note, plan.trigger_s, plan.only)
        if plan.once:
            say({"rows": rows + runner.once()})
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
