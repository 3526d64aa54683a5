"""Single records of one turn of the loop: of all connections, one batch a partition.

A batch costs its head, its sum, a write and a sync whatever it holds, so fifty clients that each
publish one record get one between them; those of Kafka get one of Kafka's. A lone record is stored
at the end of its turn, and waits for nobody. Whatever else a connection asks for must come after
its records: see `flush`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from nexo.batch.kafka_join import LoneRecord, joined
from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.partition import check_size
from nexo.brokers.stream.publishing import ROUTE, Placed
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError, internal_error
from nexo.services.stream.core import Core
from nexo.services.stream.exposure import stored_here

log = logging.getLogger("nexo.stream")

MOST_RECORDS, MOST_BYTES = 4096, 1024**2
"""A batch of this size is stored at once."""

RecordStored: TypeAlias = Callable[[NexoError | None, int, int], None]
"""``stored(error, partition, offset)`` answers who published a record."""


class GatheredRecords:
    """Records of one partition that are stored together, and whom to answer about each."""

    __slots__ = ("index", "size_bytes", "stream", "types", "values", "waiting")

    def __init__(self, stream: OpenStream, index: int) -> None:
        self.stream = stream
        self.index = index
        self.values: list[bytes] = []
        self.types: list[int] = []
        self.waiting: list[RecordStored] = []
        self.size_bytes = 0

    def store(self, engine: StreamEngine, now_ms: int) -> Placed:
        """Store them as one batch."""
        return engine.publish_plain(self.stream, self.index, self.values, self.types, now_ms)


class GatheredKafkaRecords(GatheredRecords):
    """The same, each in a batch of its own by a Kafka client."""

    __slots__ = ("records",)

    def __init__(self, stream: OpenStream, index: int) -> None:
        super().__init__(stream, index)
        self.records: list[LoneRecord] = []

    def store(self, engine: StreamEngine, now_ms: int) -> Placed:
        """Store them as one of Kafka's batches."""
        head, body = joined(self.records)
        [placed] = engine.publish(self.stream, self.index, b"".join((head, *body)), now_ms)
        return placed


class RecordGathering:
    """What was published singly in this turn and is not stored yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._open: dict[tuple[int, int], GatheredRecords] = {}
        self._kafka: dict[tuple[int, int], GatheredKafkaRecords] = {}

    def add(
        self, stream: OpenStream, index: int, value_type: int, content: bytes, stored: RecordStored
    ) -> None:
        """Store a record with this turn; raises if the stream does not take it."""
        options = stream.options
        if index == ROUTE:
            index = stream.next_partition() if options.partitions > 1 else 0
        gathered = self._open.get((stream.id, index))
        if gathered is None:
            self._check(stream, index)
            gathered = self._open[stream.id, index] = GatheredRecords(stream, index)
        size = len(content)
        if size > options.max_message_bytes:
            check_size(size, options.max_message_bytes)
        gathered.values.append(content)
        gathered.types.append(value_type)
        gathered.waiting.append(stored)
        gathered.size_bytes += size
        if gathered.size_bytes >= MOST_BYTES or len(gathered.values) >= MOST_RECORDS:
            del self._open[stream.id, index]
            self._store(gathered)

    def add_kafka(
        self, stream: OpenStream, index: int, record: LoneRecord, stored: RecordStored
    ) -> None:
        """Store a Kafka client's record, whose batch was checked, with this turn."""
        key, size = (stream.id, index), len(record.batch)
        most_bytes = min(stream.options.max_message_bytes or MOST_BYTES, MOST_BYTES)
        gathered = self._kafka.get(key)
        if gathered is not None and (
            gathered.size_bytes + size > most_bytes or len(gathered.records) >= MOST_RECORDS
        ):
            self._store(self._kafka.pop(key))
            gathered = None
        if gathered is None:
            self._check(stream, index)
            gathered = self._kafka[key] = GatheredKafkaRecords(stream, index)
        gathered.records.append(record)
        gathered.waiting.append(stored)
        gathered.size_bytes += size

    def _check(self, stream: OpenStream, index: int) -> None:
        """Raise if the stream takes no records now; what is gathered first asks for `flush`."""
        core = self._core
        stream.check_writable()
        stream.partition(index)  # raises if there is none
        core.runtime.check_writable()
        core.pressure.check()
        if not (self._open or self._kafka):
            core.runtime.soon(self.flush)

    def flush(self) -> None:
        """Store what was gathered: before anything that must come after it, and with the turn."""
        if self._open:
            opened, self._open = self._open, {}
            for gathered in opened.values():
                self._store(gathered)
        if self._kafka:
            kafka, self._kafka = self._kafka, {}
            for records in kafka.values():
                self._store(records)

    def _store(self, gathered: GatheredRecords) -> None:
        core, stream = self._core, gathered.stream
        if not gathered.waiting:
            return
        try:
            core.check_there(stream)
            placed = gathered.store(core.engine, core.now_ms)
        except NexoError as error:
            _answer(gathered, error)
            return
        except Exception:
            log.exception("records could not be stored")
            _answer(gathered, internal_error())
            return
        core.appended(placed.count)
        core.exposure.written(gathered.size_bytes)

        def safe(error: NexoError | None) -> None:
            if error is not None:
                _answer(gathered, error)
                return
            core.show(stream, [placed])
            _answer(gathered, placed)

        mode = core.exposure.mode(stream, [placed])
        core.when_appended(stream, mode, stored_here(stream, mode, safe))


def _answer(gathered: GatheredRecords, result: Placed | NexoError) -> None:
    """Tell each publisher where its record is, or the error of all."""
    error, first = (result, 0) if isinstance(result, NexoError) else (None, result.offset)
    index = gathered.index
    for offset, stored in enumerate(gathered.waiting, first):
        try:
            stored(error, index, offset)
        except Exception:  # the others of the batch are still answered
            log.exception("a publisher could not be answered")
