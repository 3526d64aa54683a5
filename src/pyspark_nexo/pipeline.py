"""The pipeline: takes streams into the lake, micro-batch by micro-batch (SPEC I2, I4).

There is no checkpoint beside the tables: what to take next is read from the tables' own offsets
each time, so a pipeline can be killed anywhere and started anywhere.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from nexo.errors import Conflict, ConnectionLost, Forbidden, NexoError, NotFound, Unavailable
from nexo.lake import dead_letters, latest
from nexo.lake.catalog import Lake, StreamId
from nexo.lake.commit import LostRace, Taken, commit, offsets_of
from nexo.lake.files import DataFileFacts, target
from nexo.lake.plan import Advance, Limits, advances
from nexo.lake.progress import Batch, Tracker, now_ms, total
from nexo.lake.schema import raw_schema
from nexo.protocol import stream as wire
from pyspark_nexo.broker import StreamBroker, held
from pyspark_nexo.tiering import Derivation, Fetcher, Probe, Task, no_probe, run_tasks

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

Files: TypeAlias = dict[tuple[str, int], list[DataFileFacts]]
"""What was written, by stream and partition."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one micro-batch did to one stream."""

    stream: str
    rows: int
    files: int
    lost: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One stream's part of a micro-batch."""

    info: wire.StreamInfo
    table: Table
    advances: Sequence[Advance]

    def tasks(self, limits: Limits) -> Iterator[Task]:
        """Its work, cut for Spark."""
        where = target(self.table)
        for advance in self.advances:
            for first, end in advance.tasks(limits):
                yield Task(self.info.name, advance.partition, first, end, where)

    @property
    def complete(self) -> bool:
        """Whether it goes up to what readers may see now."""
        ends = {step.partition: step.end for step in self.advances}
        parts = enumerate(self.info.partitions)
        return all(ends.get(p, part.stable_offset) == part.stable_offset for p, part in parts)

    def taken(self, files: Files) -> list[Taken]:
        """What is to be committed once ``files`` are written."""
        return [
            Taken(step.partition, step.after, step.end, files[self.info.name, step.partition])
            for step in self.advances
        ]


@dataclass(slots=True)
class Pipeline:
    """Takes streams into the lake.

    ``streams`` limits it to these; otherwise it takes every stream with tiering on.
    """

    spark: SparkSession
    lake: Lake
    url: str | None = None
    streams: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    probe: Probe = no_probe
    tracker: Tracker = field(default_factory=Tracker)
    """What it did so far, for those who watch (`nexo.lake.progress`)."""
    refused: dict[str, NexoError] = field(default_factory=dict)
    """Streams that the last micro-batch could not take, and why; the others went on."""
    _collected: set[str] = field(default_factory=set)
    """Streams whose dead letters are in their table, as far as this pipeline knows."""

    def run_once(self, report: Callable[[Progress], None] = lambda _: None) -> int:
        """Take everything that is there at the start; returns the rows taken.

        Raises what is wrong with a stream after the others were taken.
        """
        folder = self.lake.settings.folder
        with StreamBroker(self.url) as broker, self.tracker.running(folder):
            targets = {name: _ends(broker.describe(name)) for name in self._names(broker)}
            taken = 0
            while True:
                done = self._batch(broker, targets)
                self.tracker.save(folder)
                for progress in done:
                    report(progress)
                    taken += progress.rows
                if not done:
                    for error in self.refused.values():
                        raise error
                    self.tracker.went_well()
                    return taken

    def run_batch(self, names: Sequence[str]) -> list[Progress]:
        """One micro-batch of these streams over what is there now; empty if nothing is new."""
        with StreamBroker(self.url) as broker:
            return self._batch(broker, dict.fromkeys(names))

    def compact(self, names: Sequence[str]) -> list[Progress]:
        """Bring the tables of newest records up to date, of those streams that compact."""
        with StreamBroker(self.url) as broker:
            infos = [broker.describe(name) for name in names]
        found = [self._compact(i) for i in infos if "compact" in i.options.get("cleanup", "")]
        return [progress for progress in found if progress is not None]

    def _compact(self, info: wire.StreamInfo) -> Progress | None:
        started_s = time.monotonic()
        table, steps = latest.plan(self.lake, StreamId(info.name, info.created_ms))
        if not steps:
            return None
        written = run_tasks(self.spark, Derivation(steps, latest.run), len(steps))
        with suppress(LostRace):
            latest.finish(table, steps, written)
        rows = sum(facts.count for files in written for facts in files)
        count = sum(map(len, written))
        self.tracker.of(info.name).newest_records = total(table.refresh(), "total-records")
        return Progress(f"{info.name}_latest", rows, count, False, time.monotonic() - started_s)

    def _collect(self, info: wire.StreamInfo) -> None:
        """Bring a stream's table of dead letters up to its table."""
        self._collected.discard(info.name)
        stream = StreamId(info.name, info.created_ms)
        while planned := dead_letters.plan(self.lake, stream):
            table, steps = planned
            work = Derivation(steps, dead_letters.run)
            self.probe("before the dead letters")
            with suppress(LostRace):
                dead_letters.finish(table, steps, run_tasks(self.spark, work, len(steps)))
        self._collected.add(info.name)
        count = sum(dead_letters.count(self.lake, stream).values())
        self.tracker.of(info.name).dead_letters = count

    def names(self) -> list[str]:
        """The streams it takes now."""
        with StreamBroker(self.url) as broker:
            return self._names(broker)

    def _names(self, broker: StreamBroker) -> list[str]:
        if self.streams:
            return list(self.streams)
        return [name for name in broker.names() if broker.describe(name).options.get("tiering")]

    def _batch(
        self, broker: StreamBroker, targets: Mapping[str, list[int] | None]
    ) -> list[Progress]:
        started_s = time.monotonic()
        self.refused = {}
        steps = list(self._steps(broker, targets))
        return self._take(broker, steps, started_s) if steps else []

    def _steps(
        self, broker: StreamBroker, targets: Mapping[str, list[int] | None]
    ) -> Iterator[Step]:
        for name, ends in targets.items():
            try:
                step = self._plan(broker, name, ends)
            except (Conflict, Forbidden, NotFound) as error:
                self._refuse(name, error)
            else:
                if step.advances:
                    yield step

    def _take(
        self, broker: StreamBroker, steps: Sequence[Step], started_s: float
    ) -> list[Progress]:
        """All in one Spark job; if that fails, one by one, so that one stream stops only itself."""
        try:
            files = self._write([task for step in steps for task in step.tasks(self.limits)])
        except (Unavailable, ConnectionLost):
            raise
        except NexoError as error:
            if len(steps) == 1:
                self._refuse(steps[0].info.name, error)
                return []
            return [done for step in steps for done in self._take(broker, [step], started_s)]
        return [self._finish(broker, step, files, started_s) for step in steps]

    def _refuse(self, name: str, error: NexoError) -> None:
        self.refused[name] = error
        self.tracker.refused(name, error.message)

    def _plan(self, broker: StreamBroker, name: str, ends: list[int] | None) -> Step:
        asked_ms = now_ms()
        info = broker.describe(name)
        table = self.lake.ensure(StreamId(name, info.created_ms), raw_schema)
        offsets, parts = offsets_of(table.properties), held(info)
        behind = sum(
            part.stable - max(offsets.get(p, 0), part.start) for p, part in enumerate(parts)
        )
        self.tracker.looked(name, table, behind, asked_ms)
        if ends is not None and len(ends) == len(parts):  # else it was created anew meanwhile
            parts = [
                replace(part, stable=min(part.stable, end))
                for part, end in zip(parts, ends, strict=True)
            ]
        step = Step(info, table, advances(name, offsets, parts, self.limits))
        self._tell(broker, info, offsets)
        if name not in self._collected:
            self._collect(info)
        return step

    def _write(self, tasks: Sequence[Task]) -> Files:
        files: Files = defaultdict(list)
        results = run_tasks(self.spark, Fetcher(self.url, tasks, self.probe), len(tasks))
        for task, found in zip(tasks, results, strict=True):
            files[task.stream, task.partition] += found
        return files

    def _finish(self, broker: StreamBroker, step: Step, files: Files, started_s: float) -> Progress:
        taken = step.taken(files)
        rows = sum(facts.count for part in taken for facts in part.files)
        self.probe("before the commit")
        try:
            table = commit(step.table, taken)
        except LostRace:
            self.tracker.of(step.info.name).lost_races += 1
            return Progress(step.info.name, 0, 0, True, time.monotonic() - started_s)
        self.probe("after the commit")
        self._tell(broker, step.info, offsets_of(table.properties))
        self.probe("told")
        if any(facts.rejected for part in taken for facts in part.files):
            try:
                self._collect(step.info)
            except Conflict as error:
                self._refuse(step.info.name, error)
        count = sum(len(part.files) for part in taken)
        seconds = time.monotonic() - started_s
        self.tracker.took(step.info.name, table, Batch(rows, count, seconds, step.complete))
        return Progress(step.info.name, rows, count, False, seconds)

    def _tell(
        self, broker: StreamBroker, info: wire.StreamInfo, offsets: Mapping[int, int]
    ) -> None:
        """Tell the broker what is safe; also what an earlier pipeline could not tell any more."""
        for partition, offset in offsets.items():
            if offset > info.partitions[partition].tiered_offset:
                broker.tiered(info.name, partition, offset)


def _ends(info: wire.StreamInfo) -> list[int]:
    return [part.stable_offset for part in info.partitions]
