# Generated from _async/producer/batch_writer.py by tools/unasync.py; edit that file instead.
"""Writes batches of messages to partitions, each exactly once (SPEC G3).

A batch is sent again until it is known to be stored, or its time is up. Its sequence lets
the broker recognise a repeat. Sequences belong to the producer id they were counted under:
when it is unknown whether a batch was stored, the next one is written under a new id.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nexo.batch import ANONYMOUS, BatchProducer, Compression
from nexo.client._sync import runtime
from nexo.client._sync.client import Client
from nexo.client._sync.link.repeating import insist
from nexo.client._sync.requests import request
from nexo.client.stream_records import by_partition
from nexo.errors import ConnectionLost, NexoError, OutcomeUnknown, RequestTimeout, Unavailable
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import ProducerStart, publish_head, read_places
from nexo.topics.model import RecordMetadata, SenderOptions, TopicPartition
from nexo.topics.packing import Packed, batch_of

_T = TypeVar("_T")

_UNCERTAIN = (ConnectionLost, OutcomeUnknown, RequestTimeout)
"""Errors after which it is unknown whether the batch was stored."""
_PASSING = (*_UNCERTAIN, Unavailable)
"""Errors that a retry may avoid."""


@dataclass(slots=True, eq=False)
class _Identity:
    """A producer's identity at the broker."""

    start: ProducerStart
    stored: Counter[TopicPartition] = field(default_factory=Counter)
    """Messages of each partition so far, which is the next one's sequence."""

    def of_next(self, at: TopicPartition) -> BatchProducer:
        """For the next batch of a partition."""
        return BatchProducer(self.start.producer, self.start.epoch, self.stored[at])


class BatchWriter:
    """Callers write one batch of a partition at a time, which keeps the order."""

    def __init__(self, client: Client, options: SenderOptions) -> None:
        self._client = client
        self._link = client.link(Broker.STREAM)
        self._options = options
        self._compression = Compression.named(options.compression)
        self._identity: _Identity | None = None
        self._identifying = runtime.Mutex()
        self._closed = False

    def write(self, at: TopicPartition, count: int, batch: Sequence[Packed[Any]]) -> int:
        """Returns the offset of the first.

        `PartitionsChanged` if the topic does not have ``count`` partitions; then nothing is stored.
        """
        identity = self._identified() if self._options.idempotent else None
        producer = ANONYMOUS if identity is None else identity.of_next(at)
        head, body = batch_of(batch).encode(
            int(time.time() * 1000), producer=producer, compression=self._compression
        )
        where = publish_head(*at, count)
        # Without a sequence, a batch that is sent again might be stored twice.
        passing = (Unavailable,) if identity is None else _PASSING
        try:
            reply = self.insist(lambda: self._link.call(Op.S_PUBLISH, where, head, *body), passing)
        except _UNCERTAIN:
            if self._identity is identity:
                self._identity = None  # its next sequence is unknown
            raise
        if identity is not None:
            identity.stored[at] += len(batch)
        return next(read_places(reply or b""))[1]

    def write_together(
        self, topic: str, partitions: Sequence[int], count: int, packed: Sequence[Packed[None]]
    ) -> list[RecordMetadata]:
        """Store all messages or none (SPEC G2), each in its partition of the ``count``.

        In a transaction, unless all are in one batch, which is stored whole anyway.
        """
        rows = [(each.kind, each.content) for each in packed]
        keys, headers = [each.key for each in packed], [each.headers for each in packed]
        runs, slots = by_partition(partitions, rows, keys, headers)
        if len(runs) == 1:
            head, body = runs[0][1].encode(int(time.time() * 1000), compression=self._compression)
            where = publish_head(topic, partitions[0], count)
            reply = self._link.call(Op.S_PUBLISH, where, head, *body)
            firsts = [next(read_places(reply or b""))[1]]
        else:
            with self._client.transaction() as tx:
                firsts = [
                    (tx.publish_batch(topic, partition, records, count=count)).offset
                    for partition, records in runs
                ]
        return [RecordMetadata(topic, runs[run][0], firsts[run] + at) for run, at in slots]

    def _identified(self) -> _Identity:
        with self._identifying:
            identity = self._identity
            if identity is None:
                name = pack_str(self._options.name)
                reply = self.insist(lambda: self._link.call(Op.S_PRODUCER, name))
                start = wire.unpack(ProducerStart, reply or b"")
                identity = self._identity = _Identity(start)
            return identity

    def count(self, topic: str) -> int:
        """How many partitions a topic has."""
        ask = wire.StreamName(stream=topic)
        info = request(self._link.call, Op.S_DESCRIBE, ask, wire.StreamInfo)
        return len(info.partitions)

    def insist(self, ask: Callable[[], _T], passing: tuple[type[NexoError], ...] = _PASSING) -> _T:
        """Repeat a request after ``passing`` errors, for as long as a message may take."""
        return insist(ask, passing, self._options.delivery_timeout_s, lambda: self._closed)

    def close(self) -> None:
        """Stop repeating."""
        self._closed = True
