"""kill -9 of a real server under topics: every input gives one output (SPEC G3, H2, H3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import nexo
from nexo.errors import ConnectionLost, Fenced, NexoError, TransactionAborted
from nexo.testing import Process
from nexo.topics import (
    AsyncAdminClient,
    AsyncConsumer,
    AsyncExactlyOnceContext,
    AsyncOnceTransaction,
    AsyncProducer,
)

KILLS = 3


async def with_kills(served: Process, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` while the server is killed and started again a few times."""
    running = asyncio.ensure_future(work())
    for number in range(KILLS):
        await asyncio.wait({running}, timeout=0.2 + 0.07 * number)
        await asyncio.to_thread(served.kill)
        await asyncio.to_thread(served.restart)
    async with asyncio.timeout(90):
        await running


async def everything(client: nexo.AsyncClient, topic: str) -> list[Any]:
    """Every message of a topic, read by a group of its own."""
    parts = (await AsyncAdminClient(client).describe_topic(topic)).partitions
    found: list[Any] = []
    for part in parts:
        at = 0
        while records := await client.stream(topic).read(part.partition, at):
            found += [record.value for record in records]
            at = records[-1].offset + 1
    return found


@pytest.mark.slow
async def test_an_idempotent_producer_stores_each_message_once(served: Process) -> None:
    count = 3_000
    async with nexo.AsyncClient(served.url) as client:
        await AsyncAdminClient(client).create_topic("t", 3)

        async def produce() -> None:
            async with AsyncProducer(server=client, batch_size=20, linger_ms=2) as producer:
                for number in range(count):
                    producer.send("t", number, key=f"k{number % 50}")
                    if number % 20 == 0:
                        await asyncio.sleep(0.003)

        await with_kills(served, produce)
        stored = await everything(client, "t")
    assert Counter(stored) == Counter(range(count))


@pytest.mark.slow
async def test_read_process_write_with_state_gives_each_output_once(served: Process) -> None:
    inputs = 120
    async with nexo.AsyncClient(served.url) as client:
        admin = AsyncAdminClient(client)
        await admin.create_topic("in", 2)
        await admin.create_topic("out", 2)
        async with AsyncProducer(server=client) as producer:
            for number in range(inputs):
                producer.send("in", number)
        context = AsyncExactlyOnceContext(client, name="app")

        async def process() -> None:
            async with AsyncConsumer("in", "g", server=client) as consumer:
                while await done_so_far(context) < inputs:
                    try:
                        await context.transaction(lambda tx: step(tx, consumer))
                    except (ConnectionLost, TransactionAborted, Fenced, TimeoutError):
                        continue

        await with_kills(served, process)
        outputs = await everything(client, "out")
        assert await context.get("count") == inputs
    assert sorted(outputs) == list(range(inputs))


async def step(tx: AsyncOnceTransaction, consumer: AsyncConsumer[Any]) -> None:
    message = await consumer.poll(0.5)
    if message is None:
        return
    await tx.produce("out", message.value, key=str(message.value))
    await tx.put("count", await tx.get("count", 0) + 1)
    await tx.commit(message)


async def done_so_far(context: AsyncExactlyOnceContext) -> int:
    try:
        return int(await context.get("count", 0))
    except NexoError:
        return 0
