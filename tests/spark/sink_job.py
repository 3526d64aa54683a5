"""Spark jobs that write into a stream or table ``out``, to be killed from outside or at a point.

``python sink_job.py URL MASTER SCENARIO FOLDER``. With ``SINK_JOB_KILL``, all processes of the job
are killed when one of them reaches a point. It says ``written`` at its end.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import structs
from pyspark.sql import functions as f

from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.lake.user_tables import ensure_user_table
from pyspark_nexo import session
from pyspark_nexo.code.child import CodePlan, graph_of
from pyspark_nexo.code.child import refresh as made_anew
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.source import DefaultSource
from pyspark_nexo.tables.catalog import SparkCatalog
from tests.spark.killed_pipeline import Killer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = int(os.environ.get("SINK_JOB_ROUNDS", "4"))
ROWS = int(os.environ.get("SINK_JOB_ROWS", "20000"))
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    "spark.task.maxFailures": "20",
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
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


def growing(spark: SparkSession, url: str, stream: str) -> DataFrame:
    source = spark.readStream.format("nexo").option("maxOffsetsPerTrigger", str(ROWS // ROUNDS))
    return source.options(url=url, stream=stream).load()


def joined(spark: SparkSession, url: str) -> DataFrame:
    """What `examples/pipeline_windowed_join.py` does."""
    sides = [
        growing(spark, url, stream)
        .selectExpr(f"cast(value as string) {stream}", f"timestamp at_{stream}")
        .withWatermark(f"at_{stream}", "10 minutes")
        for stream in ("one", "other")
    ]
    within = "one = other and at_other between at_one and at_one + interval 10 minutes"
    within += " or one = other and at_one between at_other and at_other + interval 10 minutes"
    return sides[0].join(sides[1], f.expr(f"one = other and ({within})")).selectExpr("one value")


def run(url: str, master: str, scenario: str, folder: str) -> None:
    spark = session(master, conf=CONF)
    SCENARIOS[scenario](spark, url, Path(folder))
    sys.stdout.write("written\n")
    spark.stop()


# -- into a stream ---------------------------------------------------------------------


def _sink(spark: SparkSession, url: str) -> tuple[str, dict[str, str]]:
    killing = "SINK_JOB_KILL" in os.environ
    if killing:
        spark.dataSource.register(KilledSource)
    return "killed" if killing else "nexo", {"url": url, "stream": "out"}


def batch(spark: SparkSession, url: str, folder: Path) -> None:
    kind, into = _sink(spark, url)
    rows = spark.range(0, ROWS, 1, 8).selectExpr("cast(id as string) value")
    shuffled = rows.repartition(8).sortWithinPartitions(f.rand())
    shuffled.write.format(kind).options(**into).mode("append").save()


def shuffle(spark: SparkSession, url: str, folder: Path) -> None:
    _publish(spark, url, folder, shuffled(spark, url))


def join(spark: SparkSession, url: str, folder: Path) -> None:
    _publish(spark, url, folder, joined(spark, url))


def shuffled(spark: SparkSession, url: str) -> DataFrame:
    rows = growing(spark, url, "one").selectExpr("cast(value as string) value")
    return rows.repartition(4, f.rand())


def _publish(spark: SparkSession, url: str, folder: Path, rows: DataFrame) -> None:
    kind, into = _sink(spark, url)
    writing = rows.writeStream.format(kind).options(**into).trigger(availableNow=True)
    writing.option("checkpointLocation", str(folder / "at")).start().awaitTermination()


# -- into tables -----------------------------------------------------------------------


def append(spark: SparkSession, url: str, folder: Path) -> None:
    catalog = _catalog(spark, url)
    ensure_user_table(catalog.lake, "out", pa.schema([("value", pa.string())]))
    catalog.add("out")
    writing = shuffled(spark, url).writeStream.trigger(availableNow=True)
    writing.option("checkpointLocation", str(folder / "at")).toTable("nexo.out").awaitTermination()


def view(spark: SparkSession, url: str, folder: Path) -> None:
    """Replaces all rows, again and again."""
    catalog = _catalog(spark, url)
    ensure_user_table(catalog.lake, "out", pa.schema([("value", pa.string())]))
    catalog.add("out")
    rows = spark.range(0, ROWS, 1, 8).selectExpr("cast(id as string) value").repartition(4)
    for _ in range(ROUNDS):
        rows.write.insertInto("nexo.out", overwrite=True)


def refresh(spark: SparkSession, url: str, folder: Path) -> None:
    """Makes a table anew, again and again, beside a flow that fills it in between."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    text = "CREATE STREAMING TABLE out AS SELECT cast(value as string) value FROM STREAM one"
    (code / "out.sql").write_text(text)
    lake = _lake()
    plan = CodePlan(str(code), str(lake.settings.folder), url=url)
    FlowsRunner(graph_of(spark, plan), print).once()
    for _ in range(ROUNDS):
        made_anew(spark, structs.replace(plan, full=("out",)), lambda _: None)
        FlowsRunner(graph_of(spark, plan), print).once()


def _lake() -> Lake:
    return Lake(LakeSettings(Path(os.environ["SINK_JOB_LAKE"])))


def _catalog(spark: SparkSession, url: str) -> SparkCatalog:
    found = SparkCatalog(spark, _lake(), url)
    found.open()
    return found


SCENARIOS = {each.__name__: each for each in (batch, shuffle, join, append, view, refresh)}

if __name__ == "__main__":
    run(*sys.argv[1:5])
