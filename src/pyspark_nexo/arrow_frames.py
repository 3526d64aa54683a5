"""Data files in Spark, read by Arrow in its tasks: for stores that Spark has no access to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nexo.lake.files import Target, file_io
from nexo.lake.read import row_groups

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def arrow_frame(
    spark: SparkSession, table: str, schema: StructType, where: Target, paths: Sequence[str]
) -> DataFrame:
    """The rows of a table's data files.

    The files and the access to them are part of a source made for them: options would be shown in
    plans, and hold credentials.
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
