"""``python tools/spark_archive.py FILE``: Spark's classes, loaded and checked, for JVMs to map.

A JVM that starts Spark loads and verifies 15,000 classes, which takes most of its time when it
lives for seconds, as in tests. With this file (the JVM's class data sharing) it takes half.
`OPTIONS` are what a JVM needs to use it; with other ones it is ignored.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""A JVM that lives for seconds gains nothing from its best compiler."""


def use(archive: Path) -> str:
    """Options of a JVM that maps the archive, if there is one."""
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive.exists() else OPTIONS


def make(archive: Path) -> None:
    """Have Spark load what tests use, and write it down when its JVM ends."""
    if archive.exists():
        return
    from pyspark_nexo.sessions import session  # noqa: PLC0415 - it is an extra

    made = archive.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"
    spark = session("local[2]", app="archive")
    gateway: Any = spark.sparkContext._gateway
    process = gateway.proc
    with tempfile.TemporaryDirectory() as folder:
        numbers = spark.range(100).selectExpr("id", "cast(id as string) as text", "id % 7 as key")
        numbers.write.parquet(f"{folder}/n")
        spark.read.parquet(f"{folder}/n").createOrReplaceTempView("numbers")
        spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
        spark.sql("select key, count(*), max(text) from numbers group by key order by 1").collect()
    spark.stop()
    process.stdin.close()  # which ends the JVM
    process.wait()
    made.replace(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
