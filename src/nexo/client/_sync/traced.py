# Generated from _async/traced.py by tools/unasync.py; edit that file instead.
"""The brokers' clients in an application that uses OpenTelemetry.

What they send carries the trace it belongs to, and each call of a handler is a span. They are
classes of their own, so that other applications pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Never, TypeVar

from nexo.client import telemetry
from nexo.client._sync import runtime
from nexo.client._sync.pubsub.pubsub import PubSub
from nexo.client._sync.pubsub.subscription import Subscription
from nexo.client._sync.queue.jobs import Job
from nexo.client._sync.queue.queue import Queue
from nexo.client._sync.queue.subscription import QueueSubscription, Worker
from nexo.client._sync.stream.records import StreamRecord
from nexo.client._sync.stream.stream import Stream
from nexo.client._sync.stream.subscription import StreamSubscription
from nexo.client._sync.stream.transaction import Transaction
from nexo.client.checks import each, function
from nexo.client.pubsub_message import Message
from nexo.client.stream_records import Headers, Key, Published, PublishedBatch

T = TypeVar("T")


class TracedPubSub(PubSub):
    """``client.pubsub``."""

    def publish(
        self,
        topic: str,
        value: object,
        *misplaced: Never,
        headers: Headers = None,
        **options: Any,
    ) -> int:
        """See `PubSub.publish`; the span ends when the message is sent."""
        with telemetry.publishing(str(topic)) as carried:
            return super().publish(
                topic, value, *misplaced, headers=telemetry.joined(carried, headers), **options
            )

    def publish_many(self, topic: str, values: Iterable[object], **options: Any) -> list[int]:
        """See `PubSub.publish_many`; one span for all, which they do not carry."""
        with telemetry.publishing(str(topic)):
            return super().publish_many(topic, values, **options)

    def subscribe(
        self, pattern: str, handler: Callable[[Message[Any]], Any] | None = None, **options: Any
    ) -> Subscription[Any]:
        """See `PubSub.subscribe`."""
        if handler is None:
            return super().subscribe(pattern, **options)
        function(handler)

        def traced(message: Message[Any]) -> None:
            named = {"messaging.destination.subscription.name": pattern}
            with telemetry.processing(message.topic, message.headers, named):
                runtime.invoke(handler, message)

        return super().subscribe(pattern, traced, **options)


class TracedQueue(Queue[T]):
    """``client.queue(name)``."""

    def push(
        self,
        value: T,
        *misplaced: Never,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """See `Queue.push`; the span ends when the job is sent."""
        with telemetry.publishing(self.name, "push") as carried:
            return super().push(
                value, *misplaced, headers=telemetry.joined(carried, headers), **options
            )

    def push_many(
        self,
        values: Iterable[T],
        *,
        headers: Sequence[Mapping[str, Any] | None] | None = None,
        **options: Any,
    ) -> list[str]:
        """See `Queue.push_many`; one span for all."""
        values = list(each(values))
        with telemetry.publishing(self.name, "push") as carried:
            headers = telemetry.joined_each(carried, headers, len(values))
            return super().push_many(values, headers=headers, **options)

    def subscribe(
        self, handler: Callable[[Job[T]], Any], *misplaced: Never, **options: Any
    ) -> QueueSubscription[T]:
        """See `Queue.subscribe`."""
        return super().subscribe(self._traced(handler), *misplaced, **options)

    def worker(self, **options: Any) -> Callable[[Callable[[Job[T]], Any]], Worker[T]]:
        """See `Queue.worker`."""
        decorate = super().worker(**options)
        return lambda handler: decorate(self._traced(handler))

    def _traced(self, handler: Callable[[Job[T]], Any]) -> Callable[[Job[T]], Any]:
        function(handler)

        @wraps(handler)
        def traced(job: Job[T]) -> Any:
            named: dict[str, str | int] = {
                "messaging.message.id": job.id,
                "nexo.job.attempt": job.attempt,
            }
            with telemetry.processing(self.name, job.headers, named):
                return runtime.invoke(handler, job)

        return traced


class TracedStream(Stream[T]):
    """``client.stream(name)``."""

    def publish(
        self, value: T, *misplaced: Never, headers: Headers = None, **options: Any
    ) -> Published:
        """See `Stream.publish`; the span ends when the record is sent."""
        with telemetry.publishing(self.name) as carried:
            return super().publish(
                value, *misplaced, headers=telemetry.joined(carried, headers), **options
            )

    def publish_many(
        self, values: Iterable[T], *, headers: Sequence[Headers] | None = None, **options: Any
    ) -> PublishedBatch:
        """See `Stream.publish_many`; one span for all."""
        values = list(each(values))
        with telemetry.publishing(self.name) as carried:
            headers = telemetry.joined_each(carried, headers, len(values))
            return super().publish_many(values, headers=headers, **options)

    def subscribe(
        self,
        group: str,
        handler: Callable[[StreamRecord[T]], Any],
        *misplaced: Never,
        **options: Any,
    ) -> StreamSubscription[T]:
        """See `Stream.subscribe`."""
        function(handler)

        def traced(record: StreamRecord[T]) -> None:
            named = {"messaging.consumer.group.name": group}
            with telemetry.processing(self.name, record.headers, named):
                runtime.invoke(handler, record)

        return super().subscribe(group, traced, *misplaced, **options)


class TracedTransaction(Transaction):
    """``client.transaction()``."""

    def publish(
        self, stream: str, value: object, *, key: Key = None, headers: Headers = None
    ) -> Published:
        """See `Transaction.publish`; each is a span."""
        with telemetry.publishing(stream) as carried:
            joined = telemetry.joined(carried, headers)
            return super().publish(stream, value, key=key, headers=joined)
