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
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nexo.lake.files import Target, file_io, target
from nexo.lake.paths import local_path
from nexo.lake.reading.ordered import SourceFile, row_groups
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.schema import file_schema
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
    ranges = file_ranges(table, snapshot_id)
    if not ranges:
        return spark.createDataFrame([], schema)
    # Spark itself reads what Nexo has written, and nobody has deleted rows of.
    plain = [each.path for each in ranges if each.is_ordered and not each.deletes]
    if not plain or not _can_read(spark, plain[0]):
        plain = []
    read = set(plain)
    others = [each.source for each in ranges if each.path not in read]
    frames = []
    if plain:
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
        found = (_literal(local_path(path) or path) for path in plain)
        frames.append(spark.read.schema(schema).parquet(*found))
    if others:
        name = ".".join(table.name())
        frames.append(_arrow_frame(spark, name, schema, target(table), others))
    return reduce(lambda one, other: one.unionAll(other), frames)


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
    spark: SparkSession, table: str, schema: StructType, where: Target, files: Sequence[SourceFile]
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
            return FilesReader(where, files)

    spark.dataSource.register(TableFiles)
    return spark.read.format(TableFiles.name()).load()


class FilesReader(DataSourceReader):
    """Reads each file in a task of its own."""

    def __init__(self, where: Target, files: Sequence[SourceFile]) -> None:
        self._where = where
        self._files = files

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file."""
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        file: SourceFile = partition.value
        io = file_io(self._where)
        for rows in row_groups(io, file.path, self._where.schema, file.deletes):
            yield from rows.to_batches()
