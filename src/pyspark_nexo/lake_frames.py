"""Lake tables in Spark: planned by PyIceberg, scanned by Spark's own Parquet reader.

Columns are found in the files by field id, so that renamed, widened and added columns read right
without rewriting a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nexo.lake.paths import local_path
from nexo.lake.read import live_files
from nexo.lake.schema import file_schema

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# ruff: noqa: PLC0415 - pyspark takes a second to import

_PATTERN = re.compile(r"[\\*?{}\[\]]")


def lake_frame(spark: SparkSession, table: Table, snapshot_id: int | None = None) -> DataFrame:
    """A table as it is now, or as one of its snapshots has it."""
    schema = spark_schema(table.schema())
    paths = [file.file_path for file in live_files(table, snapshot_id)]
    if not paths:
        return spark.createDataFrame([], schema)
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    return spark.read.schema(schema).parquet(
        *(_literal(local_path(path) or path) for path in paths)
    )


def _literal(path: str) -> str:
    """A path that Spark does not take for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def spark_schema(schema: Schema) -> StructType:
    """Iceberg columns as Spark ones, with their ids."""
    from pyspark.sql.types import StructType

    from pyspark_nexo.types import spark_field

    return StructType([spark_field(field) for field in file_schema(schema)])
