"""Publishes events without keeping the caller waiting.

Celery's event dispatcher publishes a buffer of events and then empties it, while its threads add
to it. An event that is added while the dispatcher waits for a broker is lost, so it must not wait.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable

from nexo.integrations.sending import BackgroundSender


class BackgroundPublisher(BackgroundSender[Callable[[], object]]):
    """Calls what publishes messages, in order, in a thread of its own."""

    def __init__(self) -> None:
        self._restart()
        _publishers.add(self)

    def _restart(self) -> None:
        super().__init__("nexo-events")
        self._pid = os.getpid()
        self._failure: Exception | None = None

    def add(self, item: Callable[[], object]) -> None:
        """Call ``item`` soon; raises what an earlier one raised in the background."""
        if self._pid != os.getpid():  # a thread does not survive a fork
            self._restart()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._closed:
            item()
            return
        super().add(item)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all was sent, or failed; in a forked process nothing is to be sent."""
        return self._pid != os.getpid() or super().flush(timeout_s)

    def send(self, items: list[Callable[[], object]]) -> None:
        try:
            for publish in items:
                publish()
        except Exception as error:  # what waits would fail too: the next caller gets the error
            self._failure = error
            self.discard()


_publishers: weakref.WeakSet[BackgroundPublisher] = weakref.WeakSet()


@atexit.register
def _flush() -> None:
    """A process that ends right after it has published something still sends it."""
    for publisher in list(_publishers):
        publisher.flush()
