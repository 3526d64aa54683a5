"""A queue whose jobs carry the trace they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from nexo.client import telemetry
from nexo.client._async import runtime
from nexo.client._async.queue.jobs import Job
from nexo.client._async.queue.queue import Queue
from nexo.client._async.queue.subscription import QueueSubscription
from nexo.client._async.queue.worker import Worker
from nexo.client.checks import each, function

T = TypeVar("T")


class TracedQueue(Queue[T]):
    """``client.queue(name)`` in an application that uses OpenTelemetry.

    A separate class, so that other applications pay nothing.
    """

    def push(
        self, value: T, *, headers: Mapping[str, Any] | None = None, **options: Any
    ) -> Awaitable[str]:
        """See `Queue.push`; the span ends when the job is sent."""
        with telemetry.publishing(self.name, "push") as carried:
            return super().push(value, headers=telemetry.joined(carried, headers), **options)

    async def push_many(
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
            return await super().push_many(values, headers=headers, **options)

    async def subscribe(
        self, handler: Callable[[Job[T]], Any], **options: Any
    ) -> QueueSubscription[T]:
        """See `Queue.subscribe`; each call of ``handler`` is a span."""
        return await super().subscribe(self._traced(handler), **options)

    def worker(self, **options: Any) -> Callable[[Callable[[Job[T]], Any]], Worker[T]]:
        """See `Queue.worker`; each call of the handler is a span."""
        decorate = super().worker(**options)
        return lambda handler: decorate(self._traced(handler))

    def _traced(self, handler: Callable[[Job[T]], Any]) -> Callable[[Job[T]], Any]:
        function(handler)

        @wraps(handler)
        async def traced(job: Job[T]) -> Any:
            named: dict[str, str | int] = {
                "messaging.message.id": job.id,
                "nexo.job.attempt": job.attempt,
            }
            with telemetry.processing(self.name, job.headers, named):
                return await runtime.invoke(handler, job)

        return traced
