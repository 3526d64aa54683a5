# Generated from _async/stream/traced.py by tools/unasync.py; edit that file instead.
"""Streams and transactions whose records carry the trace they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from nexo.client import telemetry
from nexo.client._sync import runtime
from nexo.client._sync.stream.records import StreamRecord
from nexo.client._sync.stream.stream import Stream
from nexo.client._sync.stream.subscription import StreamSubscription
from nexo.client._sync.stream.transaction import Transaction
from nexo.client.checks import each, function
from nexo.client.stream_records import Headers, Key, Published, PublishedBatch

T = TypeVar("T")


class TracedStream(Stream[T]):
    """``client.stream(name)`` in an application that uses OpenTelemetry.

    A separate class, so that other applications pay nothing.
    """

    def publish(self, value: T, *, headers: Headers = None, **options: Any) -> Published:
        """See `Stream.publish`; the span ends when the record is sent."""
        with telemetry.publishing(self.name) as carried:
            return super().publish(value, headers=telemetry.joined(carried, headers), **options)

    def publish_many(
        self, values: Iterable[T], *, headers: Sequence[Headers] | None = None, **options: Any
    ) -> PublishedBatch:
        """See `Stream.publish_many`; one span for all."""
        values = list(each(values))
        with telemetry.publishing(self.name) as carried:
            headers = telemetry.joined_each(carried, headers, len(values))
            return super().publish_many(values, headers=headers, **options)

    def subscribe(
        self, group: str, handler: Callable[[StreamRecord[T]], Any], **options: Any
    ) -> StreamSubscription[T]:
        """See `Stream.subscribe`; each call of ``handler`` is a span."""
        function(handler)

        def traced(record: StreamRecord[T]) -> None:
            named = {"messaging.consumer.group.name": group}
            with telemetry.processing(self.name, record.headers, named):
                runtime.invoke(handler, record)

        return super().subscribe(group, traced, **options)


class TracedTransaction(Transaction):
    """``client.transaction()`` in an application that uses OpenTelemetry."""

    def publish(
        self, stream: str, value: object, *, key: Key = None, headers: Headers = None
    ) -> Published:
        """See `Transaction.publish`; each is a span."""
        with telemetry.publishing(stream) as carried:
            joined = telemetry.joined(carried, headers)
            return super().publish(stream, value, key=key, headers=joined)
