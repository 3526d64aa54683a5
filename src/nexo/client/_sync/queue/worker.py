# Generated from _async/queue/worker.py by tools/unasync.py; edit that file instead.
"""A handler with its queue: created by ``@queue.worker()``, run by ``nexo worker``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, TypeVar

from nexo.client._sync import runtime
from nexo.client._sync.queue.jobs import Job
from nexo.client._sync.queue.subscription import QueueSubscription
from nexo.options.units import Duration

log = logging.getLogger("nexo.worker")

T = TypeVar("T")


class Worker(Generic[T]):
    """Calling it calls the handler, so that tests need no server."""

    def __init__(
        self,
        handler: Callable[[Job[T]], Any],
        make_subscription: Callable[[], QueueSubscription[T]],
    ) -> None:
        self._handler = handler
        self._make_subscription = make_subscription
        update_wrapper(self, handler)

    def __call__(self, job: Job[T]) -> Any:
        return self._handler(job)

    def start(self) -> QueueSubscription[T]:
        """Start to take jobs."""
        subscription = self._make_subscription()
        subscription.start()
        return subscription

    def run(self, stop_timeout: Duration | None = None) -> None:
        """Work until SIGTERM or Ctrl-C; then finish what runs, for ``stop_timeout``.

        Jobs that were fetched and not started are released without counting an attempt. Raises what
        ended the subscription, such as a deleted queue, so that a process supervisor can restart
        it.
        """
        with runtime.StopSignal() as signal:
            subscription = self._make_subscription()
            log.info("%s starts", subscription.label)
            subscription.when_ended(signal.set)
            subscription.start()
            signal.wait()
            log.info("stopping: finishing running jobs, releasing the others")
            subscription.close(stop_timeout)
        if subscription.failure is not None:
            raise subscription.failure
