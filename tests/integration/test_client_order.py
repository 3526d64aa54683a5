"""Requests of one connection run in the order they were made (SPEC A3; finding F7)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest

import nexo
from nexo import AsyncClient
from nexo.errors import NotFound


async def test_no_request_of_a_queue_overtakes_a_push(aclient: AsyncClient) -> None:
    """Every other request of the queue broker sees what was pushed before it."""
    queue = aclient.queue("jobs")
    await queue.create()
    looks: list[Callable[[], Awaitable[int]]] = [
        lambda: _scheduled(queue),
        lambda: _listed(aclient, "scheduled"),
    ]
    for count, look in enumerate(looks, 1):
        queue.push(count, delay=60)
        assert await look() == count


async def _scheduled(queue: nexo.types.AsyncQueue[int]) -> int:
    return len(await queue.scheduled.list())


async def _listed(client: AsyncClient, field: str) -> int:
    (info,) = await client.queue_infos()
    return int(getattr(info, field))


async def test_a_dead_letter_is_not_seen_alive_by_a_look_at_the_dead(aclient: AsyncClient) -> None:
    queue = aclient.queue("jobs")
    await queue.create(max_retries=0)
    await queue.push(1)
    (job,) = await queue.pop()
    job.ack()
    assert (await aclient.queue_infos())[0].working == 0
    queue.push(2)
    assert await queue.dlq.count() == 0
    assert (await aclient.queue_infos())[0].waiting == 1


async def test_a_fetch_does_not_overtake_a_publish(aclient: AsyncClient) -> None:
    stream = aclient.stream("events")
    await stream.create()
    async with stream.consume("g") as consumer:
        stream.publish("first")
        assert [record.value for record in await consumer.fetch(wait=0)] == ["first"]


async def test_a_fetch_does_not_overtake_a_publish_whose_partition_is_not_known(
    aclient: AsyncClient,
) -> None:
    """How many partitions there are is asked for first; what follows waits for that."""
    await aclient.stream("events").create(partitions=4)
    async with nexo.AsyncClient(str(aclient.address)) as other:
        stream = other.stream("events")
        async with stream.consume("g") as consumer:
            stream.publish("first", key="a")
            assert [record.value for record in await consumer.fetch(wait=0)] == ["first"]


async def test_a_transaction_does_not_overtake_a_publish(aclient: AsyncClient) -> None:
    stream = aclient.stream("events")
    await stream.create()
    async with aclient.transaction() as tx:
        stream.publish("before")
        place = await tx.publish("events", "within")
    assert place.offset == 1


async def test_the_failure_of_a_publish_nobody_awaits_is_logged_and_raised_by_the_next(
    aclient: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    stream = aclient.stream("nowhere")
    caplog.set_level(logging.WARNING, "nexo.client")
    stream.publish("lost")
    await aclient.ping(nexo.Broker.STREAM)
    assert "nowhere" in caplog.text
    with pytest.raises(NotFound, match="nowhere"):
        stream.publish("next")
    with pytest.raises(NotFound, match="nowhere"):
        await stream.publish("after")


async def test_the_failure_of_a_push_nobody_awaits_is_raised_by_close(url: str) -> None:
    client = nexo.AsyncClient(url)
    client.queue("nowhere").push(1)
    with pytest.raises(NotFound, match="nowhere"):
        await client.close()
    await client.close()


async def test_the_failure_of_a_publish_awaited_later_is_raised_there_alone(url: str) -> None:
    async with nexo.AsyncClient(url) as client:
        stream = client.stream("nowhere")
        late = stream.publish("lost")
        await client.ping(nexo.Broker.STREAM)
        with pytest.raises(NotFound):
            await stream.publish("next")
        with pytest.raises(NotFound):
            await late
