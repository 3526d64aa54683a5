"""One micro-batch of tier-through: ranges to Parquet in Spark tasks, only manifests back.

Tasks fetch from the broker and write lake files from the batches' own buffers; no row passes
through the JVM. Ranges of many streams share a few tasks, because each task has a cost of its own.
A range that fails is reported and stops no other.
"""

from __future__ import annotations

import atexit
import logging
import pickle
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from nexo.errors import ConnectionLost, NexoError, Unavailable
from nexo.hot_log import TOGETHER, HotLog, ReplyOrError
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io
from nexo.lake.names import file_label
from nexo.lake.paths import delete_files, sync_local
from nexo.lake.plan import packed
from nexo.lake.rows import rows
from nexo.protocol import stream as wire
from pyspark_nexo.failures import plain_errors
from pyspark_nexo.sessions import context_of, described, is_local
from pyspark_nexo.warm import WarmWorkers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("nexo.pipeline")

_FIRST_BYTES = 64 * 1024
"""How much of a range is fetched in one request with ranges of other streams."""
SMALL_S = 0.0075
"""What a range costs at most that is written without Spark, where Spark is on this machine."""
_FEW = 5
"""Streams that are named."""
_warm = WarmWorkers()
atexit.register(_warm.close)

Probe: TypeAlias = Callable[[str], None]
"""Called with the name of each point at which a crash test stops."""
Outcome: TypeAlias = list[DataFileFacts] | NexoError
"""The files of a range, or why there are none."""


def no_probe(point: str) -> None:
    """Nothing to test."""


@dataclass(frozen=True, slots=True)
class TableRange:
    """Offsets of one partition to be written into one table."""

    stream: str
    created_ms: int
    partition: int
    first: int
    end: int
    target: Target
    cost_s: float


@dataclass(frozen=True, slots=True, repr=False)
class Fetcher:
    """What a Spark task does; sent to the executors.

    It has no representation because its URL may hold a password, and Spark's warnings show it.
    """

    url: str | None
    probe: Probe = no_probe

    def __call__(self, ranges: Sequence[TableRange]) -> list[Outcome]:
        """Write the files of some ranges and sync them together."""
        found: list[Outcome] = []
        with HotLog(self.url) as broker:
            for first in range(0, len(ranges), TOGETHER):
                some = ranges[first : first + TOGETHER]
                for each, fetched in zip(some, _fetched(broker, some), strict=True):
                    down = found and isinstance(found[-1], ConnectionLost)
                    found.append(found[-1] if down else self._outcome(broker, each, fetched))
        return _synced(ranges, found)

    def _outcome(self, broker: HotLog, part: TableRange, fetched: ReplyOrError) -> Outcome:
        try:
            return self._write(broker, part, fetched)
        except NexoError as error:
            return error
        except OSError as error:
            return Unavailable(f"cannot write files of stream {part.stream!r}: {error}")
        except Exception as error:  # a bug that concerns one stream must not stop the others
            log.exception("stream %r cannot be taken", part.stream)
            return NexoError(f"stream {part.stream!r}: {type(error).__name__}: {error}")

    def _write(
        self, broker: HotLog, part: TableRange, fetched: ReplyOrError
    ) -> list[DataFileFacts]:
        """Write one range; a failure leaves no file."""
        label = file_label(part.partition, part.first, part.end)
        writer = FileWriter(part.target, label, sync=False)
        self.probe("before the file")
        try:
            found = broker.read(
                part.stream, part.partition, part.first, part.end, part.created_ms, fetched
            )
            writer.write(rows(batch, part.partition, part.first, part.end) for batch in found)
            files = writer.close()
        except BaseException:
            writer.discard()
            raise
        self.probe("after the file")
        return files


def _fetched(broker: HotLog, ranges: Sequence[TableRange]) -> list[ReplyOrError]:
    """The first records of each range, or all if they are few; requested together."""
    try:
        return broker.first_batches(
            [
                wire.Read(
                    each.stream, each.partition, each.first, _FIRST_BYTES,
                    created_ms=each.created_ms,
                )
                for each in ranges
            ]
        )  # fmt: skip
    except NexoError as error:
        return [error] * len(ranges)


def _synced(ranges: Sequence[TableRange], found: list[Outcome]) -> list[Outcome]:
    try:
        sync_local([f.path for files in found if isinstance(files, list) for f in files])
    except (OSError, NexoError) as error:
        for part, files in zip(ranges, found, strict=True):
            if isinstance(files, list):
                delete_files(file_io(part.target), [facts.path for facts in files])
        return [Unavailable(f"cannot sync the lake's files: {error}")] * len(ranges)
    return found


def take(
    spark: SparkSession, url: str | None, ranges: Sequence[TableRange], probe: Probe, task_s: float
) -> list[Outcome]:
    """Write ranges in tasks, small ones beside large ones; returns the outcome of each."""
    groups: dict[bool, list[int]] = {True: [], False: []}
    for number, each in enumerate(ranges):
        groups[each.cost_s <= SMALL_S].append(number)

    def written(small: bool) -> list[tuple[int, Outcome]]:
        numbers = groups[small]
        costs = [ranges[number].cost_s for number in numbers]
        tasks = [[numbers[n] for n in each] for each in packed(costs, slots(spark), task_s)]
        work = TaskGroup(Fetcher(url, probe), [[ranges[n] for n in each] for each in tasks])
        purpose = _purpose({ranges[number].stream for number in numbers})
        done = run_tasks(spark, work, purpose, small=small)
        return [pair for part in zip(tasks, done, strict=True) for pair in zip(*part, strict=True)]

    with ThreadPoolExecutor(1, "nexo-small") as beside:
        under_way = beside.submit(written, True)
        found = dict(written(False))
        return [outcome for _, outcome in sorted((found | dict(under_way.result())).items())]


def _purpose(streams: Collection[str]) -> str:
    """What a micro-batch is for, as Spark's UI shows it."""
    few = len(streams) <= _FEW
    return f"Nexo: {', '.join(sorted(streams)) if few else f'{len(streams):,} streams'} to the lake"


@dataclass(frozen=True, slots=True, repr=False)
class TaskGroup:
    """Work of several Spark tasks: ``run`` does the item of each."""

    run: Callable[[Any], Any]
    items: Sequence[Any]

    def __call__(self, number: int) -> bytes:
        return pickle.dumps(self.run(self.items[number]))

    def only(self, number: int) -> Callable[[], bytes]:
        """One item's work."""
        return partial(TaskGroup(self.run, self.items[number : number + 1]), 0)


def slots(spark: SparkSession) -> int:
    """How many tasks run at once; a Spark Connect server does not say."""
    with plain_errors():
        context = context_of(spark)
        return 4 if context is None else int(context.defaultParallelism)


def tasks(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of what runs now are done, and how many there are."""
    finished, total = _warm.tasks
    if (context := context_of(spark)) is not None:  # a Spark Connect server does not say
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        finished += sum(one.numCompletedTasks for one in known)
        total += sum(one.numTasks for one in known)
    return finished, total


def run_tasks(
    spark: SparkSession, work: TaskGroup, purpose: str = "Nexo", *, small: bool = False
) -> list[Any]:
    """Run each item of ``work`` as a Spark task; returns the result of each.

    ``purpose`` is for Spark's UI. ``small`` work is done without a Spark job where Spark is on this
    machine.
    """
    count = len(work.items)
    if not count:
        return []
    with plain_errors():
        context = context_of(spark)
        if small and is_local(context):
            found = _warm.run([work.only(number) for number in range(count)])
        elif context is not None:
            with described(context, purpose):
                found = context.parallelize(range(count), count).map(work).collect()
        else:
            found = _run_as_sql(spark, work, count)
    return [pickle.loads(each) for each in found]


def _run_as_sql(spark: SparkSession, work: Callable[[int], bytes], count: int) -> list[bytes]:
    """The same as a query, which costs more but is all that Spark Connect can run."""
    from pyspark.sql.functions import udf  # noqa: PLC0415 - pyspark takes a second to import

    # A plain function of a row needs no pandas.
    # One row per partition of the range: each is a Spark task of its own.
    column = udf(work, "binary", useArrow=False).asNondeterministic()
    frame = spark.range(0, count, 1, count).select("id", column("id").alias("result"))
    found = {row.id: bytes(row.result) for row in frame.collect()}
    return [found[number] for number in range(count)]
