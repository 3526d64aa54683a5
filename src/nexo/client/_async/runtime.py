"""Concurrency primitives of the brokers' clients, on asyncio; the sync twin uses threads.

The generated code keeps these calls and loses its ``await``, so everything here must make
sense for a thread too. In particular nothing is cancelled from outside: a loop is asked to
stop with an `Event` and its long poll is cut short with ``poll.cancel()``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from signal import SIGINT, SIGTERM
from typing import Any, TypeVar

T = TypeVar("T")


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


now_s = time.monotonic
sleep = asyncio.sleep
DONE: Awaitable[None] = _Done()
"""Returned by calls that finish at once, because callers may await them."""


class Mutex(asyncio.Lock):
    """Held with ``async with``."""


class Event(asyncio.Event):
    """A flag to wait for."""

    async def wait(self, timeout_s: float | None = None) -> bool:  # type: ignore[override]
        """Wait until set; False if the time ran out first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await super().wait()
        return self.is_set()


class Task:
    """Work that runs concurrently with the caller."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def done(self) -> bool:
        return self._task.done()

    def is_current(self) -> bool:
        """Whether the caller runs in it, and so must not join it."""
        return asyncio.current_task() is self._task

    async def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end and raise its error; False if the time ran out first."""
        if not self._task.done():  # its loop may be gone otherwise
            await asyncio.wait({self._task}, timeout=timeout_s)
        ended = self._task.done()
        if ended and not self._task.cancelled():
            self._task.result()
        return ended


def spawn(work: Callable[..., Awaitable[object]], *args: Any, name: str | None = None) -> Task:
    """Run ``work(*args)`` concurrently, until it returns."""

    async def run() -> None:
        await work(*args)

    return Task(asyncio.get_running_loop().create_task(run(), name=name))


async def invoke(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a user's handler, which may be a plain function or an async one."""
    result = handler(*args)
    return await result if inspect.isawaitable(result) else result


async def invoke_within(limit_s: float | None, handler: Callable[..., Any], *args: Any) -> Any:
    """`invoke` with a time limit; then the handler is cancelled, and `TimeoutError` raised."""
    if limit_s is None:
        return await invoke(handler, *args)
    try:
        async with asyncio.timeout(limit_s) as scope:
            return await invoke(handler, *args)
    except TimeoutError:
        if not scope.expired():
            raise  # the handler's own
        raise TimeoutError(f"the handler ran longer than {limit_s:g} s") from None


def is_failure(error: BaseException) -> bool:
    """Whether the handler failed with it, rather than being stopped by its caller.

    A cancelled task of the handler's own counts as its failure.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, KeyboardInterrupt | GeneratorExit)


class Workers:
    """At most ``limit`` pieces of work at once."""

    def __init__(self, limit: int, name: str = "nexo-worker") -> None:
        self._free = asyncio.Semaphore(limit)
        self._name = name
        self._running: set[asyncio.Task[None]] = set()

    async def start(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Wait for a free place, then run ``work(*args)`` in it; ``work`` must not raise."""
        await self._free.acquire()
        self._begin(work, args)

    async def start_next(
        self, take: Callable[[], T | None], work: Callable[[T], Awaitable[object]]
    ) -> None:
        """Wait for a free place, then run ``work`` in it
        with what ``take`` returns, if anything.
        """
        await self._free.acquire()
        item = take()
        if item is None:
            self._free.release()
        else:
            self._begin(work, (item,))

    def _begin(self, work: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(work, args), name=self._name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def is_current(self) -> bool:
        """Whether the caller runs in one of them, and so must not wait for all."""
        return asyncio.current_task() in self._running

    async def _run(self, work: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        try:
            await work(*args)
        finally:
            self._free.release()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs; False if the time ran out first."""
        if not self._running:
            return True
        _, still = await asyncio.wait(set(self._running), timeout=timeout_s)
        return not still


class StopSignal:
    """SIGTERM or Ctrl-C, caught from its creation on. For use in ``with``."""

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
        """Let `wait` return as if a signal had arrived."""
        self._stop.set()

    async def wait(self) -> None:
        """Return when the process is asked to stop."""
        await self._stop.wait()


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread."""
    return await asyncio.to_thread(work)
