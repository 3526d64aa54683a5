# Generated from _async/handling.py by tools/unasync.py; edit that file instead.
"""Shared by subscriptions, consumers and clients: closing, handler loops, asking ahead."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from nexo.client._sync import runtime
from nexo.client.checks import function, positive_s, seconds, whole
from nexo.errors import NexoError
from nexo.options.units import Duration


class Closing(ABC):
    """Is entered as it is and closed at the end.

    If an error ended it, that is raised rather than a failure to close.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except NexoError:
            if error is None:
                raise

    @abstractmethod
    def close(self) -> None: ...


log = logging.getLogger("nexo.client")

RENEWALS_PER_LEASE = 3
MAX_CONCURRENCY = 10_000
_CLOSE_S = 5.0


class HandlerLoop(Closing):
    """Takes jobs or records in a task of its own, and calls a handler with each."""

    def __init__(
        self, handler: Callable[[Any], Any], concurrency: int, time_limit: Duration | None
    ) -> None:
        function(handler)
        self._handler = handler
        self.concurrency = whole(concurrency, "concurrency", 1, MAX_CONCURRENCY)
        self._limit_s = None if time_limit is None else positive_s(time_limit, "time_limit")
        self._stopping = runtime.Event()
        self._task: runtime.Task | None = None
        self._forget_hook: Callable[[], None] = lambda: None
        self.failure: Exception | None = None
        """Why it ended by itself, such as a deleted queue or stream."""

    @property
    def running(self) -> bool:
        """Whether it still takes jobs or records."""
        return self._task is not None and not self._task.done()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it has ended; False if ``timeout`` ran out first.

        Raises `failure` if it ended by itself.
        """
        ended = self._task is None or self._task.join(seconds(timeout))
        if ended and self.failure is not None:
            raise self.failure
        return ended

    @abstractmethod
    def close(self, timeout: Duration | None = None) -> None:
        """End it; running handlers are waited for, up to ``timeout``."""

    def _ends(self, where: str, error: Exception) -> None:
        """Keep the error for `wait`; logged too, because nobody may be waiting."""
        trace = None if isinstance(error, NexoError) else error
        log.error("the subscription to %s ends: %s", where, error, exc_info=trace)
        self.failure = error
        self._stopping.set()

    def _client_closes(self) -> None:
        """End without waiting: a handler that hangs must not keep the client open."""
        self.close(_CLOSE_S)


class AskedAhead:
    """A long poll under way, or what it brought."""

    __slots__ = ("arrived_s", "poll")

    def __init__(self, poll: Any) -> None:
        self.poll = poll
        self.arrived_s: float | None = None
        """When its reply came."""
        poll.on_reply(self._arrived)

    def _arrived(self) -> None:
        self.arrived_s = runtime.now_s()

    def has_waited(self, before_s: float) -> bool:
        """Whether its reply has been here since ``before_s``."""
        return self.arrived_s is not None and self.arrived_s <= before_s
