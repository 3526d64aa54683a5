"""A sender whose messages carry the trace they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from nexo.client import telemetry
from nexo.topics._async.kafka.backend import KafkaSender
from nexo.topics._async.producer.delivery import Delivery
from nexo.topics._async.producer.sender import NexoSender
from nexo.topics.model import ProducerRecord, RecordMetadata


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
