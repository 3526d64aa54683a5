"""Threads as greenlets: executors, locks and waiting, with a switch wherever a thread blocks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import greenlet

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

world_now: list[World] = []
"""The world of this process of the operating system, once there is one."""


def _world() -> World:
    return world_now[0]


class JobFuture(Future[Any]):
    """A future whose `result` lets the world go on."""

    def result(self, timeout: float | None = None) -> Any:
        _wait_for(self)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        _wait_for(self)
        return super().exception(0)


def _wait_for(future: Future[Any]) -> None:
    """Give control back until it is done."""
    process = _world().current
    if future.done() or process is None:
        return
    waiting = greenlet.getcurrent()
    future.add_done_callback(lambda _: _world().after(20_000, process.resume, waiting))
    _world().park()


def wait(futures: Iterable[Future[Any]], *_: Any, **__: Any) -> None:
    """`concurrent.futures.wait` for all."""
    for future in list(futures):
        _wait_for(future)


class SimExecutor:
    """A pool of greenlets of the process that made it."""

    def __init__(self, max_workers: int = 6, *_: Any, **__: Any) -> None:
        self._free = max_workers
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> JobFuture:
        future = JobFuture()

        def run() -> None:
            try:
                result = work(*args, **kwargs)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        process = _world().current
        if process is None:
            run()
        else:
            self.start(process, run)
        return future

    def start(self, process: Process, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                if process.alive:
                    self._end(process)

        if self._free:
            self._free -= 1
            process.job(run)
        else:
            self._waiting.append(run)

    def _end(self, process: Process) -> None:
        if self._waiting:
            process.job(self._waiting.popleft())
        else:
            self._free += 1

    def map(self, work: Callable[..., Any], *args: Iterable[Any], **_: Any) -> Iterable[Any]:
        futures = [self.submit(work, *each) for each in zip(*args, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._waiting.clear()

    def __enter__(self) -> SimExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def run_job(process: Process, executor: Any, work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run ``work`` beside the loop; the result arrives in a turn of its own."""
    loop = process.loop
    future: asyncio.Future[Any] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            result = work()
        except StopIteration as error:
            loop.call_soon_threadsafe(settle, future.set_exception, RuntimeError(repr(error)))
        except Exception as error:
            loop.call_soon_threadsafe(settle, future.set_exception, error)
        else:
            loop.call_soon_threadsafe(settle, future.set_result, result)

    if executor is None:
        executor = process.loop.__dict__.setdefault("_sim_pool", SimExecutor(6))
    executor.start(process, run)
    return future


class SimLock:
    """`threading.Lock` among greenlets."""

    def __init__(self) -> None:
        self._holder: greenlet.greenlet | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._holder is not None:
            if not blocking:
                return False
            _world().block(20_000)
        self._holder = greenlet.getcurrent()
        return True

    def release(self) -> None:
        self._holder = None

    def locked(self) -> bool:
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
