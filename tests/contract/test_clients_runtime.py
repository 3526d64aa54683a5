"""What both runtimes, tasks and threads, promise to the code generated between them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from nexo.client._async import runtime as on_tasks
from nexo.client._sync import runtime as on_threads
from nexo.errors import ConnectionLost

RUNTIMES = {"tasks": on_tasks, "threads": on_threads}


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Any:
    return RUNTIMES[request.param]


def work(runtime: Any, do: Callable[[], object]) -> Callable[[], Any]:
    """``do`` as the runtime wants its work: a coroutine function, or a plain one."""
    if runtime is on_threads:
        return do

    async def run() -> None:
        result = do()
        if inspect.isawaitable(result):
            await result

    return run


async def blocking(runtime: Any, call: Callable[[], Any]) -> Any:
    """Run a call that waits, without holding up the test's loop."""
    return await asyncio.to_thread(call) if runtime is on_threads else await call()


async def test_both_runtimes_offer_the_same_names() -> None:
    def names(module: Any) -> dict[str, list[str]]:
        shown = {
            name: value
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
        }
        return {
            name: sorted(n for n in vars(value) if not n.startswith("_"))
            for name, value in shown.items()
        }

    assert names(on_tasks) == names(on_threads)
    assert on_threads.DONE is None
    await on_tasks.DONE
    for name in ("spawn", "invoke", "sleep", "now_s", "is_failure"):
        assert callable(getattr(on_tasks, name))
        assert callable(getattr(on_threads, name))


async def test_an_event_wakes_who_waits(runtime: Any) -> None:
    event = runtime.Event()
    assert not await blocking(runtime, lambda: event.wait(0.01))
    task = runtime.spawn(work(runtime, lambda: event.wait(10)))
    event.set()
    assert event.is_set()
    assert await blocking(runtime, lambda: task.join(10))
    event.clear()
    assert not event.is_set()


async def test_join_raises_what_the_work_raised(runtime: Any) -> None:
    def fail() -> None:
        raise ValueError("broken")

    task = runtime.spawn(work(runtime, fail))
    with pytest.raises(ValueError, match="broken"):
        await blocking(runtime, lambda: task.join(10))
    assert task.done()


async def test_join_gives_up_in_time_and_leaves_the_work_running(runtime: Any) -> None:
    release = runtime.Event()
    task = runtime.spawn(work(runtime, lambda: release.wait(10)))
    assert not await blocking(runtime, lambda: task.join(0.01))
    assert not task.done()
    release.set()
    assert await blocking(runtime, lambda: task.join(10))


async def test_work_knows_whether_it_is_the_current_task(runtime: Any) -> None:
    seen: list[bool] = []
    started = runtime.Event()
    tasks: list[Any] = []

    async def look_async() -> None:
        await started.wait(10)
        seen.append(tasks[0].is_current())

    def look() -> None:
        started.wait(10)
        seen.append(tasks[0].is_current())

    tasks.append(runtime.spawn(look if runtime is on_threads else look_async))
    started.set()
    await blocking(runtime, lambda: tasks[0].join(10))
    assert seen == [True]
    assert not tasks[0].is_current()


async def test_no_more_than_the_limit_works_at_once(runtime: Any) -> None:
    lock = threading.Lock()
    running, most, done = 0, 0, 0

    def begin() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def end() -> None:
        nonlocal running, done
        with lock:
            running -= 1
            done += 1

    def piece() -> None:
        begin()
        on_threads.sleep(0.002)
        end()

    async def piece_async() -> None:
        begin()
        await asyncio.sleep(0.002)
        end()

    workers = runtime.Workers(3)
    for _ in range(20):
        await blocking(
            runtime, lambda: workers.start(piece if runtime is on_threads else piece_async)
        )
    assert await blocking(runtime, lambda: workers.drain(10))
    assert (most, done) == (3, 20)


async def test_drain_says_when_work_goes_on(runtime: Any) -> None:
    release = runtime.Event()
    workers = runtime.Workers(1)
    assert await blocking(runtime, workers.drain)
    await blocking(runtime, lambda: workers.start(work(runtime, lambda: release.wait(10))))
    assert not await blocking(runtime, lambda: workers.drain(0.01))
    release.set()
    assert await blocking(runtime, lambda: workers.drain(10))


async def test_a_queue_keeps_order_and_its_limit(runtime: Any) -> None:
    queue = runtime.LocalQueue(2)
    assert [queue.offer(n) for n in (1, 2, 3)] == [True, True, False]
    assert len(queue) == 2
    assert await blocking(runtime, queue.get) == 1
    assert queue.take_oldest() == 2
    assert queue.take_oldest() is None


async def test_a_queue_wakes_who_waits_and_says_when_nothing_comes(runtime: Any) -> None:
    queue = runtime.LocalQueue()
    with pytest.raises(TimeoutError):
        await blocking(runtime, lambda: queue.get(0.01))
    received: list[int] = []

    async def take_async() -> None:
        received.append(await queue.get(10))

    def take() -> None:
        received.append(queue.get(10))

    tasks = [runtime.spawn(take if runtime is on_threads else take_async) for _ in range(2)]
    await asyncio.sleep(0)
    queue.offer(1)
    queue.offer(2)
    for task in tasks:
        await blocking(runtime, functools.partial(task.join, 10))
    assert sorted(received) == [1, 2]


async def test_a_closed_queue_gives_what_it_has_and_then_ends(runtime: Any) -> None:
    queue = runtime.LocalQueue()
    queue.offer(1)
    queue.close()
    assert not queue.offer(2)
    assert await blocking(runtime, queue.get) == 1
    with pytest.raises(ConnectionLost, match="closed"):
        await blocking(runtime, queue.get)


async def test_a_queue_loses_nothing_when_a_waiter_is_cancelled() -> None:
    queue: on_tasks.LocalQueue[int] = on_tasks.LocalQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.offer(1)
    first.cancel()
    assert await asyncio.wait_for(second, 5) == 1


async def test_handlers_may_be_plain_or_async() -> None:
    async def double_async(number: int) -> int:
        return number * 2

    def double(number: int) -> int:
        return number * 2

    assert await on_tasks.invoke(double_async, 2) == 4
    assert await on_tasks.invoke(double, 2) == 4
    assert on_threads.invoke(double, 2) == 4
