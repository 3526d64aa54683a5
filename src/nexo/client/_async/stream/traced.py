"""Streams and transactions whose records carry the trace they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from nexo.client import telemetry
from nexo.client._async import runtime
from nexo.client._async.stream.records import StreamRecord
from nexo.client._async.stream.stream import Stream
from nexo.client._async.stream.subscription import StreamSubscription
from nexo.client._async.stream.transaction import Transaction
from nexo.client.checks import each, function
from nexo.client.stream_records import Headers, Key, Published, PublishedBatch

T = TypeVar("T")


class TracedStream(Stream[T]):
    """``client.stream(name)`` in an application that uses OpenTelemetry.

    A separate class, so that other applications pay nothing.
    """

    def publish(self, value: T, *, headers: Headers = None, **options: Any) -> Awaitable[Published]:
        """See `Stream.publish`; the span ends when the record is sent."""
        with telemetry.publishing(self.name) as carried:
            return super().publish(value, headers=telemetry.joined(carried, headers), **options)

    async def publish_many(
        self, values: Iterable[T], *, headers: Sequence[Headers] | None = None, **options: Any
    ) -> PublishedBatch:
        """See `Stream.publish_many`; one span for all."""
        values = list(each(values))
        with telemetry.publishing(self.name) as carried:
            headers = telemetry.joined_each(carried, headers, len(values))
            return await super().publish_many(values, headers=headers, **options)

    async def subscribe(
        self, group: str, handler: Callable[[StreamRecord[T]], Any], **options: Any
    ) -> StreamSubscription[T]:
        """See `Stream.subscribe`; each call of ``handler`` is a span."""
        function(handler)

        async def traced(record: StreamRecord[T]) -> None:
            named = {"messaging.consumer.group.name": group}
            with telemetry.processing(self.name, record.headers, named):
                await runtime.invoke(handler, record)

        return await super().subscribe(group, traced, **options)


class TracedTransaction(Transaction):
    """``client.transaction()`` in an application that uses OpenTelemetry."""

    async def publish(
        self, stream: str, value: object, *, key: Key = None, headers: Headers = None
    ) -> Published:
        """See `Transaction.publish`; each is a span."""
        with telemetry.publishing(stream) as carried:
            joined = telemetry.joined(carried, headers)
            return await super().publish(stream, value, key=key, headers=joined)
