"""The Spark data source ``nexo``: streams as tables, for batch and streaming queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import DataType, StringType, StructField, StructType

from nexo.errors import Conflict, InvalidInput, InvalidOption, OffsetOutOfRange
from nexo.lake.own_columns import ROWS
from nexo.lake.typed import kinds
from pyspark_nexo import topics
from pyspark_nexo.options import SourceOptions, own_columns, parse
from pyspark_nexo.reading import files, ranges
from pyspark_nexo.reading.origins import open_origin
from pyspark_nexo.reading.pushdown import NumberRange, number_ranges
from pyspark_nexo.reading.ranges import ReadTask
from pyspark_nexo.sink import BatchSink, StreamSink
from pyspark_nexo.types import spark_type

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# ruff: noqa: N802 - Spark names these methods

_TYPES: dict[str, DataType] = {field.name: spark_type(field.type) for field in ROWS}
_CREATED = "created_ms"
"""In a streaming query's offsets: when their stream was created."""


class DefaultSource(DataSource):
    """``spark.read.format("nexo")``; Spark finds it by the package's name."""

    @classmethod
    def name(cls) -> str:
        return "nexo"

    def schema(self) -> StructType:
        """The columns of a stream, or those asked for, or those of Kafka's source."""
        if topics.is_asked_for(self.options):
            return topics.schema(self.options)
        options = self._parsed()
        types = _types(options)
        return StructType([StructField(name, types[name]) for name in options.columns])

    def _parsed(self, schema: StructType | None = None) -> SourceOptions:
        """The options; a schema that the user gave selects columns, as the option does."""
        options = parse(self.options)
        if schema is None:
            return options
        return replace(options, columns=_columns(schema, _types(options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        if topics.is_asked_for(self.options):
            return topics.reader(self.options, schema)
        options = self._parsed(schema)
        return NarrowReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        if topics.is_asked_for(self.options):
            return topics.stream_reader(self.options, schema)
        options = self._parsed(schema)
        if options.ending != "latest":
            raise InvalidOption(
                "endingOffsets is only for batch queries: end a stream with endingTimestamp, or "
                "with trigger(availableNow=True) at what is there now"
            )
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink | DataSourceArrowWriter:
        """For batch writes."""
        if self.options.get("mode"):
            from pyspark_nexo.tables.upserts import UpsertBatch, upsert_target  # noqa: PLC0415

            return UpsertBatch(upsert_target(self.options, schema, overwrite))
        return BatchSink.open(self._target(), schema, overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> StreamSink | DataSourceStreamArrowWriter:
        """For streaming writes."""
        if self.options.get("mode"):
            from pyspark_nexo.tables.upserts import UpsertQuery, upsert_target  # noqa: PLC0415

            return UpsertQuery(upsert_target(self.options, schema, overwrite))
        return StreamSink.open(self._target(), schema, overwrite)

    def _target(self) -> SourceOptions:
        options = parse(self.options, writing=True)
        if options.data_dir is not None:
            raise InvalidOption("dataDir is only for reading: give the broker's url to write")
        return options


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._within: Mapping[str, NumberRange] = {}

    def partitions(self) -> Sequence[ReadTask]:
        """Ranges between the starting and ending offsets."""
        options, origin = self._options, open_origin(self._options)
        return files.tasks(origin, ranges.plan(options, origin, self._within), options.lake)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor."""
        return ranges.read(self._options, partition)


class NarrowReader(BatchReader):
    """Reads only what a query's filters leave; correct for one query on each loaded DataFrame.

    Spark keeps the filters that it pushed last with the loaded DataFrame, and reads by them for
    every later query and every other place in the same query (4.1.4 and 4.3.0): hence opt-in.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note them; Spark applies them all again."""
        self._within = number_ranges(filters)
        return filters


class StreamReader(topics.GrowingReader):
    """Reads a stream as it grows.

    Offsets are ``{"<partition>": <offset>, "created_ms": …}``, in order. A stream that was deleted
    and created again is rejected, because the checkpoint's offsets are not of its records.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options.max_per_trigger)
        self._options = options
        self._until: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins."""
        options, origin = self._options, open_origin(self._options)
        info = origin.describe()
        starts = ranges.resolve(options, options.starting, ranges.parts(options, info))
        return _text(ranges.since(origin, starts, options.from_ms or 0), info.created_ms)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """How far the next micro-batch goes; Spark 4.1 asks without arguments."""
        created_ms, found = self._ends()
        ends = self._until or found
        if start is None or limit is None:
            return _text(ends, created_ms)
        starts = self._numbers(start, created_ms)
        self._check_not_lost(starts, ends)
        ends = {key: max(end, starts.get(key, 0)) for key, end in ends.items()}
        return _text(ranges.limited(starts, ends, getattr(limit, "max_rows", None)), created_ms)

    def reportLatestOffset(self) -> dict[str, int]:
        """What there is, for the query's progress: this minus ``endOffset`` is its lag."""
        created_ms, ends = self._ends()
        return _text(ends, created_ms)

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        _, self._until = self._ends()

    def _ends(self) -> tuple[int, dict[int, int]]:
        """When the stream was created, and where each partition ends now."""
        origin = open_origin(self._options)
        info = origin.describe()
        parts = ranges.parts(self._options, info)
        ends = {number: part.stable_offset for number, part in parts.items()}
        return info.created_ms, ranges.until(origin, ends, self._options.until_ms)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[ReadTask]:
        """The ranges of a micro-batch."""
        origin = open_origin(self._options)
        info = origin.describe()
        starts = self._numbers(start, info.created_ms)
        ends = self._numbers(end, info.created_ms)
        for number, part in ranges.parts(self._options, info).items():
            starts.setdefault(number, part.start_offset)  # it was added since
        found = ranges.cut(starts, ends, self._options.rows_per_task)
        return files.tasks(origin, found, self._options.lake)

    def _check_not_lost(self, starts: dict[int, int], ends: dict[int, int]) -> None:
        if self._options.until_ms is not None:  # which may be before the start
            return
        for partition, end in ends.items():
            if end < starts.get(partition, 0):
                raise OffsetOutOfRange(
                    f"stream {self._options.stream!r}, partition {partition} ends at {end}, before "
                    f"{starts[partition]}, up to where the query has read it: the broker lost "
                    "records, or an older backup was restored; start with a new checkpoint"
                )

    def _numbers(self, offsets: dict[str, int], created_ms: int) -> dict[int, int]:
        if offsets.get(_CREATED, created_ms) != created_ms:
            raise Conflict(
                f"stream {self._options.stream!r} was deleted and created again since the query's "
                "checkpoint: its offsets mean other records now; start with a new checkpoint"
            )
        return {int(key): offset for key, offset in offsets.items() if key != _CREATED}

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor."""
        return ranges.read(self._options, partition)


def _text(offsets: dict[int, int], created_ms: int) -> dict[str, int]:
    """Sorted, because Spark compares offsets as text."""
    return {str(key): offsets[key] for key in sorted(offsets)} | {_CREATED: created_ms}


def _types(options: SourceOptions) -> dict[str, DataType]:
    terms = options.typed
    if terms is None:
        return _TYPES
    typed = {
        terms.names[each.field_id]: spark_type(kinds.arrow_type(kinds.parse(each.kind)))
        for each in terms.columns
    }
    return _TYPES | typed | dict.fromkeys(own_columns(terms.permissive), StringType())


def _columns(schema: StructType, types: Mapping[str, DataType]) -> tuple[str, ...]:
    for field in schema:
        kind = types.get(field.name)
        if kind is None:
            raise InvalidInput(f"unknown column {field.name!r}; known are {', '.join(types)}")
        if field.dataType != kind:
            raise InvalidInput(
                f"column {field.name!r} is {kind.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    return tuple(schema.names)
