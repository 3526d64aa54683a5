"""Lake tables in Spark: planned by PyIceberg, scanned by Spark's own Parquet reader.

Columns are found in the files by field id, so that renamed, widened and added columns read right
without rewriting a file.

Files of an object store are read by Spark if its settings name a file system for their scheme
(``spark.hadoop.fs.s3.impl``), which takes a jar. Otherwise tasks read them with Arrow, through
PyIceberg's own access, so that a lake's credentials are configured once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nexo.lake.files import target
from nexo.lake.paths import local_path
from nexo.lake.read import live_files
from nexo.lake.schema import file_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

# ruff: noqa: PLC0415 - pyspark takes a second to import

_PATTERN = re.compile(r"[\\*?{}\[\]]")


def lake_frame(spark: SparkSession, table: Table, snapshot_id: int | None = None) -> DataFrame:
    """A table as it is now, or as one of its snapshots has it."""
    from pyspark_nexo.types import spark_schema

    schema = spark_schema(file_schema(table.schema()))
    paths = [file.file_path for file in live_files(table, snapshot_id)]
    if not paths:
        return spark.createDataFrame([], schema)
    if not _can_read(spark, paths[0]):
        from pyspark_nexo.arrow_frames import arrow_frame

        return arrow_frame(spark, ".".join(table.name()), schema, target(table), paths)
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    return spark.read.schema(schema).parquet(
        *(_literal(local_path(path) or path) for path in paths)
    )


def _can_read(spark: SparkSession, path: str) -> bool:
    """Whether Spark itself can read files there."""
    scheme = path.partition(":")[0]
    return local_path(path) is not None or bool(
        spark.conf.get(f"spark.hadoop.fs.{scheme}.impl", "")
    )


def _literal(path: str) -> str:
    """A path that Spark does not take for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)
