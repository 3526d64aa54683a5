"""Handlers that want what was sent, and nothing else: the form that the documents show."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, Protocol, TypeVar

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
    works as a decorator below ``@queue.worker()``. Wrapping twice changes nothing.
    """
    function(handler)
    return handler if isinstance(handler, _ByValue) else _ByValue(handler)


class _ByValue(Generic[T, R]):
    def __init__(self, handler: Callable[[T], R]) -> None:
        update_wrapper(self, handler)
        self._handler = handler

    def __call__(self, carrier: Carrier[T]) -> R:
        return self._handler(carrier.value)
