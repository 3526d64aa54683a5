"""Several streams in one query, with the options and columns of Spark's Kafka source (SPEC I12).

``subscribe``, ``subscribePattern`` or ``assign`` choose the streams. Offsets are
``{"<topic>": {"<partition>": <offset>}}``, where -2 is the earliest and -1 the latest. Columns are
Kafka's: ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``
and, with ``includeHeaders``, ``headers`` as a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType

from nexo.errors import Conflict, InvalidOption, NotFound, OffsetOutOfRange
from nexo.hot_log import HotLog
from nexo.lake.own_columns import ROWS
from nexo.protocol.stream import PartitionInfo
from pyspark_nexo.options import KAFKA_CHOICES, kafka_options
from pyspark_nexo.reading import files
from pyspark_nexo.reading.origins import BrokerOrigin
from pyspark_nexo.reading.ranges import ReadRange, ReadTask, limited, share
from pyspark_nexo.types import spark_type

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from pyspark_nexo.options import KafkaOptions

try:  # Spark 4.2 and later: the engine says how much a micro-batch may take
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1 takes everything there is
    ReadAllAvailable = ReadMaxRows = None  # type: ignore[misc,assignment]
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]

# ruff: noqa: N802 - Spark names these methods

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""
SparkOffsets: TypeAlias = dict[str, dict[str, int]]
"""As Spark stores them: by topic and partition, with the time at which the topic was created."""
_CREATED = "created_ms"
_EARLIEST, _LATEST = -2, -1
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ONLY_HERE = {"topic": pa.string(), "timestampType": pa.int32(), "headers": _HEADERS}
_COLUMNS = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
)  # fmt: skip
_TYPES = {
    name: spark_type(_ONLY_HERE[name] if name in _ONLY_HERE else ROWS.field(name).type)
    for name in _COLUMNS
}


def is_asked_for(options: Mapping[str, str]) -> bool:
    """Whether a query's options choose streams as Kafka's source does."""
    return any(key.lower() in KAFKA_CHOICES for key in options)


def schema(given: Mapping[str, str]) -> StructType:
    """Kafka's columns."""
    options = kafka_options(given, streaming=False)
    names = [name for name in _TYPES if name != "headers" or options.headers]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def reader(given: Mapping[str, str], wanted: StructType) -> DataSourceReader:
    """For batch queries."""
    return TopicReader(_chosen(kafka_options(given, streaming=False), wanted))


def stream_reader(given: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
    """For streaming queries."""
    return TopicStreamReader(_chosen(kafka_options(given, streaming=True), wanted))


def _chosen(options: KafkaOptions, wanted: StructType) -> KafkaOptions:
    for field in wanted:
        if _TYPES.get(field.name) != field.dataType:
            raise InvalidOption(
                f"column {field.name!r} {field.dataType.simpleString()} is not one of Kafka's: "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in _TYPES.items())
            )
    return replace(options, columns=tuple(wanted.names))


# -- what there is ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The partitions of the streams that a query reads, as they are now."""

    parts: dict[Place, PartitionInfo]
    created: dict[str, int]

    def ends(self) -> dict[Place, int]:
        """One past the last offset that readers may read."""
        return {place: part.stable_offset for place, part in self.parts.items()}

    def text(self, offsets: Mapping[Place, int]) -> SparkOffsets:
        """Offsets as Spark stores them: sorted, because it compares them as text."""
        found: SparkOffsets = {}
        for topic, partition in sorted(offsets):
            found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
        for topic, by_partition in found.items():
            by_partition[_CREATED] = self.created.get(topic, 0)
        return found


def look(options: KafkaOptions) -> Found:
    """Ask the broker for every stream that the query reads."""
    found = Found({}, {})
    with HotLog(options.url) as broker:
        for topic in _topics(options, broker):
            try:
                info = broker.describe(topic)
            except NotFound:
                if options.fail_on_loss and options.pattern is None:
                    raise
                continue  # deleted since it was listed
            found.created[topic] = info.created_ms
            for partition, part in enumerate(info.partitions):
                if options.assigned is None or partition in options.assigned[topic]:
                    found.parts[topic, partition] = part
    return found


def _topics(options: KafkaOptions, broker: HotLog) -> list[str]:
    if options.pattern is not None:
        return [name for name in broker.names() if re.fullmatch(options.pattern, name)]
    return list(options.topics)


def _resolved(options: KafkaOptions, at: str | SparkOffsets, found: Found) -> dict[Place, int]:
    """A position as offsets; partitions that it does not name begin at the earliest."""
    resolved = {}
    for (topic, partition), part in found.parts.items():
        given = _LATEST if at == "latest" else _EARLIEST
        if isinstance(at, dict):
            given = at.get(topic, {}).get(str(partition), _EARLIEST)
        offset = {_EARLIEST: part.start_offset, _LATEST: part.stable_offset}.get(given, given)
        resolved[topic, partition] = _held(options, (topic, partition), offset, part)
    return resolved


def _held(options: KafkaOptions, place: Place, offset: int, part: PartitionInfo) -> int:
    """An offset that exists; with ``failOnDataLoss`` off, the nearest one that does."""
    if part.start_offset <= offset <= part.stable_offset:
        return offset
    if options.fail_on_loss:
        raise OffsetOutOfRange(
            f"stream {place[0]!r}, partition {place[1]}: offset {offset} is outside "
            f"{part.start_offset}..{part.stable_offset}; set failOnDataLoss to false to continue "
            "with what is there"
        )
    return min(max(offset, part.start_offset), part.stable_offset)


# -- reading ---------------------------------------------------------------------------


def _tasks(
    options: KafkaOptions, starts: Mapping[Place, int], ends: Mapping[Place, int]
) -> list[ReadTask]:
    wanted = {place: end for place, end in ends.items() if end > starts[place]}
    total = sum(end - starts[place] for place, end in wanted.items())
    most = share(total, options.min_partitions, options.rows_per_task)
    parts: dict[str, list[ReadRange]] = {}
    for (topic, partition), end in sorted(wanted.items()):
        for first in range(starts[topic, partition], end, most):
            cut = ReadRange(partition, first, min(first + most, end))
            parts.setdefault(topic, []).append(cut)
    return [
        task
        for topic, ranges in parts.items()
        for task in files.tasks(BrokerOrigin(options.url, topic), ranges)
    ]


def _read(options: KafkaOptions, task: InputPartition) -> Iterator[RecordBatch]:
    if isinstance(task, ReadTask):
        for table in task.tables(options.columns):
            yield from _as_kafka(table, task.origin.stream, options.columns).to_batches()


def _as_kafka(table: pa.Table, topic: str, columns: Sequence[str]) -> pa.Table:
    count = table.num_rows
    made = {
        "topic": lambda: pa.repeat(pa.scalar(topic), count),
        "timestampType": lambda: pa.repeat(pa.scalar(0, pa.int32()), count),
        "headers": lambda: pa.array(map(_listed, table.column("headers").to_pylist()), _HEADERS),
    }
    found = [made[name]() if name in made else table.column(name) for name in columns]
    return pa.table(found, names=list(columns)).combine_chunks()


def _listed(text: str | None) -> list[dict[str, Any]] | None:
    """Headers as Kafka has them: names and bytes."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return [{"key": name, "value": _bytes(value)} for name, value in found.items()]


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


class TopicReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[ReadTask]:
        """Ranges between the starting and ending offsets."""
        options, found = self._options, look(self._options)
        starts = _resolved(options, options.starting, found)
        ends = found.ends() if options.ending == "latest" else _resolved(
            options, options.ending, found
        )  # fmt: skip
        return _tasks(options, starts, ends)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor."""
        return _read(self._options, partition)


class GrowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads at most ``maxOffsetsPerTrigger`` records at a time."""

    def __init__(self, max_per_trigger: int | None) -> None:
        self._max_per_trigger = max_per_trigger

    def getDefaultReadLimit(self) -> Any:
        """What ``maxOffsetsPerTrigger`` says."""
        rows = self._max_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)


class TopicStreamReader(GrowingReader):
    """Reads streams as they grow; new streams are read from their earliest offset."""

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__(options.max_per_trigger)
        self._options = options
        self._until: Found | None = None

    def initialOffset(self) -> SparkOffsets:
        """Where a new query begins."""
        found = look(self._options)
        return found.text(_resolved(self._options, self._options.starting, found))

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        self._until = look(self._options)

    def latestOffset(self, start: Any = None, limit: Any = None) -> SparkOffsets:
        """How far the next micro-batch goes; Spark 4.1 asks without arguments."""
        found = self._until or look(self._options)
        ends = found.ends()
        if start is None or limit is None:
            return found.text(ends)
        starts = self._starts(start, found)
        ends = {place: max(end, starts[place]) for place, end in ends.items()}
        return found.text(limited(starts, ends, getattr(limit, "max_rows", None)))

    def reportLatestOffset(self) -> SparkOffsets:
        """What there is, for the query's progress: this minus ``endOffset`` is its lag."""
        found = look(self._options)
        return found.text(found.ends())

    def partitions(self, start: SparkOffsets, end: SparkOffsets) -> Sequence[ReadTask]:
        """The ranges of a micro-batch."""
        found = look(self._options)
        starts = self._starts(start, found)
        ends = {
            (topic, int(key)): min(offset, found.parts[topic, int(key)].stable_offset)
            for topic, offsets in end.items()
            for key, offset in offsets.items()
            if key != _CREATED and (topic, int(key)) in found.parts
        }
        return _tasks(self._options, starts, ends)

    def _starts(self, start: SparkOffsets, found: Found) -> dict[Place, int]:
        """Where each partition continues; the offset must exist unless losses are allowed."""
        self._check_topics(start, found)
        starts = {}
        for place, part in found.parts.items():
            topic, partition = place
            known = start.get(topic, {})
            same = known.get(_CREATED, found.created[topic]) == found.created[topic]
            offset = known.get(str(partition), part.start_offset) if same else part.start_offset
            starts[place] = _held(self._options, place, offset, part)
        return starts

    def _check_topics(self, start: SparkOffsets, found: Found) -> None:
        if not self._options.fail_on_loss:
            return
        for topic, offsets in start.items():
            if topic not in found.created:
                raise NotFound(
                    f"stream {topic!r} was deleted while the query read it: set failOnDataLoss to "
                    "false to continue without it"
                )
            if offsets.get(_CREATED, found.created[topic]) != found.created[topic]:
                raise Conflict(
                    f"stream {topic!r} was deleted and created again since the query's checkpoint: "
                    "set failOnDataLoss to false to read the new one from its start"
                )

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Runs on an executor."""
        return _read(self._options, partition)


def lag(progress: Mapping[str, Any]) -> int:
    """Records that a query has not read yet, according to its ``lastProgress``."""
    behind = 0
    for source in progress["sources"]:
        read, there = (_numbers(source.get(name)) for name in ("endOffset", "latestOffset"))
        behind += sum(max(end - read.get(place, 0), 0) for place, end in there.items())
    return behind


def _numbers(offsets: Any) -> dict[Place, int]:
    found = json.loads(offsets) if isinstance(offsets, str) else offsets or {}
    nested = {
        topic: inner if isinstance(inner, dict) else {topic: inner}
        for topic, inner in found.items()
        if topic != _CREATED
    }
    return {
        (topic, int(key)): offset
        for topic, inner in nested.items()
        for key, offset in inner.items()
        if key != _CREATED
    }
