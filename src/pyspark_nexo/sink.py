"""Writing into streams from Spark, each record at least once.

Every attempt at a task is an idempotent producer of its own. Another attempt may bring its rows in
another order, for example after a shuffle, so nothing that one attempt stored says what another one
may leave out.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    DataType,
    StringType,
    StructType,
)

from nexo.batch import BatchProducer, encode
from nexo.batch.murmur import partition_of
from nexo.errors import InvalidInput, InvalidOption, PartitionsChanged
from nexo.hot_log import HotLog
from nexo.lake.own_columns import OWN_COLUMNS
from nexo.protocol.values import ValueType
from pyspark_nexo.options import SourceOptions
from pyspark_nexo.types import spark_type

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_Row: TypeAlias = tuple[bytes | None, bytes | None, bytes, int | None]
"""Value, key, headers, and the value's type."""
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    **{
        each.name: tuple(type(spark_type(kind)) for kind in each.written)
        for each in OWN_COLUMNS
        if each.written
    },
}
BATCH_BYTES = 1024**2
_ROW_BYTES = 16
"""What a record takes beside its value, key and headers."""
_headers_fit = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_json_fits = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass
class TaskWritten(WriterCommitMessage):
    """How much a task wrote."""

    records: int


@dataclass
class Sink:
    """Writes rows with a ``value`` and perhaps ``key``, ``headers``, ``partition`` and ``topic``.

    Without a ``stream``, each row's ``topic`` names its stream, as in Kafka's sink.
    """

    stream: str
    url: str | None
    partitions: int
    value_type: int

    @classmethod
    def open(cls, options: SourceOptions, schema: StructType, overwrite: bool) -> Self:
        """Check what is to be written, before any task runs."""
        if overwrite:
            raise InvalidOption("streams cannot be overwritten: write with mode('append')")
        _check_columns(schema)
        if not options.stream and "topic" not in schema.names:
            raise InvalidOption("say which stream: .option('stream', name), or a column 'topic'")
        count = 0
        if options.stream:
            with HotLog(options.url) as broker:
                count = len(broker.describe(options.stream).partitions)
        text = isinstance(schema["value"].dataType, StringType)
        kind = ValueType.TEXT if text else ValueType.RAW
        return cls(options.stream, options.url, count, kind)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskWritten:
        """Runs on an executor."""
        outbox = _Outbox(self)
        with HotLog(self.url) as broker:
            for batch in iterator:
                outbox.add(batch.to_pydict(), broker)
            return TaskWritten(outbox.flush(broker))


class BatchSink(Sink, DataSourceArrowWriter):
    """``df.write.format("nexo")``."""


class StreamSink(Sink, DataSourceStreamArrowWriter):
    """``df.writeStream.format("nexo")``."""


def _check_columns(schema: StructType) -> None:
    if "value" not in schema.names:
        raise InvalidInput("rows to be published need a column 'value', as text or binary")
    for field in schema:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise InvalidInput(
                f"column {field.name!r} has no place in a record: select "
                f"{', '.join(_COLUMNS)}, or put it into the value with to_json(struct(…))"
            )
        if not isinstance(field.dataType, kinds):
            raise InvalidInput(
                f"column {field.name!r} is {field.dataType.simpleString()}: it must be "
                f"{' or '.join(kind().simpleString() for kind in kinds)}"
            )


class _Outbox:
    """Rows of one attempt that are not sent yet, by stream and partition."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._producers: dict[str, int] = defaultdict(lambda: secrets.randbits(63))
        self._counts = {sink.stream: sink.partitions} if sink.stream else {}
        self._waiting: dict[tuple[str, int], list[tuple[_Row, int | None]]] = defaultdict(list)
        self._bytes: dict[tuple[str, int], int] = defaultdict(int)
        self._sequences: dict[tuple[str, int], int] = defaultdict(int)
        self._now_ms = int(time.time() * 1000)
        self._count = 0

    def add(self, columns: dict[str, list[Any]], broker: HotLog) -> None:
        values = columns["value"]
        absent = [None] * len(values)
        rows = zip(
            values,
            columns.get("key", absent),
            columns.get("headers", absent),
            columns.get("partition", absent),
            columns.get("value_type", absent),
            absent if self._sink.stream else columns["topic"],
            strict=True,
        )
        for value, key, headers, partition, kind, topic in rows:
            content, raw_key = _raw(value), _raw(key)
            texts = _checked_headers(_object(headers))
            if kind is not None:
                _check_value(content, kind)
            stream = self._stream(topic)
            row = content, raw_key, texts, kind
            where = self._wait(stream, partition, row, broker)
            self._count += 1
            if self._bytes[where] >= BATCH_BYTES:
                self._send(where, broker)

    def _wait(
        self, stream: str, partition: int | None, row: _Row, broker: HotLog
    ) -> tuple[str, int]:
        """Put a row behind those of its partition; returns where that is."""
        where = stream, self._place(stream, row[1], partition, broker)
        self._waiting[where].append((row, partition))
        self._bytes[where] += len(row[0] or b"") + len(row[1] or b"") + len(row[2]) + _ROW_BYTES
        return where

    def _stream(self, topic: str | None) -> str:
        name = self._sink.stream or topic
        if not name:
            raise InvalidInput("a row's topic is null: it must name a stream")
        return name

    def _place(self, stream: str, key: bytes | None, partition: int | None, broker: HotLog) -> int:
        if stream not in self._counts:
            self._counts[stream] = len(broker.describe(stream).partitions)
        count = self._counts[stream]
        if partition is not None:
            if not 0 <= partition < count:
                raise InvalidInput(
                    f"partition {partition} does not exist: stream {stream!r} has {count}, from 0"
                )
            return partition
        return self._count % count if key is None else partition_of(key, count)

    def _send(self, where: tuple[str, int], broker: HotLog) -> None:
        """Store the waiting rows; place them again if the stream has other partitions now."""
        stream, rows = where[0], self._waiting.pop(where)
        first = self._sequences[where]
        self._bytes.pop(where)
        values, keys, headers, kinds = zip(*(row for row, _ in rows), strict=True)
        head, body = encode(
            values,
            [self._sink.value_type if kind is None else kind for kind in kinds],
            self._now_ms,
            keys=keys if any(key is not None for key in keys) else None,
            headers=headers,
            producer=BatchProducer(self._producers[where[0]], 0, first),
        )
        try:
            broker.publish(*where, head, body, self._counts[stream])
        except PartitionsChanged:
            self._waiting[where] = rows
            self._place_again(stream, broker)
        else:
            self._sequences[where] += len(rows)

    def _place_again(self, stream: str, broker: HotLog) -> None:
        """Look up how many partitions there are, and place what waits by that."""
        del self._counts[stream]
        waiting = [where for where in self._waiting if where[0] == stream]
        rows = [row for where in waiting for row in self._waiting.pop(where)]
        for where in waiting:
            self._bytes.pop(where, None)
        for row, partition in rows:
            self._wait(stream, partition, row, broker)

    def flush(self, broker: HotLog) -> int:
        while self._waiting:
            self._send(min(self._waiting), broker)
        return self._count


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _object(headers: str | list[dict[str, Any]] | None) -> str | None:
    """Headers as JSON; Kafka's are a list of names and bytes."""
    if headers is None or isinstance(headers, str):
        return headers
    try:
        found = {
            each["key"]: None if each["value"] is None else bytes(each["value"]).decode()
            for each in headers
        }
    except (UnicodeDecodeError, KeyError, TypeError) as error:
        raise InvalidInput(f"headers are a list of names and texts: {error}") from None
    return msgspec.json.encode(found).decode()


def _checked_headers(text: str | None) -> bytes:
    """Headers as they are stored; anything but a JSON object would stop every consumer."""
    if not text:
        return b""
    try:
        _headers_fit(text)
    except msgspec.DecodeError:
        raise InvalidInput(
            f'headers are a JSON object, such as {{"source": "spark"}}, not {text[:100]!r}'
        ) from None
    return text.encode()


def _check_value(content: bytes | None, kind: int) -> None:
    """`InvalidInput` unless consumers can read a value as its type."""
    if kind not in (ValueType.RAW, ValueType.TEXT, ValueType.JSON):
        raise InvalidInput(f"value_type is 0 (bytes), 1 (text) or 2 (JSON), not {kind}")
    if content is None or kind == ValueType.RAW:
        return
    try:
        if kind == ValueType.JSON:
            _json_fits(content)
        else:
            content.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "JSON" if kind == ValueType.JSON else "text"
        raise InvalidInput(
            f"value_type {kind} says that a value is {what}, and it is not: {error}"
        ) from None
