"""Runs the flows of a folder: all at once until stopped, or one after the other, once.

A flow that fails is tried again after a growing pause. Meanwhile those below it are held, and all
others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nexo.errors import NexoError, NotFound
from nexo.lake.progress import Tracker
from pyspark_nexo.code.definitions import OutputKind
from pyspark_nexo.code.flows import FlowRun
from pyspark_nexo.code.graph import FlowGraph
from pyspark_nexo.failures import SparkEnded, plain_errors
from pyspark_nexo.tiering import Probe, no_probe

TRIGGER_S = 10.0
LOOK_S = 0.5
LONGEST_PAUSE_S = 300.0

SayLine = Callable[[str], None]


@dataclass(slots=True)
class _Turn:
    """When a flow is next."""

    failures: int = 0
    due_s: float = 0.0


@dataclass(slots=True)
class FlowsRunner:
    """The flows of a graph; ``only`` limits it to some tables."""

    graph: FlowGraph
    say: SayLine
    trigger_s: float = TRIGGER_S
    only: Sequence[str] = ()
    probe: Probe = no_probe
    tracker: Tracker = field(default_factory=Tracker)
    clock: Callable[[], float] = time.monotonic
    runs: list[FlowRun] = field(init=False)
    _turns: dict[str, _Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outputs = self.graph.definitions.outputs
        if unknown := set(self.only) - outputs.keys():
            raise NotFound(f"--only {min(unknown)}: known are {', '.join(sorted(outputs))}")
        self.runs = [
            FlowRun(flow, outputs[flow.target], self.graph, self.probe)
            for flow in self.graph.order
            if outputs[flow.target].kind != OutputKind.TEMPORARY
            and (not self.only or flow.target in self.only)
        ]
        self.tracker.pipeline.flows = [each.progress for each in self.runs]

    @property
    def _folder(self) -> Path:
        return self.graph.catalog.lake.settings.folder

    # -- once ------------------------------------------------------------------------------

    def once(self) -> int:
        """Take what is there now, in order; returns the rows. Raises at the end what failed."""
        held = dict[str, str]()
        with self.tracker.running(self._folder):
            for run in self.runs:
                above = [held[name] for name in run.progress.reads if name in held]
                if above:
                    run.progress.state, held[run.flow.target] = "held", above[0]
                    continue
                try:
                    self._take_all(run)
                    self.say(self._line(run))
                except NexoError as error:
                    run.failed(error)
                    held[run.flow.target] = run.flow.name
                self.tracker.save(self._folder)
        failed = [run for run in self.runs if run.progress.error]
        if failed:
            raise NexoError("; ".join(run.progress.error for run in failed))
        return sum(run.progress.rows for run in self.runs)

    def _take_all(self, run: FlowRun) -> None:
        if not run.is_streaming:
            run.refresh()
            return
        run.start({"availableNow": True})
        assert run.query is not None
        with plain_errors():
            run.query.awaitTermination()
        if (error := run.failure()) is not None:
            raise error
        run.merge()
        run.look()
        run.progress.state = "idle"

    def _line(self, run: FlowRun) -> str:
        seen = run.progress
        dropped = f", {seen.dropped:,} dropped" if seen.dropped else ""
        return f"{seen.flow}: {seen.rows:,} rows into {seen.target}{dropped}"

    # -- until stopped -----------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Run every flow until ``stop`` is set."""
        with self.tracker.running(self._folder, int(self.trigger_s * 1000)):
            try:
                while not stop.is_set():
                    self.turn()
                    self.tracker.save(self._folder, 1.0)
                    stop.wait(LOOK_S)
            finally:
                self.stop()

    def stop(self) -> None:
        """Stop all; what other programs see of the tables is complete then."""
        for run in self.runs:
            run.stop()
        for run in self.runs:
            try:
                run.merge()
            except NexoError as error:
                self.say(f"changes of {run.flow.target} wait for the next start: {error.message}")
            run.look()

    def turn(self) -> None:
        """Look at each flow once: start those that are due, hold those below a failure."""
        for run in self.runs:
            if run.query is not None and not run.query.isActive:
                self._ended(run)
            self._merge_old(run)
            run.look()
        held = self._held()
        for run in self.runs:
            if run.flow.target in held and run.progress.state != "failed":
                run.stop()
                run.progress.state = "held"
            elif self.clock() >= self._turn(run).due_s:
                self._go_on(run)

    def _held(self) -> set[str]:
        """The tables below a flow that failed."""
        failed = [run.flow.target for run in self.runs if run.progress.state == "failed"]
        return {name for target in failed for name in self.graph.below(target)}

    def _turn(self, run: FlowRun) -> _Turn:
        return self._turns.setdefault(run.flow.name, _Turn())

    def _ended(self, run: FlowRun) -> None:
        error = run.failure()
        run.query = None
        if error is not None:
            self._failed(run, error)

    def _merge_old(self, run: FlowRun) -> None:
        try:
            run.merge_old()
        except NexoError as error:
            run.stop()
            self._failed(run, error)

    def _go_on(self, run: FlowRun) -> None:
        try:
            if run.is_streaming:
                if run.query is None:
                    run.start({"processingTime": f"{int(self.trigger_s * 1000)} milliseconds"})
                elif run.progress.last_rows and not run.progress.error:
                    self._turn(run).failures = 0
                return
            if run.refresh():
                self.say(self._line(run))
            turn = self._turn(run)
            turn.failures, turn.due_s = 0, self.clock() + self.trigger_s
            run.progress.error, run.progress.error_ms = "", None
        except SparkEnded:
            raise
        except NexoError as error:
            self._failed(run, error)

    def _failed(self, run: FlowRun, error: NexoError) -> None:
        known = run.progress.error
        run.failed(error)
        turn = self._turn(run)
        turn.failures += 1
        pause_s = min(max(self.trigger_s, 1.0) * 2.0 ** (turn.failures - 1), LONGEST_PAUSE_S)
        turn.due_s = self.clock() + pause_s
        if run.progress.error != known:
            self.say(f"{run.flow.name} pauses: {run.progress.error}")


def described(graph: FlowGraph) -> Iterator[dict[str, object]]:
    """The flows of a graph, as ``nexo pipeline check`` shows them."""
    for flow in graph.order:
        output = graph.definitions.outputs[flow.target]
        columns = graph.columns.get(flow.target)
        yield {
            "flow": flow.name,
            "fills": flow.target,
            "kind": output.kind.value,
            "reads": ", ".join(graph.reads[flow.name]),
            "columns": _columns(columns or ()),
            "place": str(flow.place),
        }


def _columns(columns: Iterable[object]) -> str:
    return ", ".join(getattr(each, "name", "") for each in columns)
