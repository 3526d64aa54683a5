"""Spark sessions set up for Nexo."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark_nexo.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# ruff: noqa: PLC0415 - pyspark takes a second to import

CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
"""How our sessions differ from Spark's defaults; ``conf`` overrides it."""


@contextmanager
def borrowed(master: str | None = None, *, app: str = "nexo") -> Iterator[SparkSession]:
    """The running session, or a new one that ends with the block."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    spark = session(master, app=app)
    try:
        yield spark
    finally:
        with suppress(ConnectionError, Py4JError):  # its JVM may have ended already
            spark.stop()


def context_of(spark: SparkSession) -> SparkContext | None:
    """What runs jobs without SQL; None for a Spark Connect server."""
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException:
        return None


def tasks(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many there are."""
    context = context_of(spark)
    if context is None:  # a Spark Connect server does not say
        return 0, 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)


def session(
    master: str | None = None, *, app: str = "nexo", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one: on ``master``, ``SPARK_MASTER`` or this machine's cores.

    A master that begins with ``sc://`` is a Spark Connect server.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    find_java()
    for key, value in (CONF | dict(conf or {})).items():
        builder = builder.config(key, value)
    return builder.master(master).getOrCreate()
