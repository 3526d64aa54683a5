"""Handlers that want what was sent, and nothing else: the form that the documents show."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Protocol, TypeVar

from nexo.client.checks import function

V_co = TypeVar("V_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class Carrier(Protocol[V_co]):
    """A job, a record or a message."""

    @property
    def value(self) -> V_co: ...


def by_value(handler: Callable[[T], R]) -> Callable[[Carrier[T]], R]:
    """A handler of values as one of jobs, records and messages.

    Handlers of queues, streams and ``pubsub.subscribe`` get the job, record or message:
    ``queue.subscribe(by_value(send_mail))`` calls ``send_mail(job.value)``. It may be async, and it
    works as a decorator below ``@queue.worker()``.
    """
    function(handler)

    @wraps(handler)
    def call(carrier: Carrier[T]) -> R:
        return handler(carrier.value)

    return call
