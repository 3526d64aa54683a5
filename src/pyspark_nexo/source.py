"""The Spark data source ``nexo``: streams as tables, for batch and streaming queries."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
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

from nexo.errors import InvalidInput, InvalidOption
from pyspark_nexo import ranges
from pyspark_nexo.options import SourceOptions, parse
from pyspark_nexo.origins import Origin, open_origin
from pyspark_nexo.pushdown import Span, spans
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

    def _parsed(self, schema: StructType | None = None) -> SourceOptions:
        """The options; a schema that the user gave chooses columns, as the option does."""
        options = parse(self.options)
        return options if schema is None else replace(options, columns=_columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        options = self._parsed(schema)
        return NarrowReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        return StreamReader(self._parsed(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """For batch writes."""
        return BatchSink.open(self._target(), schema, overwrite, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """For streaming writes."""
        return StreamSink.open(self._target(), schema, overwrite, "")

    def _target(self) -> SourceOptions:
        options = self._parsed()
        if options.data_dir is not None:
            raise InvalidOption("dataDir is only for reading: give the broker's url to write")
        return options


@dataclass
class Task(InputPartition):
    """A range that one Spark task reads."""

    part: Range
    origin: Origin

    def __init__(self, part: Range, origin: Origin) -> None:
        super().__init__(part)
        self.part = part
        self.origin = origin


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._spans: Mapping[str, Span] = {}

    def partitions(self) -> Sequence[Task]:
        """Ranges between the starting and ending offsets."""
        origin = open_origin(self._options)
        return [Task(part, origin) for part in ranges.plan(self._options, origin, self._spans)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor."""
        return _read(self._options, partition)


class NarrowReader(BatchReader):
    """Reads only what a query's filters leave; right for one query on each loaded DataFrame.

    Spark keeps the filters that it pushed last with the loaded DataFrame, and reads by them for
    every later query and every other place in the same query (4.1.4 and 4.3.0): hence opt-in.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note them; Spark is to apply them all again."""
        self._spans = spans(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream as it grows. Offsets are ``{"<partition>": <offset>}``, in order."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._until: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins."""
        options, origin = self._options, open_origin(self._options)
        found = ranges.parts(options, origin)
        return _text(ranges.begin(options, origin, found, Span(options.from_ms or 0)))

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
        return ranges.until(self._options, open_origin(self._options))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Task]:
        """The ranges of a micro-batch."""
        origin = open_origin(self._options)
        found = ranges.cut(_numbers(start), _numbers(end), self._options.rows_per_task)
        return [Task(part, origin) for part in found]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor."""
        return _read(self._options, partition)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[RecordBatch]:
    """A task's records; none for the partition that Spark makes up where there is no task."""
    if isinstance(partition, Task):
        yield from ranges.read(options, partition.origin, partition.part)


def _text(offsets: dict[int, int]) -> dict[str, int]:
    """Sorted, because Spark compares offsets as text."""
    return {str(key): offsets[key] for key in sorted(offsets)}


def _numbers(offsets: dict[str, int]) -> dict[int, int]:
    return {int(key): offset for key, offset in offsets.items()}


def _columns(schema: StructType) -> tuple[str, ...]:
    for field in schema:
        kind = _TYPES.get(field.name)
        if kind is None:
            raise InvalidInput(f"unknown column {field.name!r}; known are {', '.join(_TYPES)}")
        if field.dataType != kind:
            raise InvalidInput(
                f"column {field.name!r} is {kind.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    return tuple(schema.names)
