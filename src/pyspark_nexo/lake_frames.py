"""Lake tables in Spark: planned by PyIceberg, scanned by Spark's own Parquet reader.

Columns are matched by field id, so that renamed, widened and added columns are read correctly
without rewriting a file.

Spark reads files of an object store if its settings name a file system for their scheme
(``spark.hadoop.fs.s3.impl``), which needs a jar. Otherwise tasks read them with Arrow, through
PyIceberg's own access, so that a lake's credentials are configured once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nexo.lake.files import Target, file_io, target
from nexo.lake.paths import local_path
from nexo.lake.read import row_groups
from nexo.lake.schema import file_schema
from nexo.lake.stored import live_files
from pyspark_nexo.types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PATTERN = re.compile(r"[\\*?{}\[\]]")


def lake_frame(spark: SparkSession, table: Table, snapshot_id: int | None = None) -> DataFrame:
    """A table as it is now, or at one of its snapshots."""
    schema = spark_schema(file_schema(table.schema()))
    paths = [file.file_path for file in live_files(table, snapshot_id)]
    if not paths:
        return spark.createDataFrame([], schema)
    if not _can_read(spark, paths[0]):
        return _arrow_frame(spark, ".".join(table.name()), schema, target(table), paths)
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
    """A path escaped so that Spark does not read it as a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def _arrow_frame(
    spark: SparkSession, table: str, schema: StructType, where: Target, paths: Sequence[str]
) -> DataFrame:
    """The rows of a table's data files, read by Arrow in Spark's tasks.

    A source is made for them that holds their paths and credentials: Spark shows options in plans.
    """

    class TableFiles(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"nexo files of {table}"

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> FilesReader:
            return FilesReader(where, paths)

    spark.dataSource.register(TableFiles)
    return spark.read.format(TableFiles.name()).load()


class FilesReader(DataSourceReader):
    """Reads each file in a task of its own."""

    def __init__(self, where: Target, paths: Sequence[str]) -> None:
        self._where = where
        self._paths = paths

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file."""
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        for rows in row_groups(file_io(self._where), partition.value, self._where.schema):
            yield from rows.to_batches()
