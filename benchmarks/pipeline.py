"""The pipeline and the Spark source: rows per CPU-second, and how soon a record is visible.

CPU is that of everything but the broker: this process, the JVM and its Python workers.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import nexo
from benchmarks import commits, many
from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.process_tree import cpu_s
from nexo.lake.catalog import Lake
from nexo.lake.derived import latest
from nexo.lake.own_columns import ROWS as ROW_SCHEMA
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import NEWEST, StreamId, offsets_of
from pyspark_nexo.continuous import Continuous
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 4_000_000
QUICK_ROWS = 1_000_000
"""A Spark job costs half a CPU-second however little it does: fewer rows would measure that."""
VALUE = b"x" * 100
CHUNK = 50_000


def rows() -> list[Row]:
    return [
        Row("stream to Iceberg, 100 B records", "rows per CPU-s",
            ours=Contender("nexo", _tier), limit=0.8e6, durability="fsync of every file"),
        Row("Spark source: offset, timestamp and value of 100 B records", "rows per CPU-s",
            ours=Contender("nexo", _source), limit=1.5e6),
        Row("Spark source: every column of 100 B records", "rows per CPU-s",
            ours=Contender("nexo", _whole_source), limit=1.5e6),
        Row("key compaction, 100,000 keys", "rows per CPU-s",
            ours=Contender("nexo", _compact), limit=1e6),
        Row("publish to visible in the table, 1 s trigger, p99", "s",
            ours=Contender("nexo", _visible), limit=3.0, lower_is_better=True),
        Row("CPU of the pipeline per stream and micro-batch, 500 streams with a record each", "ms",
            ours=Contender("nexo", lambda _: _of_many), limit=2.5, lower_is_better=True),
        Row("commit time with 750 commits, as multiple of that with 10 beside it", "x",
            ours=Contender("nexo", lambda _: commits.growth), limit=2.0, lower_is_better=True),
        Row("longest gap between commits of a busy stream, 1 s trigger, maintenance running", "s",
            ours=Contender("nexo", _gap), limit=3.0, lower_is_better=True),
        Row("replay from the lake, first record", "ms",
            ours=Contender("nexo", _replay), limit=500.0, lower_is_better=True),
    ]  # fmt: skip


def _rows(bench: Bench) -> int:
    return QUICK_ROWS if bench.quick else ROWS


@contextmanager
def _spark() -> Iterator[SparkSession]:
    spark = session("local[2]", conf={"spark.driver.memory": "2g"})
    yield spark
    spark.stop()


class _Ground:
    """A server, its lake, a client and Spark."""

    def __init__(self, bench: Bench) -> None:
        folder = Path(bench.enter(tempfile.TemporaryDirectory()))
        self.lake = Lake(LakeSettings(folder / "lake"))
        self.url = bench.nexo(lake_path=folder / "lake", hot_ms=0, hot_messages=0).url
        self.client = bench.enter(nexo.connect(self.url))
        self.spark = bench.enter(_spark())
        self.pipeline = Pipeline(self.spark, self.lake, self.url)

    def publish(self, name: str, count: int, keys: int = 0) -> None:
        stream = self.client.stream(name).create(partitions=2, tiering=True, cleanup="compact")
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            names = [f"k{n % keys}" for n in range(first, first + size)] if keys else None
            stream.publish_many([VALUE] * size, keys=names)


def _of_many() -> float:
    return many.measure(500).all_ms


def _per_cpu_second(work: Callable[[], int]) -> float:
    before = cpu_s()
    count = work()
    return count / (cpu_s() - before)


def _tier(bench: Bench) -> Measure:
    ground = _Ground(bench)

    def measure() -> float:
        ground.publish("log", _rows(bench))
        return _per_cpu_second(ground.pipeline.run_once)

    return measure


_SOME = "offset,timestamp,value"
_ALL = ",".join(ROW_SCHEMA.names)


def _source(bench: Bench) -> Measure:
    return _counted(bench, _SOME, _ALL)


def _whole_source(bench: Bench) -> Measure:
    return _counted(bench, _ALL, _SOME)


def _counted(bench: Bench, columns: str, others: str) -> Measure:
    """Counts values; warmed up with both kinds of query, whichever row comes first in the JVM."""
    ground = _Ground(bench)
    ground.publish("log", 2 * _rows(bench))

    def count(chosen: str) -> int:
        options = {"url": ground.url, "stream": "log", "columns": chosen}
        frame = ground.spark.read.format("nexo").options(**options).load()
        total: int = frame.selectExpr("count(value)").collect()[0][0]
        return total

    for chosen in (columns, others):
        count(chosen)
    return lambda: _per_cpu_second(lambda: count(columns))


def _compact(bench: Bench) -> Measure:
    ground = _Ground(bench)
    ground.publish("users", _rows(bench), keys=100_000)
    ground.pipeline.run_once()
    created_ms = ground.client.stream("users").info().created_ms
    total = sum(offsets_of(ground.lake.get("users").properties).values())

    def compact() -> int:
        found = ground.lake.find("users", NEWEST)
        if found is not None:
            ground.lake.catalog.drop_table(found.name())
        assert latest.plan(ground.lake, StreamId("users", created_ms))[1]
        ground.pipeline.compact(["users"])
        return total

    return lambda: _per_cpu_second(compact)


def _visible(bench: Bench) -> Measure:
    ground = _Ground(bench)
    stream = ground.client.stream("log").create(tiering=True)
    stream.publish(VALUE)
    bench.enter(_running(Continuous(ground.pipeline, 1.0)))

    def measure() -> float:
        return sorted(_delay_s(ground, stream.publish(VALUE).offset) for _ in range(10))[-1]

    return measure


@contextmanager
def _running(service: Continuous) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(stop, lambda _: None, print), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _gap(bench: Bench) -> Measure:
    """Four streams of two partitions, as many commits as maintenance has much to merge."""
    ground = _Ground(bench)
    streams = [
        ground.client.stream(f"busy{n}").create(partitions=2, tiering=True) for n in range(4)
    ]

    def publish() -> None:
        for stream in streams:
            stream.publish_many([VALUE] * 100)

    for _ in range(20 if bench.quick else 60):
        publish()
        ground.pipeline.run_once()
    bench.enter(_running(Continuous(ground.pipeline, 1.0, maintain_every_s=2.0)))

    def measure() -> float:
        seen = _Seen(ground.lake)
        end_s = time.monotonic() + (15 if bench.quick else 30)
        while time.monotonic() < end_s:
            publish()
            seen.look()
            time.sleep(0.05)
        return seen.longest_s

    return measure


class _Seen:
    """How long it was, at most, between two commits that moved a stream's offsets."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._offsets: dict[int, int] = {}
        self._moved_s: float | None = None
        self.longest_s = 0.0

    def look(self) -> None:
        offsets = offsets_of(self._lake.get("busy0").properties)
        if offsets != self._offsets:
            now_s = time.monotonic()
            if self._moved_s is not None:
                self.longest_s = max(self.longest_s, now_s - self._moved_s)
            self._offsets, self._moved_s = offsets, now_s


def _delay_s(ground: _Ground, offset: int) -> float:
    published_s = time.perf_counter()
    while True:
        table = ground.lake.find("log")
        if table is not None and offsets_of(table.properties).get(0, 0) > offset:
            return time.perf_counter() - published_s
        time.sleep(0.02)


def _replay(bench: Bench) -> Measure:
    ground = _Ground(bench)
    ground.publish("old", _rows(bench))
    ground.pipeline.run_once()
    stream = ground.client.stream("old")
    stream.update(cleanup="delete", retention={"max_bytes": 1})
    stream.apply_retention()
    ends = [part.tiered_offset for part in stream.info().partitions]
    turn = iter(range(10**9))

    def measure() -> float:
        offset = next(turn) * 7919 % ends[0]
        started_s = time.perf_counter()
        assert stream.read(0, offset, max_bytes=1)
        return (time.perf_counter() - started_s) * 1000

    return measure
