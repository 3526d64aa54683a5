"""Producers: batches, linger, compression, idempotence (SPEC G3), and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Never, TypeAlias

from nexo.batch import Compression
from nexo.client import telemetry
from nexo.client._async.client import AsyncClient
from nexo.client._async.handling import AsyncClosing
from nexo.client.checks import not_keywords, text
from nexo.client.stream_records import Headers, Key
from nexo.options.units import Duration
from nexo.topics._async.kafka.backend import KafkaSender
from nexo.topics._async.nexo_backend import backend_for
from nexo.topics._async.producer.delivery import Delivery
from nexo.topics._async.producer.sender import NexoSender
from nexo.topics.model import ProducerRecord, RecordMetadata, SenderOptions
from nexo.topics.packing import Partitioner, partitioner_named
from nexo.topics.settings import at_least_one, not_negative, option_ms


class TracedSender:
    """Gives each message the headers of the span around its sending."""

    def __init__(self, sender: NexoSender | KafkaSender) -> None:
        self._sender = sender

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """See `NexoSender.send`; the span ends when the message is in its batch."""
        with telemetry.publishing(topic) as carried:
            return self._sender.send(topic, _with(carried, record))

    async def send_together(
        self, topic: str, records: Sequence[ProducerRecord]
    ) -> list[RecordMetadata]:
        """See `NexoSender.send_together`; one span for all."""
        with telemetry.publishing(topic) as carried:
            each = [_with(carried, record) for record in records]
            return await self._sender.send_together(topic, each)

    async def flush(self) -> None:
        """See `NexoSender.flush`."""
        await self._sender.flush()

    async def close(self) -> None:
        """See `NexoSender.close`."""
        await self._sender.close()


Sender: TypeAlias = NexoSender | KafkaSender | TracedSender


def traced(sender: NexoSender | KafkaSender) -> Sender:
    """With spans, if the application uses OpenTelemetry."""
    return TracedSender(sender) if telemetry.in_use() else sender


def _with(carried: dict[str, Any], record: ProducerRecord) -> ProducerRecord:
    return replace(record, headers=telemetry.joined(carried, record.headers))


class AsyncProducer(AsyncClosing):
    """Sends messages to topics, in batches per partition.

    A batch is sent when it holds ``batch_size`` messages or ``linger_ms`` after its first. With
    ``idempotent`` a batch that has to be sent again is stored once. A producer with a ``name``
    fences those that were started before under that name.
    """

    def __init__(
        self,
        *misplaced: Never,
        partitioner: str | Partitioner = "murmur2",
        compression: str | None = None,
        batch_size: int = 100,
        linger_ms: float = 10.0,
        idempotent: bool = True,
        name: str = "",
        delivery_timeout: Duration = 30.0,
        server: AsyncClient | str | None = None,
    ) -> None:
        if misplaced:
            raise not_keywords(misplaced, "Producer(compression='gzip')")
        Compression.named(compression)
        options = SenderOptions(
            compression,
            at_least_one("batch_size", batch_size),
            not_negative("linger_ms", linger_ms),
            idempotent,
            text(name, "a producer's name"),
            option_ms("delivery_timeout", delivery_timeout) / 1000,
        )
        partition = partitioner_named(partitioner)
        self._backend = backend_for(server)
        self._sender = traced(self._backend.sender(options, partition))

    def send(
        self,
        topic: str,
        value: object,
        *,
        key: Key = None,
        headers: Headers = None,
        partition: int | None = None,
    ) -> Delivery:
        """Send a message; await the result for its place, or `flush` later.

        A value of None deletes the key. Messages of one key keep their order.
        """
        return self._sender.send(topic, ProducerRecord.made(value, key, headers, partition))

    async def flush(self) -> None:
        """Wait until everything sent so far is stored, or has failed."""
        await self._sender.flush()

    async def close(self) -> None:
        """Flush, and end the connection unless it belongs to a client.

        Raises the failure of a message whose result nobody has asked for.
        """
        try:
            await self._sender.close()
        finally:
            await self._backend.close()
