"""Long work in slices, between which requests are answered."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from nexo.errors import NexoError, internal_error
from nexo.services.service import Runtime

log = logging.getLogger("nexo.slices")

SLICE_MS = 4
"""How long requests may have to wait for a slice."""

WhenFailed: TypeAlias = Callable[[NexoError], None]


class Slices:
    """Iterators that are advanced in turn, a slice with each `run`, which ``wake_at`` asks for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[tuple[Iterator[None], WhenFailed]] = deque()

    def add(self, steps: Iterator[None], failed: WhenFailed = lambda _: None) -> None:
        """Start work of short steps, the first of them now; ``failed`` gets what one raises."""
        self._waiting.append((steps, failed))
        self.run()

    def run(self) -> None:
        """Run one slice."""
        clock = self._runtime.clock
        until_ms = clock.now_ms() + SLICE_MS
        while self._waiting and clock.now_ms() < until_ms:
            self._step(*self._waiting.popleft())
        if self._waiting:
            self._runtime.wake_at(clock.now_ms() + 1)

    def _step(self, steps: Iterator[None], failed: WhenFailed) -> None:
        try:
            next(steps)
        except StopIteration:
            return
        except NexoError as error:
            failed(error)
        except Exception:
            log.exception("long work failed")
            failed(internal_error())
        else:
            self._waiting.append((steps, failed))
