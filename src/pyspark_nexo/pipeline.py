"""The pipeline: takes streams into the lake, micro-batch by micro-batch (SPEC I2, I4, I8, I9).

There is no checkpoint beside the tables: what to take next is read from the tables' own offsets
each time, so a pipeline can be killed anywhere and started anywhere. Reads, commits and reports to
the broker name the stream's incarnation, so a stream that is deleted and created again meanwhile
is never mixed with the earlier one.

A micro-batch describes the streams, writes the new ranges of all of them in one Spark job, and
commits the tables in parallel. What fails for one stream is noted and stops only that stream.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from nexo.errors import (
    ConnectionLost,
    NexoError,
    NotFound,
    StreamReplaced,
    Unauthenticated,
    Unavailable,
)
from nexo.hot_log import HotLog, held
from nexo.lake.catalog import CREATED_MS, Lake, StreamId
from nexo.lake.commit import LostRace, TakenRange, commit
from nexo.lake.derived import dead_letters, latest
from nexo.lake.files import DataFileFacts, target
from nexo.lake.offsets import offsets_of
from nexo.lake.paths import delete_files
from nexo.lake.plan import Advance, BatchLimits, HotPartition, advances, cost_s
from nexo.lake.progress import MicroBatch, Tracker, now_ms, total
from nexo.lake.schema import raw_schema
from nexo.lake.typed import REJECTED, columns_of, set_schema
from nexo.lake.typed.infer import MOST_COLUMNS, merged
from nexo.protocol import stream as wire
from pyspark_nexo.failures import SparkEnded
from pyspark_nexo.tiering import Derivation, Probe, TableRange, no_probe, run_tasks, take

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

log = logging.getLogger("nexo.pipeline")

Files: TypeAlias = dict[tuple[str, int], list[DataFileFacts]]
"""What was written, by stream and partition."""
Wanted: TypeAlias = Callable[[str, int, float], bool]
"""Whether a stream that is so many records and bytes behind is to be taken now."""
COMMITTERS = 32
"""Tables that are committed at the same time; those of a folder share one transaction."""
_LOOKED_AT = 100
"""Streams without tiering that are looked at again each time new ones are looked for."""
_FAILURES_IN_A_ROW = 3
"""Streams that may fail one after the other before it is the catalog that fails."""


@dataclass(frozen=True, slots=True)
class MicroBatchResult:
    """What one micro-batch did to one stream; ``lost`` says why nothing was committed."""

    stream: str
    rows: int
    files: int
    lost: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StreamStep:
    """One stream's part of a micro-batch."""

    info: wire.StreamInfo
    table: Table
    advances: Sequence[Advance]

    def ranges(self, limits: BatchLimits) -> Iterator[TableRange]:
        """Its work, cut for Spark."""
        where, info = target(self.table), self.info
        for each in self.advances:
            for first, end in each.tasks(limits):
                cost = cost_s(end - first, (end - first) * each.record_bytes)
                yield TableRange(
                    info.name, info.created_ms, each.partition, first, end, where, cost
                )

    @property
    def complete(self) -> bool:
        """Whether it goes up to what readers may see now."""
        ends = {step.partition: step.end for step in self.advances}
        parts = enumerate(self.info.partitions)
        return all(ends.get(p, part.stable_offset) == part.stable_offset for p, part in parts)

    def taken(self, files: Files) -> list[TakenRange]:
        """What is to be committed once ``files`` are written."""
        return [
            TakenRange(step.partition, step.after, step.end, files[self.info.name, step.partition])
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
    limits: BatchLimits = field(default_factory=BatchLimits)
    probe: Probe = no_probe
    tracker: Tracker = field(default_factory=Tracker)
    """What it did so far, for those who watch (`nexo.lake.progress`)."""
    refused: dict[str, NexoError] = field(default_factory=dict)
    """Streams that the last micro-batch could not take, and why; the others went on."""
    _tables: dict[str, Table] = field(default_factory=dict)
    """Tables as this pipeline last saw them: another may have committed since."""
    _unchanged: set[str] = field(default_factory=set)
    """Streams of which no other had committed to the table when the micro-batch began."""
    _collected: set[str] = field(default_factory=set)
    """Streams whose dead letters are in their table, as far as this pipeline knows."""
    _tiering: dict[str, bool] = field(default_factory=dict)

    def run_once(self, report: Callable[[MicroBatchResult], None] = lambda _: None) -> int:
        """Take everything that is there at the start; returns the rows taken.

        Raises what is wrong with a stream after the others were taken.
        """
        folder = self.lake.settings.folder
        with HotLog(self.url) as broker, self.tracker.running(folder):
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

    def run_batch(
        self, names: Iterable[str], wanted: Wanted = lambda *_: True
    ) -> list[MicroBatchResult]:
        """One micro-batch of these streams over what is there now; empty if nothing is new."""
        with HotLog(self.url) as broker:
            return self._batch(broker, dict.fromkeys(names), wanted)

    # -- which streams -----------------------------------------------------------------

    def names(self) -> list[str]:
        """The streams it takes now."""
        with HotLog(self.url) as broker:
            return self._names(broker)

    def _names(self, broker: HotLog) -> list[str]:
        """Streams with tiering on; of those without, only some are looked at each time."""
        if self.streams:
            return list(self.streams)
        there, known = list(broker.names()), self._tiering
        self._tiering = {name: known[name] for name in known if name in set(there)}
        off = islice((name for name, on in self._tiering.items() if not on), _LOOKED_AT)
        for name in [*(name for name in there if self._tiering.get(name, True)), *list(off)]:
            self._tiering.pop(name, None)  # goes to the end
            with suppress(NotFound):
                self._tiering[name] = bool(broker.describe(name).options.get("tiering"))
        return [name for name in there if self._tiering.get(name)]

    # -- a micro-batch -----------------------------------------------------------------

    def _batch(
        self,
        broker: HotLog,
        targets: Mapping[str, list[int] | None],
        wanted: Wanted = lambda *_: True,
    ) -> list[MicroBatchResult]:
        started_s = time.monotonic()
        self.refused = {}
        self._unchanged = self.lake.unchanged(self._tables)
        steps = list(self._steps(broker, targets, wanted))
        done = self._take(broker, steps, started_s) if steps else []
        self._collect([name for name in targets if name not in self._collected])
        return done

    def _steps(
        self, broker: HotLog, targets: Mapping[str, list[int] | None], wanted: Wanted
    ) -> Iterator[StreamStep]:
        failures = 0
        for name, ends in targets.items():
            try:
                step = self._plan(broker, name, ends, wanted)
            except Exception as error:
                failures += isinstance(error, Unavailable)
                if failures >= _FAILURES_IN_A_ROW:
                    raise
                self._refuse(name, error)
            else:
                failures = 0
                if step is not None:
                    yield step

    def _refuse(self, name: str, error: Exception) -> None:
        """Note what is wrong with one stream; what is wrong with all of them is raised."""
        self._tables.pop(name, None)
        if isinstance(error, ConnectionLost | Unauthenticated | SparkEnded):
            raise error
        if not isinstance(error, NexoError):
            log.error("stream %r cannot be taken", name, exc_info=error)
            error = NexoError(f"{type(error).__name__}: {error}")
        self.refused[name] = error
        self.tracker.refused(name, error.message)

    def _plan(
        self, broker: HotLog, name: str, ends: list[int] | None, wanted: Wanted
    ) -> StreamStep | None:
        """A stream's next step; None if there is nothing to do, or not yet."""
        info, asked_ms = broker.describe(name), now_ms()
        known = self._tables.get(name)
        if known is not None and _is_of(known, info) and not _is_ahead(known, info):
            rows, size_bytes = _behind(known, held(info))
            if not rows or not wanted(name, rows, size_bytes):
                self.tracker.looked(name, known, rows, asked_ms)
                self._tell(broker, info, known)
                return None
            if name in self._unchanged:
                return self._step(broker, info, known, ends, asked_ms)
        # The table first, then the broker: it cannot have more than the broker has by then.
        table = self._tables[name] = self.lake.ensure(StreamId(name, info.created_ms), raw_schema)
        asked_ms = now_ms()
        info = self._described(broker, name, info.created_ms)
        return self._step(broker, info, table, ends, asked_ms)

    def _step(
        self,
        broker: HotLog,
        info: wire.StreamInfo,
        table: Table,
        ends: list[int] | None,
        asked_ms: int,
    ) -> StreamStep | None:
        offsets, parts = offsets_of(table.properties), held(info)
        self.tracker.looked(info.name, table, _behind(table, parts)[0], asked_ms)
        if ends is not None and len(ends) == len(parts):  # else it was created again meanwhile
            parts = [
                replace(part, stable=min(part.stable, end))
                for part, end in zip(parts, ends, strict=True)
            ]
        found = advances(info.name, offsets, parts, self.limits)
        self._tell(broker, info, table)
        if REJECTED not in table.schema().column_names:
            self._collected.add(info.name)
        return StreamStep(info, table, found) if found else None

    def _described(self, broker: HotLog, name: str, created_ms: int) -> wire.StreamInfo:
        """A stream, if it is still the same one."""
        info = broker.describe(name)
        if info.created_ms != created_ms:
            raise StreamReplaced(f"stream {name!r} was deleted and created again")
        return info

    def _take(
        self, broker: HotLog, steps: Sequence[StreamStep], started_s: float
    ) -> list[MicroBatchResult]:
        """Write what is new of all streams, then commit their tables, several at a time.

        If Spark fails as a whole, each half is tried, so that a stream that kills its task stops
        only itself.
        """
        try:
            steps, files = self._written(steps)
        except (ConnectionLost, SparkEnded, Unauthenticated):
            raise
        except NexoError as error:
            if len(steps) == 1:
                self._refuse(steps[0].info.name, error)
                return []
            half = len(steps) // 2
            first = self._take(broker, steps[:half], started_s)
            return first + self._take(broker, steps[half:], started_s)
        ready = [step for step in steps if step.info.name not in self.refused]
        finish = partial(self._finish, broker, files, started_s)
        with ThreadPoolExecutor(COMMITTERS, "nexo-commit") as pool:
            done = list(pool.map(finish, ready))
        for step, outcome in zip(ready, done, strict=True):
            if isinstance(outcome, Exception):
                self._refuse(step.info.name, outcome)
        return [outcome for outcome in done if isinstance(outcome, MicroBatchResult)]

    def _written(self, steps: Sequence[StreamStep]) -> tuple[list[StreamStep], Files]:
        """Files of every step; streams whose values have new columns are written once more.

        So a column holds the field of the very record that brought it.
        """
        files, ready = self._write(steps), list[StreamStep]()
        again = list[StreamStep]()
        for step in steps:
            found = _new_fields(step, files)
            if not found or step.info.name in self.refused:
                ready.append(step)
                continue
            _discard(step, files)
            try:
                table = set_schema(step.table, found)
            except NexoError as error:
                self._refuse(step.info.name, error)
                continue
            self._tables[step.info.name] = table
            again.append(replace(step, table=table))
        return [*ready, *again], files | (self._write(again) if again else {})

    def _write(self, steps: Sequence[StreamStep]) -> Files:
        """Files of every range; a stream of which one range failed is refused as a whole."""
        files: Files = defaultdict(list)
        ranges = [part for step in steps for part in step.ranges(self.limits)]
        outcomes = take(self.spark, self.url, ranges, self.probe, self.limits.task_s)
        for part, outcome in zip(ranges, outcomes, strict=True):
            if isinstance(outcome, list):
                files[part.stream, part.partition] += outcome
            else:
                self._refuse(part.stream, outcome)
        for step in steps:
            if step.info.name in self.refused:
                _discard(step, files)
        return files

    def _finish(
        self, broker: HotLog, files: Files, started_s: float, step: StreamStep
    ) -> MicroBatchResult | Exception:
        """Commit a stream's files and report it to the broker; runs in a thread."""
        name = step.info.name
        try:
            return self._commit(broker, files, started_s, step)
        except (LostRace, StreamReplaced, NotFound) as error:
            self._tables.pop(name, None)
            self.tracker.of(name).lost_races += isinstance(error, LostRace)
            return MicroBatchResult(name, 0, 0, error.message, time.monotonic() - started_s)
        except Exception as error:  # raised by the thread that owns the micro-batch
            return error

    def _commit(
        self, broker: HotLog, files: Files, started_s: float, step: StreamStep
    ) -> MicroBatchResult:
        taken, name = step.taken(files), step.info.name
        self.probe("before the commit")
        try:
            self._described(broker, name, step.info.created_ms)
        except (StreamReplaced, NotFound):
            _discard(step, files)
            raise
        table = commit(step.table, taken, fresh=True)
        self.probe("after the commit")
        self._tell(broker, step.info, table)
        self.probe("told")
        if any(facts.rejected for part in taken for facts in part.files):
            self._collected.discard(name)
        rows = sum(facts.count for part in taken for facts in part.files)
        count = sum(len(part.files) for part in taken)
        seconds = time.monotonic() - started_s
        self.tracker.took(name, table, MicroBatch(rows, count, seconds, step.complete))
        return MicroBatchResult(name, rows, count, "", seconds)

    def _tell(self, broker: HotLog, info: wire.StreamInfo, table: Table) -> None:
        """Tell the broker what is safe; also what an earlier pipeline could not tell any more."""
        for partition, offset in offsets_of(table.properties).items():
            if offset > info.partitions[partition].tiered_offset:
                broker.tiered(info.name, partition, offset, info.created_ms)

    # -- derived tables ----------------------------------------------------------------

    def _collect(self, names: Sequence[str]) -> None:
        """Bring streams' tables of dead letters up to their tables."""
        for name in names:
            if (table := self._tables.get(name)) is None:
                continue
            try:
                self._collect_one(StreamId(name, int(table.properties[CREATED_MS])))
            except NexoError as error:
                self._refuse(name, error)

    def _collect_one(self, stream: StreamId) -> None:
        while planned := dead_letters.plan(self.lake, stream):
            table, steps = planned
            work = Derivation(steps, dead_letters.run)
            self.probe("before the dead letters")
            with suppress(LostRace):
                dead_letters.finish(table, steps, run_tasks(self.spark, work, len(steps)))
        self._collected.add(stream.name)
        count = sum(dead_letters.count(self.lake, stream).values())
        self.tracker.of(stream.name).dead_letters = count

    def compact(self, names: Sequence[str]) -> list[MicroBatchResult]:
        """Bring the tables of newest records up to date, of those streams that compact."""
        with HotLog(self.url) as broker:
            infos = [broker.describe(name) for name in names]
        found = [self._compact(i) for i in infos if "compact" in i.options.get("cleanup", "")]
        return [progress for progress in found if progress is not None]

    def _compact(self, info: wire.StreamInfo) -> MicroBatchResult | None:
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
        return MicroBatchResult(
            f"{info.name}_latest", rows, count, "", time.monotonic() - started_s
        )


def _is_of(table: Table, info: wire.StreamInfo) -> bool:
    return table.properties.get(CREATED_MS) == str(info.created_ms)


def _is_ahead(table: Table, info: wire.StreamInfo) -> bool:
    """Whether the table has records that the broker no longer has."""
    offsets = offsets_of(table.properties)
    return any(offsets.get(p, 0) > part.stable_offset for p, part in enumerate(info.partitions))


def _behind(table: Table, parts: Sequence[HotPartition]) -> tuple[int, float]:
    """Records, and about how many bytes, that the broker has and the table lacks."""
    offsets, rows, size_bytes = offsets_of(table.properties), 0, 0.0
    for number, part in enumerate(parts):
        missing = max(part.stable - max(offsets.get(number, 0), part.start), 0)
        rows += missing
        size_bytes += missing * part.record_bytes
    return rows, size_bytes


def _new_fields(step: StreamStep, files: Files) -> dict[str, str]:
    """Fields that are to become columns, as many as may, with types that fit every file's."""
    found = dict[str, str]()
    for facts in (facts for part in step.taken(files) for facts in part.files):
        found = merged(found, facts.new_fields)
    room = MOST_COLUMNS - len(columns_of(step.table.properties))
    return dict(islice(found.items(), max(room, 0)))


def _discard(step: StreamStep, files: Files) -> None:
    """Delete files that will not be committed."""
    for part in step.advances:
        delete_files(step.table.io, (each.path for each in files[step.info.name, part.partition]))


def _ends(info: wire.StreamInfo) -> list[int]:
    return [part.stable_offset for part in info.partitions]
