"""A handler with its queue: what ``@queue.worker()`` makes and ``nexo worker`` runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, TypeVar

from nexo.client._async import runtime
from nexo.client._async.queue.consumer import Consumer
from nexo.client._async.queue.jobs import Job

log = logging.getLogger("nexo.worker")

T = TypeVar("T")


class Worker(Generic[T]):
    """Calling it calls the handler, so that tests need no server."""

    def __init__(
        self, handler: Callable[[Job[T]], Any], make_consumer: Callable[[], Consumer[T]]
    ) -> None:
        self._handler = handler
        self._make_consumer = make_consumer
        update_wrapper(self, handler)

    def __call__(self, job: Job[T]) -> Any:
        return self._handler(job)

    async def start(self) -> Consumer[T]:
        """Begin to take jobs."""
        consumer = self._make_consumer()
        consumer.start()
        return consumer

    async def run(self, stop_timeout: float | None = None) -> None:
        """Work until SIGTERM or Ctrl-C; then finish what runs, for ``stop_timeout`` seconds.

        Jobs that were fetched and not started go back without counting an attempt. Raises
        what ends the subscription, such as a deleted queue, so that whoever watches over the
        process can start it again.
        """
        with runtime.StopSignal() as signal:
            consumer = self._make_consumer()
            log.info("%s starts", consumer.label)
            consumer.when_ended(signal.set)
            consumer.start()
            await signal.wait()
            log.info("stopping: running jobs are finished, the others go back")
            await consumer.stop(stop_timeout)
        if consumer.failure is not None:
            raise consumer.failure
