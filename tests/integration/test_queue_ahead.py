"""Workers that ask for the next jobs while they work on the last ones (SPEC D3, D5)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import nexo
from nexo.client._async.queue.jobs import Job
from nexo.client._async.queue.queue import Queue
from tests.timing import eventually, wait_until

BATCH = 10


@pytest.fixture
async def work(aclient: nexo.AsyncClient) -> Queue[int]:
    return await aclient.queue("work", int).create()


async def working(work: Queue[int], count: int) -> bool:
    return (await work.info()).working == count


async def held_at(work: Queue[int], number: int) -> list[tuple[int, int]]:
    """What another worker gets after one that hung at a job was closed: values and attempts."""
    hangs, release = asyncio.Event(), asyncio.Event()

    async def handle(job: Job[int]) -> None:
        if job.value == number:
            hangs.set()
            await release.wait()

    await work.push_many(list(range(4 * BATCH)))
    subscription = await work.subscribe(handle, batch=BATCH, concurrency=1)
    await hangs.wait()
    ahead = BATCH if number >= BATCH // 2 else 0
    await eventually(lambda: working(work, BATCH - number + ahead))
    ending = asyncio.create_task(subscription.close())
    await eventually(lambda: working(work, 1))
    release.set()
    await ending
    assert await working(work, 0)
    return [(job.value, job.attempt) for job in await work.pop(4 * BATCH)]


@pytest.mark.parametrize("number", [2, 7])
async def test_what_was_asked_for_and_not_begun_goes_back_uncounted(
    work: Queue[int], number: int
) -> None:
    """Nothing is asked for before half of the jobs went quickly."""
    assert await held_at(work, number) == [(each, 1) for each in range(number + 1, 4 * BATCH)]


async def test_jobs_stay_in_order_and_each_runs_once(work: Queue[int]) -> None:
    seen: list[int] = []
    await work.push_many(list(range(50 * BATCH)))
    handle = lambda job: seen.append(job.value)  # noqa: E731
    async with await work.subscribe(handle, batch=BATCH, concurrency=1):
        await eventually(lambda: _is_done(work))
    assert seen == list(range(50 * BATCH))


async def _is_done(work: Queue[int]) -> bool:
    info = await work.info()
    return info.waiting == info.working == 0


def test_threads_ask_ahead_as_well(client: nexo.Client) -> None:
    work = client.queue("work", int).create()
    work.push_many(list(range(4 * BATCH)))
    hangs, release = threading.Event(), threading.Event()

    def handle(job: Any) -> None:
        if job.value == 7:
            hangs.set()
            release.wait()

    subscription = work.subscribe(handle, batch=BATCH, concurrency=1)
    assert hangs.wait(60)
    wait_until(lambda: work.info().working == BATCH - 7 + BATCH)
    ending = threading.Thread(target=subscription.close)
    ending.start()
    wait_until(lambda: work.info().working == 1)
    release.set()
    ending.join()
    found = work.pop(4 * BATCH)
    assert [(job.value, job.attempt) for job in found] == [(each, 1) for each in range(8, 40)]
