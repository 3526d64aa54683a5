"""Spark jobs that write into a stream or table, to be killed from outside or at a point.

``python sink_job.py URL MASTER SCENARIOS FOLDER``. With ``SINK_JOB_KILL``, all processes of the job
are killed when one of them reaches a point. Several scenarios, with commas between, run one after
the other in one application; the folder's file ``now`` says which one, and those that are done are
not repeated by another run. It writes into ``out``, of several each into its own, ``view_out``. It
says ``written`` at its end.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import structs
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care
from nexo.lake.settings import LakeSettings
from nexo.lake.user_tables import ensure_user_table
from pyspark_nexo import session
from pyspark_nexo.code.child import CodePlan, graph_of
from pyspark_nexo.code.child import refresh as made_anew
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.merging import Merging
from pyspark_nexo.source import DefaultSource
from pyspark_nexo.tables.catalog import SparkCatalog
from tests.spark.killed_pipeline import Killer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROUNDS = int(os.environ.get("SINK_JOB_ROUNDS", "4"))
ROWS = int(os.environ.get("SINK_JOB_ROWS", "20000"))
KEYS = 100
"""Of rows by key: the number of a row modulo this."""
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    "spark.task.maxFailures": "20",
    "spark.python.authenticate.socketTimeout": "300s",  # a busy machine forks slowly
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    "spark.executorEnv.SINK_JOB_LAKE": os.environ.get("SINK_JOB_LAKE", ""),
}


class KilledSource(DefaultSource):
    """``nexo``, with a probe in its sinks."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def _killing(self, sink: Any) -> Any:
        point, nth, counter, group = os.environ["SINK_JOB_KILL"].split("\n")
        probe = Killer(point, int(nth), Path(counter))
        probe.group = int(group)
        return replace(sink, probe=probe)

    def writer(self, *given: Any) -> Any:
        return self._killing(super().writer(*given))

    def streamWriter(self, *given: Any, **named: Any) -> Any:  # noqa: N802 - Spark's name
        return self._killing(super().streamWriter(*given, **named))


@dataclass(frozen=True)
class Job:
    """One scenario as it runs."""

    spark: SparkSession
    url: str
    folder: Path
    """Its own."""
    out: str
    """What it writes into."""

    @property
    def lake(self) -> Lake:
        return Lake(LakeSettings(Path(os.environ["SINK_JOB_LAKE"])))

    def growing(self, stream: str) -> DataFrame:
        """A stream, a part of it in each batch."""
        source = self.spark.readStream.format("nexo")
        source = source.option("maxOffsetsPerTrigger", str(ROWS // ROUNDS))
        return source.options(url=self.url, stream=stream).load()

    def shuffled(self) -> DataFrame:
        """Its rows in another order each time."""
        rows = self.growing("one").selectExpr("cast(value as string) value")
        return rows.repartition(4, f.rand())

    def joined(self) -> DataFrame:
        """What `examples/pipeline_windowed_join.py` does."""
        sides = [
            self.growing(stream)
            .selectExpr(f"cast(value as string) {stream}", f"timestamp at_{stream}")
            .withWatermark(f"at_{stream}", "10 minutes")
            for stream in ("one", "other")
        ]
        within = "one = other and at_other between at_one and at_one + interval 10 minutes"
        within += " or one = other and at_one between at_other and at_other + interval 10 minutes"
        found = sides[0].join(sides[1], f.expr(f"one = other and ({within})"))
        return found.selectExpr("one value")

    def writing(self, rows: DataFrame) -> DataStreamWriter:
        """A streaming query that ends when it has read what is there."""
        found = rows.writeStream.trigger(availableNow=True)
        return found.option("checkpointLocation", str(self.folder / "at"))

    def write(self, rows: DataFrame, kind: str, **options: str) -> None:
        """Run such a query."""
        finish(self.writing(rows).format(kind).options(**options).start)

    def catalog(self, *tables: str) -> SparkCatalog:
        """Spark's, with tables of one column."""
        found = SparkCatalog(self.spark, self.lake, self.url)
        found.open()
        for name in tables:
            ensure_user_table(self.lake, name, pa.schema([("value", pa.string())]))
            found.add(name)
        return found

    def plan(self, **files: str) -> CodePlan:
        """Users' code of these files."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        for name, text in files.items():
            (code / name.replace("_", ".")).write_text(text)
        return CodePlan(str(code), str(self.lake.settings.folder), url=self.url)

    def flows(self, plan: CodePlan) -> None:
        FlowsRunner(graph_of(self.spark, plan), print).once()


def finish(start: Callable[[], StreamingQuery]) -> None:
    """Run a query to its end; again if a worker of Spark's came too late, on a busy machine."""
    for attempts_left in range(5, -1, -1):
        try:
            start().awaitTermination()
            return
        except StreamingQueryException as error:
            if not attempts_left or "failed to connect back" not in str(error):
                raise


def run(url: str, master: str, scenarios: str, folder: str) -> None:
    spark = session(master, conf=CONF)
    alone, place = "," not in scenarios, Path(folder)
    for name in filter(None, scenarios.split(",")):
        own = place if alone else place / name
        own.mkdir(exist_ok=True)
        if not (done := own / "done").exists():
            (place / "now").write_text(name)
            out = "out" if alone else f"{name}_out"
            SCENARIOS[name](Job(spark, url, own, out))
            done.touch()
    sys.stdout.write("written\n")
    spark.stop()


# -- into a stream ---------------------------------------------------------------------


def _sink(job: Job) -> tuple[str, dict[str, str]]:
    killing = "SINK_JOB_KILL" in os.environ
    if killing:
        job.spark.dataSource.register(KilledSource)
    return "killed" if killing else "nexo", {"url": job.url, "stream": job.out}


def batch(job: Job) -> None:
    kind, into = _sink(job)
    rows = job.spark.range(0, ROWS, 1, 8).selectExpr("cast(id as string) value")
    shuffled = rows.repartition(8).sortWithinPartitions(f.rand())
    shuffled.write.format(kind).options(**into).mode("append").save()


def shuffle(job: Job) -> None:
    kind, into = _sink(job)
    job.write(job.shuffled(), kind, **into)


def join(job: Job) -> None:
    kind, into = _sink(job)
    job.write(job.joined(), kind, **into)


# -- into tables -----------------------------------------------------------------------


def append(job: Job) -> None:
    job.catalog(job.out)
    finish(lambda: job.writing(job.shuffled()).toTable(f"nexo.{job.out}"))


def view(job: Job) -> None:
    """Replaces all rows, again and again."""
    job.catalog(job.out)
    rows = job.spark.range(0, ROWS, 1, 8).selectExpr("cast(id as string) value").repartition(4)
    for _ in range(ROUNDS):
        rows.write.insertInto(f"nexo.{job.out}", overwrite=True)


def refresh(job: Job) -> None:
    """Makes a table anew, again and again, beside a flow that fills it in between."""
    query = "AS SELECT cast(value as string) value FROM STREAM one"
    plan = job.plan(out_sql=f"CREATE STREAMING TABLE {job.out} {query}")
    job.flows(plan)
    for _ in range(max(ROUNDS // 8, 2)):
        made_anew(job.spark, structs.replace(plan, full=(job.out,)), lambda _: None)
        job.flows(plan)


def upsert(job: Job) -> None:
    """The highest number of each key."""
    rows = job.shuffled().selectExpr(f"bigint(value) % {KEYS} id", "bigint(value) value")
    into = {"table": job.out, "key": "id", "sequence": "value", "buckets": "2"}
    job.write(rows, "nexo", mode="upsert", lake=str(job.lake.settings.folder), **into)


def versions(job: Job) -> None:
    """Every number of each key, from when until when."""
    code = f"""
from pyspark import pipelines as dp
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

@dp.temporary_view
def changes():
    rows = spark.readStream.format("nexo").option("maxOffsetsPerTrigger", "{ROWS // ROUNDS}")
    rows = rows.options(url={job.url!r}, stream="one").load()
    numbers = rows.selectExpr("bigint(cast(value as string)) value").repartition(4, f.rand())
    return numbers.selectExpr("value % {KEYS} id", "value")

dp.create_streaming_table("{job.out}", table_properties={{"nexo.buckets": "2"}})
dp.create_auto_cdc_flow(
    target="{job.out}", source="changes", keys=["id"], sequence_by="value", stored_as_scd_type=2,
    track_history_column_list=["value"],
)
"""
    job.flows(job.plan(out_py=code))


def maintenance(job: Job) -> None:
    """A table whose files are merged on the executors while it grows and is read as a stream."""
    copied = f"{job.out}_copied"
    job.catalog(job.out, copied)
    reader = replace(job, folder=job.folder / "reader")

    def copy() -> None:
        rows = job.spark.readStream.table(f"nexo.{job.out}")
        finish(lambda: reader.writing(rows).toTable(f"nexo.{copied}"))

    def grow() -> None:
        finish(lambda: job.writing(job.shuffled()).toTable(f"nexo.{job.out}"))

    with _merging(job), ThreadPoolExecutor(1) as beside:
        growing = beside.submit(grow)
        while not growing.done():
            copy()
        growing.result()
        copy()


@contextmanager
def _merging(job: Job) -> Iterator[None]:
    """Merge beside the block, and once after it."""
    ended = threading.Event()
    merging = Merging(job.spark, job.lake, print, care=Care(min_files=3))

    def merge() -> None:
        while not ended.is_set():
            merging.round()
            ended.wait(0.5)

    thread = threading.Thread(target=merge)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


SCENARIOS = {
    each.__name__: each
    for each in (batch, shuffle, join, append, view, refresh, upsert, versions, maintenance)
}

if __name__ == "__main__":
    run(*sys.argv[1:5])
