"""One publisher and one subscriber with the Python clients that users take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.harness import Bench, Measure, rate_async

TOPIC = "bench/one/one"
PAYLOAD = b"x" * 100
BURST = 1_000
AHEAD = 4_000

Publish = Callable[[int], Awaitable[object]]
"""Publishes that many messages, as fast as the client allows."""


class Arrivals:
    """Counts what the subscriber got."""

    def __init__(self) -> None:
        self.count = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        if self.count == self._wanted:
            self._reached.set()

    async def reach(self, wanted: int) -> None:
        """Wait until that many have arrived in all."""
        if self.count < wanted:
            self._wanted = wanted
            self._reached.clear()
            await asyncio.wait_for(self._reached.wait(), 30)


async def _exchange(publish: Publish, arrivals: Arrivals, total: int) -> None:
    """Bursts one after another, with at most ``AHEAD`` messages under way."""
    start = arrivals.count
    for sent in range(BURST, total + BURST, BURST):
        await publish(BURST)
        await arrivals.reach(start + min(sent - AHEAD, total))
    await arrivals.reach(start + total)


def prepare(bench: Bench, opened: Callable[[str, Arrivals], Any], url: str) -> Measure:
    """A contender from its client's context."""
    arrivals = Arrivals()
    publish: Publish = bench.enter_async(opened(url, arrivals))
    total = bench.scaled(50_000)
    return lambda: bench.run(rate_async(total, _exchange(publish, arrivals, total)))


@asynccontextmanager
async def nexo(url: str, arrivals: Arrivals) -> AsyncIterator[Publish]:
    import nexo as package  # noqa: PLC0415

    async with package.AsyncClient(url) as client:
        subscription = await client.pubsub.subscribe(TOPIC)
        reader = asyncio.create_task(_read(subscription, arrivals))

        async def publish(count: int) -> None:
            await client.pubsub.publish_many(TOPIC, [PAYLOAD] * count)

        yield publish
        reader.cancel()


async def _read(messages: Any, arrivals: Arrivals) -> None:
    async for _ in messages:
        arrivals.add()


@asynccontextmanager
async def redis(url: str, arrivals: Arrivals) -> AsyncIterator[Publish]:
    import redis.asyncio as package  # noqa: PLC0415

    async with package.Redis.from_url(url) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(TOPIC)

        async def read() -> None:
            async for message in pubsub.listen():
                if message["type"] == "message":
                    arrivals.add()

        reader = asyncio.create_task(read())

        async def publish(count: int) -> None:
            pipeline = client.pipeline(transaction=False)
            for _ in range(count):
                pipeline.publish(TOPIC, PAYLOAD)
            await pipeline.execute()

        yield publish
        reader.cancel()


@asynccontextmanager
async def nats(url: str, arrivals: Arrivals) -> AsyncIterator[Publish]:
    import nats as package  # noqa: PLC0415

    client = await package.connect(url)

    async def on_message(_: object) -> None:
        arrivals.add()

    await client.subscribe("bench.one.one", cb=on_message)
    await client.flush()

    async def publish(count: int) -> None:
        for _ in range(count):
            await client.publish("bench.one.one", PAYLOAD)

    yield publish
    await client.close()


@asynccontextmanager
async def mosquitto(url: str, arrivals: Arrivals) -> AsyncIterator[Publish]:
    import aiomqtt as package  # noqa: PLC0415

    async with package.Client("127.0.0.1", int(url.rpartition(":")[2])) as client:
        await client.subscribe(TOPIC)

        async def read() -> None:
            async for _ in client.messages:
                arrivals.add()

        reader = asyncio.create_task(read())

        async def publish(count: int) -> None:
            for _ in range(count):
                await client.publish(TOPIC, PAYLOAD)

        yield publish
        reader.cancel()
