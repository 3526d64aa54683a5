"""Rows of one attempt at a task, gathered into batches by stream and partition."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from nexo.batch import BatchProducer, EntryParts, encode
from nexo.batch.encode import ANONYMOUS
from nexo.batch.partitions import partition_of
from nexo.errors import InvalidInput, PartitionsChanged
from nexo.hot_log import HotLog
from pyspark_nexo.publishing.rows import Content, PlacedRow, placed_rows

BATCH_BYTES = 1024**2
_ROW_BYTES = 16
"""What a record takes beside its value, key and headers."""


class BatchPlace(NamedTuple):
    """Where a batch goes; ``named`` if its rows name their partition themselves."""

    stream: str
    partition: int
    named: bool


_Rows: TypeAlias = list[PlacedRow]


class RowOutbox:
    """Rows that wait to be sent. What sending means is up to `_send`."""

    def __init__(self, broker: HotLog, stream: str, partitions: int, value_type: int) -> None:
        self._broker = broker
        self._stream = stream
        self._value_type = value_type
        self._counts = {stream: partitions} if stream else {}
        self._waiting: dict[BatchPlace, _Rows] = defaultdict(list)
        self._bytes: dict[BatchPlace, int] = defaultdict(int)
        self._now_ms = int(time.time() * 1000)
        self.count = 0

    def add(self, columns: dict[str, list[Any]]) -> None:
        """Take rows, and send what is enough for a batch."""
        for row in placed_rows(columns):
            where = self._wait(row)
            self.count += 1
            if self._bytes[where] >= BATCH_BYTES:
                self._send(where)

    def flush(self) -> int:
        """Send what waits; returns how many rows there were."""
        while self._waiting:
            self._send(min(self._waiting))
        return self.count

    def _wait(self, row: PlacedRow) -> BatchPlace:
        """Put a row behind those of its partition; returns where that is."""
        where = self._place(row)
        self._waiting[where].append(row)
        value, key, headers, _ = row.content
        self._bytes[where] += len(value or b"") + len(key or b"") + len(headers) + _ROW_BYTES
        return where

    def _place(self, row: PlacedRow) -> BatchPlace:
        stream = self._stream or row.topic
        if not stream:
            raise InvalidInput("a row's topic is null: it must name a stream")
        if stream not in self._counts:
            self._counts[stream] = len(self._broker.describe(stream).partitions)
        count, partition, key = self._counts[stream], row.partition, row.content[1]
        if partition is None:
            found = self.count % count if key is None else partition_of(key, count)
            return BatchPlace(stream, found, False)
        if not 0 <= partition < count:
            raise InvalidInput(
                f"partition {partition} does not exist: stream {stream!r} has {count}, from 0"
            )
        return BatchPlace(stream, partition, True)

    def _send(self, where: BatchPlace) -> None:
        """Send the rows that wait there."""
        raise NotImplementedError

    def _taken(self, where: BatchPlace) -> _Rows:
        self._bytes.pop(where, None)
        return self._waiting.pop(where)

    def _encoded(
        self, rows: Sequence[PlacedRow], producer: BatchProducer = ANONYMOUS, flags: int = 0
    ) -> EntryParts:
        contents: list[Content] = [row.content for row in rows]
        values, keys, headers, kinds = zip(*contents, strict=True)
        return encode(
            values,
            [self._value_type if kind is None else kind for kind in kinds],
            self._now_ms,
            keys=keys if any(key is not None for key in keys) else None,
            headers=headers,
            producer=producer,
            flags=flags,
        )


class DirectOutbox(RowOutbox):
    """Publishes each batch at once, as an idempotent producer of its own.

    Another attempt may bring its rows in another order, for example after a shuffle, so nothing
    that one attempt stored says what another one may leave out: records are stored at least once.
    """

    def __init__(self, broker: HotLog, stream: str, partitions: int, value_type: int) -> None:
        super().__init__(broker, stream, partitions, value_type)
        self._producers: dict[str, int] = defaultdict(lambda: secrets.randbits(63))
        self._sequences: dict[BatchPlace, int] = defaultdict(int)

    def _send(self, where: BatchPlace) -> None:
        """Store the waiting rows; place them again if the stream has other partitions now."""
        rows, stream = self._taken(where), where.stream
        at = where._replace(named=False)  # named or not, they are one sequence
        producer = BatchProducer(self._producers[stream], 0, self._sequences[at])
        head, body = self._encoded(rows, producer)
        try:
            self._broker.publish(stream, where.partition, head, body, self._counts[stream])
        except PartitionsChanged:
            self._waiting[where] = rows
            self._place_again(stream)
        else:
            self._sequences[at] += len(rows)

    def _place_again(self, stream: str) -> None:
        """Look up how many partitions there are, and place what waits by that."""
        del self._counts[stream]
        waiting = [where for where in self._waiting if where.stream == stream]
        for row in [row for where in waiting for row in self._taken(where)]:
            self._wait(row)
