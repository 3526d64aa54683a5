"""The Spark data source ``nexo``: streams as tables, for batch and streaming queries."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
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
    """Reads what is there when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._low, self._high = 0, 2**63 - 1

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Leave out partitions and offsets that a filter excludes; Spark checks the rest."""
        for filter_ in filters:
            self._narrow(filter_)
            yield filter_

    def _narrow(self, filter_: Filter) -> None:
        match filter_:
            case EqualTo(attribute=("partition",), value=int(number)):
                known = self._options.partitions
                kept = (number,) if known is None or number in known else ()
                self._options = replace(self._options, partitions=kept)
            case EqualTo(attribute=("offset",), value=int(number)):
                self._low, self._high = max(self._low, number), min(self._high, number + 1)
            case GreaterThan(attribute=("offset",), value=int(number)):
                self._low = max(self._low, number + 1)
            case GreaterThanOrEqual(attribute=("offset",), value=int(number)):
                self._low = max(self._low, number)
            case LessThan(attribute=("offset",), value=int(number)):
                self._high = min(self._high, number)
            case LessThanOrEqual(attribute=("offset",), value=int(number)):
                self._high = min(self._high, number + 1)

    def partitions(self) -> Sequence[Task]:
        """Ranges between the starting and ending offsets."""
        options = self._options
        found = ranges.parts(options)
        starts = ranges.resolve(options, options.starting, found)
        ends = ranges.resolve(options, options.ending, found)
        starts = {key: max(offset, self._low) for key, offset in starts.items()}
        ends = {key: min(offset, self._high) for key, offset in ends.items()}
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
