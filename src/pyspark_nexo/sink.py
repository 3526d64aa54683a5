"""Writing into streams from Spark: each batch exactly once, or each record at least once.

Exactly once, tasks stage their batches in files, and the commit publishes all of them in one
transaction (`pyspark_nexo.publishing.once`): until then nothing of them is visible, and a batch
that comes again is known by its number. At least once, each attempt at a task publishes as it goes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructType

from nexo.errors import ConfigError, Conflict, InvalidOption
from nexo.hot_log import HotLog
from nexo.lake.writing.staging import StagingPlace, staging_at, staging_here, staging_of
from nexo.protocol.values import ValueType
from pyspark_nexo.options import SourceOptions
from pyspark_nexo.publishing.once import LedgerMark, StagedFile, publish_once
from pyspark_nexo.publishing.outbox import DirectOutbox
from pyspark_nexo.publishing.rows import check_columns
from pyspark_nexo.publishing.staged import StagedOutbox
from pyspark_nexo.reading.files import lake_of
from pyspark_nexo.tiering import Probe, no_probe

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# ruff: noqa: N803 - Spark names these arguments

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
_SWEEP_EVERY = 100
"""Batches of a query after which old staged files are swept."""


@dataclass
class TaskWritten(WriterCommitMessage):
    """What a task wrote, and what it staged, if anything."""

    records: int
    folder: str = ""
    file: StagedFile | None = None
    query: str = ""


@dataclass
class Sink:
    """Writes rows with a ``value`` and perhaps ``key``, ``headers``, ``partition`` and ``topic``.

    Without a ``stream``, each row's ``topic`` names its stream, as in Kafka's sink. Without a
    ``place``, records are stored at least once.
    """

    stream: str
    url: str | None = field(repr=False)
    partitions: int
    value_type: int
    place: StagingPlace | None = None
    ledger: str = ""
    probe: Probe = no_probe
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def open(cls, options: SourceOptions, schema: StructType, overwrite: bool) -> Self:
        """Check what is to be written, before any task runs."""
        if overwrite:
            raise InvalidOption("streams cannot be overwritten: write with mode('append')")
        check_columns(schema)
        if not options.stream and "topic" not in schema.names:
            raise InvalidOption("say which stream: .option('stream', name), or a column 'topic'")
        count = 0
        if options.stream:
            with HotLog(options.url) as broker:
                count = len(broker.describe(options.stream).partitions)
        text = isinstance(schema["value"].dataType, StringType)
        kind = ValueType.TEXT if text else ValueType.RAW
        return cls(options.stream, options.url, count, kind, _place(options), options.ledger)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskWritten:
        """Runs on an executor."""
        if self.place is not None:
            return self._stage(iterator, self.place)
        with HotLog(self.url) as broker:
            outbox = DirectOutbox(broker, self.stream, self.partitions, self.value_type)
            for batch in iterator:
                outbox.add(batch.to_pydict())
            return TaskWritten(outbox.flush())

    def _stage(self, iterator: Iterator[RecordBatch], place: StagingPlace) -> TaskWritten:
        query, folder = _of_task(self.name)
        name = f"{folder}/{uuid.uuid4().hex}"
        self.probe("before the staging")
        with HotLog(self.url) as broker:
            outbox = StagedOutbox(
                broker, self.stream, self.partitions, self.value_type, place, name
            )
            try:
                for batch in iterator:
                    outbox.add(batch.to_pydict())
                count = outbox.flush()
            finally:
                outbox.close()
        self.probe("staged")
        file = StagedFile(name, outbox.bytes) if outbox.bytes else None
        return TaskWritten(count, folder, file, query)

    def _publish(self, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
        """Publish what tasks have staged, in the driver; ``number`` is of a query's batch."""
        written = _written(messages)
        files = [each.file for each in written if each.file is not None]
        if self.place is None or not files:
            return
        mark = None if number is None else LedgerMark(self.ledger, _query(written), number)
        publish_once(self.url, self.place, files, mark, self.probe)
        self._discard(messages)
        if not (number or 0) % _SWEEP_EVERY:
            self.place.sweep()
        self.probe("cleaned")

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what all attempts at the tasks have staged."""
        for folder in {each.folder for each in _written(messages) if each.folder}:
            assert self.place is not None, "there are folders in a place only"
            self.place.discard(folder)


class BatchSink(Sink, DataSourceArrowWriter):
    """``df.write.format("nexo")``: all or nothing; written again by its user, it counts again."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.place is not None:
            self.place.discard(self.name)


class StreamSink(Sink, DataSourceStreamArrowWriter):
    """``df.writeStream.format("nexo")``: each batch of a checkpoint counts once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(messages)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWritten]:
    return [each for each in messages if isinstance(each, TaskWritten)]


def _of_task(name: str) -> tuple[str, str]:
    """The query that a task is of, if any, and the folder of its batch; else that of the write."""
    from pyspark import TaskContext  # noqa: PLC0415 - there is none elsewhere

    context = TaskContext.get()
    query = "" if context is None else context.getLocalProperty(_QUERY) or ""
    if context is None or not query:
        return "", name
    return query, f"{query}-{context.getLocalProperty(_BATCH)}"


def _query(written: Sequence[TaskWritten]) -> str:
    found = {each.query for each in written}
    if len(found) != 1 or not all(found):
        raise Conflict(
            "Spark does not say which streaming query a batch is of, so it cannot be told whether "
            "it was published: write with .option('delivery', 'at-least-once')"
        )
    return found.pop()


def _place(options: SourceOptions) -> StagingPlace | None:
    """Where to stage: what the user says, the lake if it is within reach, or this machine."""
    if options.at_least_once:
        return None
    if options.staging is None:
        return _usual_place(options.url, options.lake)
    found = staging_at(options.staging)
    found.prepare()
    return found


@lru_cache(maxsize=100)
def _usual_place(url: str | None, folder: str | None) -> StagingPlace:
    """The place in the lake, or on this machine if that is not within its reach."""
    lake = lake_of(url, folder)
    try:
        found = None if lake is None else staging_of(lake)
        if found is not None:
            found.prepare()
    except (ConfigError, PermissionError):
        found = None
    return found or staging_here()
