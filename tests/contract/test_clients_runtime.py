"""What both runtimes, tasks and threads, promise to the code generated between them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from nexo.client._async import runtime as on_tasks
from nexo.client._sync import runtime as on_threads

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
            if inspect.isclass(value) and value.__module__.startswith("nexo.") and name[0] != "_"
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


async def test_a_place_stays_free_if_there_is_nothing_to_do(runtime: Any) -> None:
    items, done = [None, 1, None, None, 2], list[int]()

    async def handle_async(item: int) -> None:
        done.append(item)

    handle = done.append if runtime is on_threads else handle_async
    workers = runtime.Workers(1)
    for _ in range(len(items)):
        await blocking(runtime, lambda: workers.start_next(lambda: items.pop(0), handle))
    assert await blocking(runtime, lambda: workers.drain(10))
    assert done == [1, 2]


async def test_handlers_may_be_plain_or_async() -> None:
    async def double_async(number: int) -> int:
        return number * 2

    def double(number: int) -> int:
        return number * 2

    assert await on_tasks.invoke(double_async, 2) == 4
    assert await on_tasks.invoke(double, 2) == 4
    assert on_threads.invoke(double, 2) == 4
