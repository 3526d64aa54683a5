"""Spark sessions set up for Nexo."""

from __future__ import annotations

import os
import re
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
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
"""How our sessions differ from Spark's defaults, where nothing else is asked for."""
_OWN_JVM = {"spark.ui.enabled": "false"}
"""Further, if no one else has started the JVM."""
_DESCRIPTION = "spark.job.description"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""An environment variable: ``spark-submit`` has started a JVM, with its settings."""


@contextmanager
def borrowed(
    master: str | None = None, *, app: str = "nexo", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """The running session, or a new one that ends with the block."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    spark = session(master, app=app, conf=conf)
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


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Say in Spark's UI what the jobs of this thread are for."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        with suppress(ConnectionError):  # the JVM has ended: others say so
            context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


def is_local(context: SparkContext | None) -> bool:
    """Whether tasks run on this machine, in the driver's own JVM."""
    return context is not None and re.match(r"local(\[|$)", str(context.master)) is not None


def executors(spark: SparkSession) -> int | None:
    """How many executors there are on a cluster; None where tasks need none, or cannot be seen."""
    context = context_of(spark)
    if context is None or is_local(context):
        return None
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one


def session(
    master: str | None = None, *, app: str = "nexo", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one.

    It runs on ``master``; else where ``spark-submit`` says, on ``SPARK_MASTER``, where
    ``spark-defaults.conf`` says, or on this machine's cores. A master that begins with ``sc://``
    is a Spark Connect server. ``conf`` are Spark's settings; those of ``spark-submit`` and
    ``spark-defaults.conf`` count too.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    submitted = _SUBMITTED in os.environ
    if not (master or submitted):
        master = os.environ.get("SPARK_MASTER")
    if master and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    find_java()
    wanted = dict(conf or {})
    known = _jvm_settings(wanted)
    ours = CONF if submitted else CONF | _OWN_JVM
    missing = {name: value for name, value in ours.items() if name not in known}
    for name, value in (missing | wanted).items():
        builder = builder.config(name, value)
    if not master and "spark.master" not in known | wanted.keys():
        master = "local[*]"
    return (builder.master(master) if master else builder).getOrCreate()


@contextmanager
def attached(port: int, secret: str) -> Iterator[SparkSession]:
    """A session of its own in another process's Spark, whose JVM listens on ``port``."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ[_SUBMITTED], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    SparkContext._ensure_initialized()
    gateway, jvm = SparkContext._gateway, SparkContext._jvm
    assert jvm is not None
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    java = jvm.org.apache.spark.api.java.JavaSparkContext(running)
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    found = SparkSession(context).newSession()
    SparkSession._instantiatedSession = found
    try:
        yield found
    finally:
        with suppress(ConnectionError, Py4JError, Py4JNetworkError):
            SparkContext._active_spark_context = None  # it is not ours to stop


def _jvm_settings(wanted: Mapping[str, str]) -> set[str]:
    """Which settings a JVM has from ``spark-submit`` and files; it is started if there is none.

    It needs its own settings, such as its memory, when it starts.
    """
    from pyspark import SparkConf, SparkContext

    first = SparkConf(loadDefaults=False)
    first.setAll(list(wanted.items()))
    SparkContext._ensure_initialized(conf=first)
    return {name for name, _ in SparkConf().getAll()}
