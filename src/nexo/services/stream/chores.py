"""Long work in slices, so that requests are answered in between: indexing keys, compaction."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from nexo.errors import NexoError, internal_error
from nexo.services.connection import Done
from nexo.services.stream.core import Core

log = logging.getLogger("nexo.stream")

SLICE_MS = 4
"""How long requests may have to wait for a slice."""

CallWhenReady: TypeAlias = Callable[[Done[None]], None]
"""Calls back when the work can continue, or with the error that ends it."""
Steps: TypeAlias = Iterator[CallWhenReady | None]
"""Work that can stop wherever it yields: briefly, or for a pause."""


class Chores:
    """The long work of the service. Chores take turns; a short one is done at once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: deque[tuple[Steps, Done[None]]] = deque()

    def add(self, steps: Steps, done: Done[None]) -> None:
        """Start work; ``done`` is called at its end, now or later, with its error if it failed."""
        self._waiting.append((steps, done))
        if len(self._waiting) == 1:
            self.run()
        else:
            self._core.runtime.wake_at(self._core.now_ms + 1)

    def run(self) -> None:
        """Run one slice."""
        until_ms = self._core.now_ms + SLICE_MS
        while self._waiting and self._core.now_ms < until_ms:
            self._step(*self._waiting.popleft())
        if self._waiting:
            self._core.runtime.wake_at(self._core.now_ms + 1)

    def _step(self, steps: Steps, done: Done[None]) -> None:
        try:
            pause = next(steps)
        except StopIteration:
            done(None)
        except NexoError as error:
            done(error)
        except Exception:
            log.exception("long work failed")
            done(internal_error())
        else:
            if pause is None:
                self._waiting.append((steps, done))
            else:
                pause(lambda error: self._resume(steps, done, error))

    def _resume(self, steps: Steps, done: Done[None], error: NexoError | None) -> None:
        if error is not None:
            done(error)
            return
        self._waiting.append((steps, done))
        self._core.runtime.wake_at(self._core.now_ms + 1)


def log_failure(error: NexoError | None) -> None:
    """Log the failure of work that no request waits for."""
    if error is not None:
        log.error("%s", error)
