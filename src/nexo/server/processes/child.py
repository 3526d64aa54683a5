"""One child process of the supervisor: started, watched, restarted with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

log = logging.getLogger("nexo.supervisor")

FAST_S = 5.0
"""A process that lived shorter than this is restarted with growing pauses."""
LONGEST_PAUSE_S = 5.0


class Running(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Its status once it has ended; negative: the signal that killed it."""

    def send_signal(self, number: int) -> None:
        """Send it a signal; `ProcessLookupError` if it has ended."""


class Child:
    """Keeps one process alive until `stop`."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Running]],
        may_restart: Callable[[int], bool] = lambda code: True,
    ) -> None:
        """``start()`` starts it once; an `OSError` if it cannot.

        ``may_restart(code)`` says whether a process that ended with this status is restarted.
        """
        self.name = name
        self.restarts = 0
        self._start = start
        self._may_restart = may_restart
        self._process: Running | None = None
        self._stopping = False
        self._code = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    def open(self) -> None:
        self._task = asyncio.create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), 0.0
        while True:
            started = loop.time()
            ended = await self._try_to_run()
            if self._stopping or not self._may_restart(self._code):
                return
            self.restarts += 1
            log.error("the %s process %s; restarting it", self.name, ended)
            fast = loop.time() - started < FAST_S
            pause_s = (
                min(LONGEST_PAUSE_S, pause_s * 2 + 0.05) if fast and self.restarts > 1 else 0.0
            )
            await asyncio.sleep(pause_s)

    async def _try_to_run(self) -> str:
        """Run it once; returns how it ended. One that cannot be started counts as ended."""
        try:
            return f"ended with {await self._run()}"
        except OSError as error:
            return f"could not be started ({error.strerror or error})"

    async def _run(self) -> int:
        self._process = await self._start()
        if self._stopping:
            self._signal(signal.SIGTERM)
        self._code = await self._process.wait()
        self._process = None
        return self._code

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it; it is started again."""
        self._signal(signal.SIGKILL)

    async def stop(self, timeout_s: float, progress: Callable[[], object] = lambda: None) -> bool:
        """End it, gently first; returns whether it ended by itself and without an error.

        It is killed once ``progress()`` has stayed the same for ``timeout_s``.
        """
        self._stopping = True
        self._signal(signal.SIGTERM)
        if self._task is None:
            return True
        before = None
        while not (await asyncio.wait([self._task], timeout=timeout_s))[0]:
            if (now := progress()) == before:
                log.error("the %s process did not stop in time; killing it", self.name)
                self._signal(signal.SIGKILL)
                await self._task
                return False
            before = now
            log.info("the %s process is still writing; waiting for it", self.name)
        return self._code in (0, -signal.SIGTERM)  # SIGTERM ends it by itself before it serves
