"""The pipeline: takes streams into the lake, micro-batch by micro-batch (SPEC I2, I4, I8, I9).

There is no checkpoint beside the tables: what to take next is read from the tables' own offsets
each time, so a pipeline can be killed at any point and started on any machine. Reads, commits and
reports to the broker name the time at which the stream was created, so a stream that is deleted and
created again is never mixed with the earlier one.

A micro-batch takes the streams in slices: it asks the broker what is new in a slice, writes the
new ranges in one Spark job, and commits the tables together while the next slice is written. A
failure stops only the stream that it concerns.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from nexo.batch.partitions import Growths
from nexo.errors import ConnectionLost, NexoError, NotFound, StreamReplaced, Unauthenticated
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.commit import LostRace, commit_all
from nexo.lake.derived import dead_letters, latest
from nexo.lake.once import taking
from nexo.lake.plan import BatchLimits
from nexo.lake.progress import MicroBatchResult, Tracker, total
from nexo.lake.tables import CREATED_MS, StreamId
from nexo.lake.typed.columns import REJECTED, set_schema
from nexo.protocol import stream as wire
from pyspark_nexo.failures import SparkEnded
from pyspark_nexo.planning import Planner, WantedPartition, chunks, slice_of
from pyspark_nexo.steps import StreamStep, WrittenFiles, new_fields, replaced, unreported
from pyspark_nexo.tiering import Probe, TaskGroup, no_probe, run_tasks, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


StreamOutcome: TypeAlias = tuple[str, MicroBatchResult | Exception]
"""A stream, and its result or failure."""


@dataclass(slots=True)
class Pipeline:
    """Takes streams into the lake.

    ``streams`` limits it to these; otherwise it takes every stream with tiering on.
    """

    spark: SparkSession
    lake: Lake
    url: str | None = None
    streams: Sequence[str] = ()
    limits: BatchLimits = field(default_factory=BatchLimits)
    probe: Probe = no_probe
    tracker: Tracker = field(default_factory=Tracker)
    """What it did so far, for others to read (`nexo.lake.progress`)."""
    _planner: Planner = field(init=False)
    _collected: set[str] = field(default_factory=set)
    """Streams without new dead letters, as far as this pipeline knows."""

    def __post_init__(self) -> None:
        self._planner = Planner(self.lake, self.tracker)

    @property
    def refused(self) -> Mapping[str, NexoError]:
        """Streams that the last micro-batch could not take, and why; the others went on."""
        return self._planner.refused

    def run_once(self, report: Callable[[MicroBatchResult], None] = lambda _: None) -> int:
        """Take all records that are there at the start; returns how many.

        Raises the error of a failed stream after the others were taken.
        """
        folder = self.lake.settings.folder
        with HotLog(self.url) as broker, self.tracker.running(folder):
            infos = [broker.describe(name) for name in self._names(broker)]
            targets = {
                info.name: [part.stable_offset for part in info.partitions] for info in infos
            }
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

    def run_batch(
        self, names: Iterable[str], wanted: WantedPartition = lambda *_: True
    ) -> list[MicroBatchResult]:
        """One micro-batch of these streams; empty if nothing is new."""
        with HotLog(self.url) as broker:
            return self._batch(broker, dict.fromkeys(names), wanted)

    # -- which streams -----------------------------------------------------------------

    def names(self) -> list[str]:
        """The streams it takes now."""
        with HotLog(self.url) as broker:
            return self._names(broker)

    def _names(self, broker: HotLog) -> list[str]:
        return list(self.streams or broker.names(tiering=True))

    # -- a micro-batch -----------------------------------------------------------------

    def _batch(
        self,
        broker: HotLog,
        targets: Mapping[str, list[int] | None],
        wanted: WantedPartition = lambda *_: True,
    ) -> list[MicroBatchResult]:
        self._planner.begin(self.limits, len(targets))
        steps = self._planner.steps(broker, targets, wanted)
        done = self._take(broker, steps, slice_of(len(targets)))
        self._collect([name for name in targets if name not in self._collected])
        return done

    def _take(
        self, broker: HotLog, steps: Iterator[StreamStep], size: int
    ) -> list[MicroBatchResult]:
        """Take streams, a slice at a time: one is written while the previous one is committed."""
        done = list[MicroBatchResult]()
        with ThreadPoolExecutor(1, "nexo-commit") as committer:
            under_way: Future[list[StreamOutcome]] | None = None
            for part, files, started_s in self._written(steps, size):
                if under_way is not None:
                    done += self._settled(under_way.result())
                under_way = committer.submit(self._finish, broker, part, files, started_s)
            if under_way is not None:
                done += self._settled(under_way.result())
        return done

    def _settled(self, outcomes: Iterable[StreamOutcome]) -> Iterator[MicroBatchResult]:
        for name, outcome in outcomes:
            if isinstance(outcome, Exception):
                self._planner.refuse(name, outcome)
            else:
                yield outcome

    def _written(
        self, steps: Iterator[StreamStep], size: int
    ) -> Iterator[tuple[list[StreamStep], WrittenFiles, float]]:
        """Steps whose files are written, and when that began."""
        for part in chunks(steps, size):
            started_s = time.monotonic()
            for ready, files in self._attempted(part):
                yield ready, files, started_s

    def _attempted(
        self, steps: list[StreamStep]
    ) -> Iterator[tuple[list[StreamStep], WrittenFiles]]:
        """Write some steps; if the Spark job fails, try each half alone.

        So a stream that kills its task stops only itself.
        """
        try:
            steps, files = self._with_new_columns(steps)
        except (ConnectionLost, SparkEnded, Unauthenticated):
            raise
        except NexoError as error:
            if len(steps) == 1:
                self._planner.refuse(steps[0].name, error)
                return
            half = len(steps) // 2
            yield from self._attempted(steps[:half])
            yield from self._attempted(steps[half:])
            return
        if ready := [step for step in steps if step.name not in self._planner.refused]:
            yield ready, files

    def _with_new_columns(
        self, steps: Sequence[StreamStep]
    ) -> tuple[list[StreamStep], WrittenFiles]:
        """Files of every step; streams whose values have new fields are written once more.

        So a new column has a value in the record that brought the field.
        """
        files, ready = self._write(steps), list[StreamStep]()
        again = list[StreamStep]()
        for step in steps:
            found = new_fields(step, files)
            if not found or step.name in self._planner.refused:
                ready.append(step)
                continue
            step.discard(files)
            try:
                table = set_schema(step.table, found)
            except NexoError as error:
                self._planner.refuse(step.name, error)
                continue
            self._planner.tables[step.name] = table
            again.append(replace(step, table=table))
        return [*ready, *again], files | (self._write(again) if again else {})

    def _write(self, steps: Sequence[StreamStep]) -> WrittenFiles:
        """Files of every range; if one range fails, its whole stream does."""
        files: WrittenFiles = defaultdict(list)
        ranges = [part for step in steps for part in step.ranges(self.limits)]
        outcomes = take(self.spark, self.url, ranges, self.probe, self.limits.task_s)
        for part, outcome in zip(ranges, outcomes, strict=True):
            if isinstance(outcome, list):
                files[part.stream, part.partition] += outcome
            else:
                self._planner.refuse(part.stream, outcome)
        for step in steps:
            if step.name in self._planner.refused:
                step.discard(files)
        return files

    # -- in the thread that commits ------------------------------------------------------

    def _finish(
        self, broker: HotLog, steps: Sequence[StreamStep], files: WrittenFiles, started_s: float
    ) -> list[StreamOutcome]:
        """Commit streams' files together, and report them to the broker as tiered."""
        outcomes: dict[str, MicroBatchResult | Exception] = {}
        for _ in steps:
            self.probe("before the commit")
        infos = broker.describe_all(step.name for step in steps)
        ready = list[StreamStep]()
        for step in steps:
            if (error := replaced(infos[step.name], step.info.created_ms)) is None:
                ready.append(step)
            else:
                step.discard(files)
                outcomes[step.name] = self._not_committed(step, error, started_s)
        committed = list[StreamStep]()
        work = [taking(step.table, step.written(files)) for step in ready]
        for step, found in zip(ready, commit_all(work), strict=True):
            if isinstance(found, Exception):
                outcomes[step.name] = self._not_committed(step, found, started_s)
            else:
                committed.append(step)
        for _ in committed:
            self.probe("after the commit")
        refused = self._report(broker, committed)
        for step in committed:
            self.probe("reported")
            outcomes[step.name] = (
                self._not_committed(step, refused[step.name], started_s)
                if step.name in refused
                else self._committed(step, files, started_s)
            )
        return list(outcomes.items())

    def _not_committed(
        self, step: StreamStep, error: Exception, started_s: float
    ) -> MicroBatchResult | Exception:
        """It is not a failure if another pipeline was first, or the stream was replaced."""
        if not isinstance(error, LostRace | StreamReplaced | NotFound):
            return error
        self._planner.tables.pop(step.name, None)
        self.tracker.of(step.name).lost_races += isinstance(error, LostRace)
        return MicroBatchResult(step.name, 0, 0, time.monotonic() - started_s, error.message)

    def _committed(
        self, step: StreamStep, files: WrittenFiles, started_s: float
    ) -> MicroBatchResult:
        name, seconds = step.name, time.monotonic() - started_s
        found = [each for part in step.planned for each in files[name, part.partition]]
        if any(facts.rejected for facts in found):
            self._collected.discard(name)
        rows = sum(facts.count for facts in found)
        result = MicroBatchResult(name, rows, len(found), seconds)
        self.tracker.took(step.table, result, complete=step.complete)
        return result

    def _report(self, broker: HotLog, steps: Sequence[StreamStep]) -> dict[str, NexoError]:
        """Report to the broker what the lake holds now; returns the streams that it rejected."""
        asks = [ask for step in steps for ask in unreported(step.info, step.table)]
        answers = zip(asks, broker.tiered_all(asks), strict=True)
        return {ask.stream: error for ask, error in answers if error is not None}

    # -- derived tables ----------------------------------------------------------------

    def _collect(self, names: Sequence[str]) -> None:
        """Bring streams' tables of dead letters up to date."""
        for name in names:
            if (table := self._planner.tables.get(name)) is None:
                continue
            if REJECTED not in table.schema().column_names:
                self._collected.add(name)
                continue
            stream = StreamId(name, int(table.properties[CREATED_MS]))
            try:
                count = self._collect_letters(stream)
            except Exception as error:  # of this stream alone
                self._planner.refuse(name, error)
            else:
                self._collected.add(name)
                self.tracker.of(name).dead_letters = count

    def _collect_letters(self, stream: StreamId) -> int:
        """Bring a stream's table of dead letters up to date; returns how many there are."""
        while planned := dead_letters.plan(self.lake, stream):
            table, steps = planned
            self.probe("before the dead letters")
            written = run_tasks(self.spark, TaskGroup(dead_letters.run, steps))
            with suppress(LostRace):
                dead_letters.finish(table, steps, written)
        return sum(dead_letters.count(self.lake, stream).values())

    def compact(self, names: Sequence[str]) -> list[MicroBatchResult]:
        """Bring the tables of newest records up to date, of those streams that compact."""
        with HotLog(self.url) as broker:
            infos = [broker.describe(name) for name in names]
        compacted = (info for info in infos if "compact" in info.options.get("cleanup", ""))
        return [result for info in compacted if (result := self._compact(info)) is not None]

    def _compact(self, info: wire.StreamInfo) -> MicroBatchResult | None:
        """Bring a stream's table of newest records up to date; None if it already is."""
        started_s, stream = time.monotonic(), StreamId(info.name, info.created_ms)
        starts = [part.hot_offset for part in info.partitions]
        table, steps = latest.plan(self.lake, stream, Growths(info.growths), starts)
        if not steps:
            return None
        written = run_tasks(self.spark, TaskGroup(latest.run, steps))
        with suppress(LostRace):
            latest.finish(table, steps, written)
        files = [facts for each in written for facts in each]
        rows, seconds = sum(facts.count for facts in files), time.monotonic() - started_s
        self.tracker.of(stream.name).newest_records = total(table.refresh(), "total-records")
        return MicroBatchResult(f"{stream.name}_latest", rows, len(files), seconds)
