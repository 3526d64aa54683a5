"""Waits for the signals that ask a worker to stop; the sync twin is written by hand."""

from __future__ import annotations

import asyncio
from signal import SIGINT, SIGTERM


class StopSignal:
    """Heard from the moment it is made: SIGTERM or Ctrl-C. For use in ``with``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (SIGTERM, SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)

    def __enter__(self) -> StopSignal:
        return self

    def __exit__(self, *exc: object) -> None:
        for number in (SIGTERM, SIGINT):
            self._loop.remove_signal_handler(number)

    def set(self) -> None:
        """Let `wait` return as if a signal had come."""
        self._stop.set()

    async def wait(self) -> None:
        """Return when the process is asked to stop."""
        await self._stop.wait()
