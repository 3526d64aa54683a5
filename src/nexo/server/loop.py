"""The event loop everything runs on, and the end of its turns: services, then syncs, then replies.

It is uvloop where that is installed.

A request passes all three in one turn: each would cost a turn of its own, with a look at every
socket in between. A lone client does not even wait for the end of the turn: as long as the same
connection is read again and again, its turn ends with its read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


log = logging.getLogger("nexo.host")

Step: TypeAlias = Callable[[], None]
_ROUNDS = 2
"""What the end of a service's turn asks for is done in the same turn, but not what that asks for:
sockets must not wait for ever."""


class LoopTurn:
    """One per loop. A step is called once, in the turn it was asked for, or the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = False
        """`_end` will be called."""
        self.reading = self.asked = False
        self._last: object = None
        """Whose requests asked for something last."""
        self._services: list[Step] = []
        self._syncs: list[Step] = []
        self._replies: list[Step] = []

    def soon(self, step: Step) -> None:
        """After all requests of this turn."""
        self._add(self._services, step)

    def sync(self, step: Step) -> None:
        """After what services do at the end of the turn."""
        self._add(self._syncs, step)

    def reply(self, step: Step) -> None:
        """After the syncs, which may answer requests."""
        self._add(self._replies, step)

    def read(self, reader: object) -> None:
        """The requests of ``reader`` have run, and have asked for something."""
        alone, self._last = reader is self._last, reader
        if alone and not self._due:
            self._end()
        else:
            self._schedule()

    def _add(self, steps: list[Step], step: Step) -> None:
        steps.append(step)
        self.asked = True
        if not self.reading:
            self._schedule()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._due = True
        self.end_services()
        if self._syncs:
            _run(self._syncs)
        if self._replies:
            _run(self._replies)
        self._due = False
        self.asked = bool(self._services or self._syncs or self._replies)
        if self.asked:
            self._schedule()

    def end_services(self) -> None:
        """Do what services asked for, without syncs and replies."""
        rounds = 0
        while self._services and rounds < _ROUNDS:
            rounds += 1
            _run(self._services)

    def abandon(self) -> None:
        """Forget what was asked for."""
        for steps in (self._services, self._syncs, self._replies):
            steps.clear()


def _run(steps: list[Step]) -> None:
    now = steps[:]
    steps.clear()
    for step in now:
        try:
            step()
        except Exception:  # the other steps of this turn are not lost with it
            log.exception("the end of a turn failed")
