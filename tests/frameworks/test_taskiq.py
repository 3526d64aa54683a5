"""taskiq on Nexo, with its own receiver (SPEC M3): tested with taskiq 0.13."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from taskiq import Context, ScheduledTask, TaskiqDepends, TaskiqScheduler
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import ProgressTracker, TaskState
from taskiq.exceptions import ResultGetError, SendTaskError

import nexo
from nexo import testing
from nexo.errors import InvalidOption
from nexo.integrations.taskiq import NexoScheduleSource, TaskiqBroker, TaskiqResultBackend
from tests.timing import eventually


@pytest.fixture
async def broker(url: str) -> AsyncIterator[TaskiqBroker]:
    broker = TaskiqBroker(url)
    broker.with_result_backend(TaskiqResultBackend(url))
    await broker.startup()
    yield broker
    await broker.shutdown()


@asynccontextmanager
async def working(broker: TaskiqBroker, **options: Any) -> AsyncIterator[None]:
    """A receiver in this event loop."""
    task = asyncio.create_task(run_receiver_task(broker, **options))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_task_returns_its_result(broker: TaskiqBroker) -> None:
    @broker.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with working(broker):
        result = await (await add.kiq(2, 3)).wait_result(timeout=20)
    assert (result.return_value, result.is_err) == (5, False)


async def test_a_failed_task_gives_its_error(
    broker: TaskiqBroker, aclient: nexo.AsyncClient
) -> None:
    @broker.task
    async def boom() -> None:
        raise ValueError("no luck")

    async with working(broker):
        result = await (await boom.kiq()).wait_result(timeout=20)
    assert result.is_err
    with pytest.raises(ValueError, match="no luck"):
        result.raise_for_error()


async def test_a_task_shows_its_name_and_is_held_until_done(
    broker: TaskiqBroker, aclient: nexo.AsyncClient
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @broker.task("slow")
    async def slow() -> None:
        began.set()
        await go_on.wait()

    sent = await slow.kiq()
    queue = aclient.queue("taskiq")
    (job,) = await queue.peek()
    assert job.headers == {"task": "slow", "id": sent.task_id}
    async with working(broker):
        await began.wait()
        assert (await queue.info()).working == 1
        go_on.set()
        await sent.wait_result(timeout=20)

        async def settled() -> bool:
            return not (await queue.info()).working

        await eventually(settled)
    assert (await queue.info()).finished_total == 1


async def test_delay_priority_and_queue_are_labels(
    broker: TaskiqBroker, aclient: nexo.AsyncClient
) -> None:
    @broker.task
    async def note() -> None: ...

    await note.kicker().with_labels(delay=60).kiq()
    await note.kicker().with_labels(priority=9).kiq()
    await note.kicker().with_labels(queue_name="other").kiq()
    (later,) = await aclient.queue("taskiq").scheduled.list()
    (urgent,) = await aclient.queue("taskiq").peek()
    assert (later.due_ms - later.pushed_ms, urgent.priority) == (60_000, 9)
    assert (await aclient.queue("other").info()).waiting == 1
    with pytest.raises(SendTaskError) as refused:
        await note.kicker().with_labels(delay="soon").kiq()
    assert isinstance(refused.value.__cause__, InvalidOption)


async def test_what_was_held_at_a_crash_runs_again(
    broker: TaskiqBroker, nexo_server: testing.Server
) -> None:
    ran: list[str] = []
    hang = asyncio.Event()

    @broker.task("work")
    async def work() -> str:
        ran.append("begun")
        if len(ran) == 1:
            await hang.wait()
        return "done"

    async with working(broker):
        sent = await work.kiq()
        await eventually(lambda: ran == ["begun"])
        await asyncio.to_thread(nexo_server.crash)
        await asyncio.to_thread(nexo_server.start)
        assert (await sent.wait_result(timeout=20)).return_value == "done"
        hang.set()
    assert ran == ["begun", "begun"]


async def test_what_was_fetched_and_not_begun_goes_back(
    broker: TaskiqBroker, aclient: nexo.AsyncClient
) -> None:
    @broker.task
    async def note() -> None: ...

    for _ in range(3):
        await note.kiq()
    listening = broker.listen()
    first = await anext(listening)
    await listening.aclose()
    queue = aclient.queue("taskiq")

    async def released() -> bool:
        return (await queue.info()).waiting == 2

    await eventually(released)
    await first.ack()  # type: ignore[misc]
    assert (await queue.info()).finished_total == 1
    assert [job.attempt for job in await queue.pop(5)] == [1, 1]


async def test_progress_and_missing_results(broker: TaskiqBroker) -> None:
    @broker.task
    async def far(progress: ProgressTracker[int] = TaskiqDepends()) -> None:  # noqa: B008
        await progress.set_progress(TaskState.STARTED, 50)

    async with working(broker):
        sent = await far.kiq()
        await sent.wait_result(timeout=20)
    found = await sent.get_progress()
    assert found is not None
    assert found.meta == 50
    assert await broker.result_backend.get_progress("nobody") is None
    with pytest.raises(ResultGetError):
        await broker.result_backend.get_result("nobody")


async def test_a_task_can_acknowledge_itself(
    broker: TaskiqBroker, aclient: nexo.AsyncClient
) -> None:
    @broker.task(ack_type="manual")
    async def by_hand(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        await context.ack()

    async with working(broker):
        await (await by_hand.kiq()).wait_result(timeout=20)
    assert (await aclient.queue("taskiq").info()).finished_total == 1


async def test_schedules_survive_and_can_be_replaced(broker: TaskiqBroker, url: str) -> None:
    source = NexoScheduleSource(url)
    await source.startup()
    hourly = ScheduledTask(
        task_name="t", labels={}, args=[1], kwargs={}, cron="0 * * * *", schedule_id="hourly"
    )
    await source.add_schedule(hourly)
    await source.add_schedule(hourly.model_copy(update={"cron": "30 * * * *"}))
    soon = datetime.now(UTC) + timedelta(hours=1)
    once = ScheduledTask(task_name="t", labels={}, args=[], kwargs={}, time=soon)
    await source.add_schedule(once)
    await source.shutdown()

    again = NexoScheduleSource(url)
    await again.startup()
    found = {each.schedule_id: each for each in await again.get_schedules()}
    assert found["hourly"].cron == "30 * * * *"
    assert found[once.schedule_id].time == soon

    @broker.task("t")
    async def task() -> None: ...

    await TaskiqScheduler(broker, [again]).on_ready(again, found[once.schedule_id])
    assert [each.schedule_id for each in await again.get_schedules()] == ["hourly"]
    await again.delete_schedule("hourly")
    assert await again.get_schedules() == []
    await again.shutdown()
