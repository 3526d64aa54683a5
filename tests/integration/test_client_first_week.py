"""What a new user meets: early workers, time limits, copied options (findings U4, U8, U9)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import nexo
from nexo.errors import InvalidInput, InvalidOption
from nexo.types import AsyncJob, AsyncStreamRecord, Job
from tests.timing import eventually, wait_until


async def test_a_worker_may_start_before_its_queue(
    aclient: nexo.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """U8: it waits for the queue, and says so once."""
    done: list[int] = []

    @aclient.queue("later", int).worker()
    async def work(job: AsyncJob[int]) -> None:
        done.append(job.value)

    caplog.set_level(logging.WARNING, "nexo.client")
    async with await work.start() as subscription:
        await eventually(lambda: "later does not exist yet" in caplog.text)
        await (await aclient.queue("later", int).create()).push(7)
        await eventually(lambda: done == [7])
        assert caplog.text.count("does not exist yet") == 1
        await aclient.queue("later").delete()
        await eventually(lambda: not subscription.running)
        assert subscription.failure is not None


async def test_a_subscription_may_start_before_its_stream(
    aclient: nexo.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """U8: it waits for the stream, and says so once."""
    done: list[int] = []

    async def handle(record: AsyncStreamRecord[int]) -> None:
        done.append(record.value)

    caplog.set_level(logging.WARNING, "nexo.client")
    async with await aclient.stream("later", int).subscribe("g", handle) as subscription:
        assert "stream later does not exist yet" in caplog.text
        await (await aclient.stream("later", int).create()).publish(7)
        await eventually(lambda: done == [7])
        assert caplog.text.count("does not exist yet") == 1
        await aclient.stream("later").delete()
        await eventually(lambda: not subscription.running)
        assert subscription.failure is not None


async def test_a_handler_that_hangs_is_given_up(aclient: nexo.AsyncClient) -> None:
    """U9: its job is tried again, and the place is free."""
    queue = await aclient.queue("q").create(max_retries=0)

    async def hang(_: AsyncJob[Any]) -> None:
        await asyncio.Event().wait()

    async def both_dead() -> bool:
        return await queue.dlq.count() == 2

    async with await queue.subscribe(hang, concurrency=1, time_limit="20ms"):
        await queue.push(1)
        await queue.push(2)
        await eventually(both_dead)
    (last, _) = await queue.dlq.peek()
    assert "longer than 0.02 s" in last.reason


def test_a_handler_of_a_thread_that_hangs_is_given_up(client: nexo.Client) -> None:
    queue = client.queue("q").create(max_retries=0)
    release = threading.Event()

    def hang(_: Job[Any]) -> None:
        release.wait(30)

    with queue.subscribe(hang, time_limit=0.02):
        queue.push(1)
        wait_until(lambda: queue.dlq.count() == 1)
        release.set()


async def test_a_stream_handler_that_hangs_is_given_up(aclient: nexo.AsyncClient) -> None:
    stream = await aclient.stream("s").create()
    await stream.publish(1)

    async def hang(_: AsyncStreamRecord[Any]) -> None:
        await asyncio.Event().wait()

    async with await stream.subscribe("g", hang, time_limit=0.02, max_deliveries=2):
        (parked,) = await eventually(stream.group("g").parked.peek)
    assert parked.attempts == 2
    assert await stream.group("g").parked.delete(parked)
    assert not await stream.group("g").parked.delete(parked)


def test_options_of_one_thing_make_another(client: nexo.Client) -> None:
    """U8: one vocabulary."""
    first = client.stream("a").create(
        partitions=2, retention={"max_age": "1d", "max_bytes": 5_000_000}, delete_retention="1h"
    )
    second = client.stream("b").create(**first.info().options)
    assert second.info().options == first.info().options
    queue = client.queue("a").create(visibility_timeout="1m", result_ttl=5)
    assert client.queue("b").create(**queue.info().options).info().options == queue.info().options


def test_a_misspelt_option_is_named(client: nexo.Client) -> None:
    """U4: by the server too, where no type checker looks."""
    wrong: Any = {"partition": 3}
    with pytest.raises(InvalidOption, match="partition"):
        client.stream("a").create(**wrong)


def test_a_record_goes_to_the_partition_asked_for(client: nexo.Client) -> None:
    """U8."""
    stream = client.stream("s").create(partitions=3)
    assert stream.publish("x", partition=2).partition == 2
    assert stream.publish("x", key="k", headers={"a": 1}, partition=1).partition == 1
    with pytest.raises(nexo.NexoError):
        stream.publish("x", partition=3)
    with pytest.raises(InvalidInput):
        stream.publish("x", partition=-1)


async def test_partitions_asked_for_together(aclient: nexo.AsyncClient) -> None:
    stream = await aclient.stream("s").create(partitions=3)
    places = await asyncio.gather(*(stream.publish(n, partition=n % 3) for n in range(9)))
    assert [place.partition for place in places] == [n % 3 for n in range(9)]


def test_a_job_is_held_back_until_a_moment(client: nexo.Client) -> None:
    """SPEC O6."""
    queue = client.queue("q").create()
    due = datetime.now(UTC) + timedelta(hours=1)
    queue.push(1, delay=due)
    (job,) = queue.scheduled.list()
    assert abs(job.due_ms - due.timestamp() * 1_000) < 60_000
    queue.push(2, delay=datetime.now(UTC) - timedelta(hours=1))
    assert [job.value for job in queue.pop(wait=5)] == [2]
    with pytest.raises(InvalidInput, match="time zone"):
        queue.push(3, delay=datetime.fromtimestamp(time.time()))  # noqa: DTZ006
