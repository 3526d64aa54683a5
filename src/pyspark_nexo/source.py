"""The Spark data source ``nexo``: streams as tables, for batch and streaming queries."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_nexo import ranges
from pyspark_nexo.options import SourceOptions, parse
from pyspark_nexo.ranges import Range
from pyspark_nexo.sink import BatchSink, StreamSink

try:  # Spark 4.2 and later: the engine says how much a micro-batch may take
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1 takes everything there is
    ReadAllAvailable = ReadLimit = ReadMaxRows = None  # type: ignore[misc,assignment]
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# ruff: noqa: N802 - Spark names these methods

_TYPES = {
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": StringType(),
    "value_type": IntegerType(),
}


class DefaultSource(DataSource):
    """``spark.read.format("nexo")``; Spark finds it by the package's name."""

    @classmethod
    def name(cls) -> str:
        """What queries call it."""
        return "nexo"

    def schema(self) -> StructType:
        """The columns of a stream, or those asked for."""
        return StructType([StructField(name, _TYPES[name]) for name in self._parsed().columns])

    def _parsed(self) -> SourceOptions:
        return parse(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        return BatchReader(self._parsed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        return StreamReader(self._parsed())

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """For batch writes."""
        return BatchSink.open(self._parsed(), schema, overwrite, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """For streaming writes."""
        return StreamSink.open(self._parsed(), schema, overwrite, "")


@dataclass
class Task(InputPartition):
    """A range that one Spark task reads."""

    part: Range

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned.

    Filters are not taken from Spark: it keeps those of a DataFrame's first query for the later
    ones (seen with 4.3.0), which would then miss rows. Options narrow what is read instead.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[Task]:
        """Ranges between the starting and ending offsets."""
        options = self._options
        found = ranges.parts(options)
        starts = ranges.resolve(options, options.starting, found)
        ends = ranges.resolve(options, options.ending, found)
        return [Task(part) for part in ranges.cut(starts, ends, options.rows_per_task)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor; without any range, Spark reads None."""
        found = [partition.part] if isinstance(partition, Task) else []
        return chain.from_iterable(ranges.read(self._options, part) for part in found)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream as it grows. Offsets are ``{"<partition>": <offset>}``, in order."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._until: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins."""
        found = ranges.parts(self._options)
        return _text(ranges.resolve(self._options, self._options.starting, found))

    def getDefaultReadLimit(self) -> Any:
        """What ``maxOffsetsPerTrigger`` says."""
        rows = self._options.max_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """How far the next micro-batch goes; Spark 4.1 asks without arguments."""
        ends = self._until or self._ends()
        if start is None or limit is None:
            return _text(ends)
        starts = _numbers(start)
        ends = {key: max(end, starts.get(key, 0)) for key, end in ends.items()}
        return _text(ranges.limited(starts, ends, getattr(limit, "max_rows", None)))

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        self._until = self._ends()

    def _ends(self) -> dict[int, int]:
        return {key: part.stable for key, part in ranges.parts(self._options).items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Task]:
        """The ranges of a micro-batch."""
        found = ranges.cut(_numbers(start), _numbers(end), self._options.rows_per_task)
        return [Task(part) for part in found]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor; without any range, Spark reads None."""
        found = [partition.part] if isinstance(partition, Task) else []
        return chain.from_iterable(ranges.read(self._options, part) for part in found)


def _text(offsets: dict[int, int]) -> dict[str, int]:
    """Sorted, because Spark compares offsets as text."""
    return {str(key): offsets[key] for key in sorted(offsets)}


def _numbers(offsets: dict[str, int]) -> dict[int, int]:
    return {int(key): offset for key, offset in offsets.items()}
