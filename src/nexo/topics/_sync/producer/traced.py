# Generated from _async/producer/traced.py by tools/unasync.py; edit that file instead.
"""A sender whose messages carry the trace they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nexo.client import telemetry
from nexo.topics._sync.ports import Sender
from nexo.topics._sync.producer.delivery import Delivery
from nexo.topics.model import ProducerRecord, RecordMetadata


def traced(sender: Sender) -> Sender:
    """With spans, if the application uses OpenTelemetry."""
    return TracedSender(sender) if telemetry.in_use() else sender


class TracedSender:
    """Gives each message the headers of the span around its sending."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """See `Sender.send`; the span ends when the message is in its batch."""
        with telemetry.publishing(topic) as carried:
            return self._sender.send(topic, _with(carried, record))

    def send_together(self, topic: str, records: Sequence[ProducerRecord]) -> list[RecordMetadata]:
        """See `Sender.send_together`; one span for all."""
        with telemetry.publishing(topic) as carried:
            each = [_with(carried, record) for record in records]
            return self._sender.send_together(topic, each)

    def flush(self) -> None:
        """See `Sender.flush`."""
        self._sender.flush()

    def close(self) -> None:
        """See `Sender.close`."""
        self._sender.close()


def _with(carried: dict[str, Any], record: ProducerRecord) -> ProducerRecord:
    return replace(record, headers=telemetry.joined(carried, record.headers))
