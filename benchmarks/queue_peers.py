"""The same work by the queue's peers, each with the client that Python users have for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.harness import Bench, Measure, rate_async

VALUE = b"x" * 100
TASKS = 8
"""Batches under way at once, the same for everyone: a disk that syncs must not stand idle."""

# ruff: noqa: PLC0415 - each contender imports its own client


def in_tasks(
    bench: Bench, tasks: int, count: int, push: Callable[[], Awaitable[object]]
) -> Measure:
    """Jobs per second when ``tasks`` push one after another each."""
    each = max(1, count // tasks)

    async def one() -> None:
        for _ in range(each):
            await push()

    async def work() -> None:
        await asyncio.gather(*(one() for _ in range(tasks)))

    return lambda: bench.run(rate_async(each * tasks, work()))


def side_by_side(
    bench: Bench,
    batch: int,
    jobs: int,
    one_batch: Callable[[int], Awaitable[None]],
    tasks: int = TASKS,
) -> Measure:
    """Things per second when ``tasks`` tasks do ``one_batch`` after another each."""
    rounds = max(1, bench.scaled(jobs) // (batch * tasks))

    async def one_task(number: int) -> None:
        for _ in range(rounds):
            await one_batch(number)

    async def work() -> None:
        await asyncio.gather(*map(one_task, range(tasks)))

    return lambda: bench.run(rate_async(rounds * batch * tasks, work()))


# -- RabbitMQ: durable queue, persistent messages, publisher confirms -----------


def _rabbit_channels(bench: Bench, count: int) -> list[Any]:
    import aio_pika

    url = bench.rabbitmq().url

    async def connect() -> list[Any]:
        connection = await aio_pika.connect(url)
        return [await connection.channel(publisher_confirms=True) for _ in range(count)]

    return bench.run(connect())


def rabbit_batches(batch: int, jobs: int, bench: Bench) -> Measure:
    """Publish a batch and await all confirms; consume it with prefetch, ack it at once.

    Each task has a channel and a queue, so that one ack can stand for a batch.
    """
    import aio_pika

    channels = _rabbit_channels(bench, TASKS)
    persistent = aio_pika.DeliveryMode.PERSISTENT
    arrived: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in channels]

    async def prepare() -> None:
        for number, channel in enumerate(channels):
            await channel.set_qos(prefetch_count=batch)
            queue = await channel.declare_queue(f"work{number}", durable=True)
            await queue.consume(arrived[number].put)

    async def one_batch(number: int) -> None:
        messages = [aio_pika.Message(VALUE, delivery_mode=persistent) for _ in range(batch)]
        publish = channels[number].default_exchange.publish
        await asyncio.gather(*(publish(message, f"work{number}") for message in messages))
        for _ in range(batch):
            last = await arrived[number].get()
        await last.ack(multiple=True)

    bench.run(prepare())
    return side_by_side(bench, batch, jobs, one_batch)


def rabbit_tasks(tasks: int, jobs: int, bench: Bench) -> Measure:
    """Many tasks that each await the confirm of one message."""
    import aio_pika

    (channel,) = _rabbit_channels(bench, 1)
    bench.run(channel.declare_queue("work", durable=True))
    persistent = aio_pika.DeliveryMode.PERSISTENT

    def push() -> Awaitable[object]:
        message = aio_pika.Message(VALUE, delivery_mode=persistent)
        published: Awaitable[object] = channel.default_exchange.publish(message, "work")
        return published

    return in_tasks(bench, tasks, bench.scaled(jobs), push)


# -- Redis: appendfsync always --------------------------------------------------


def redis_streams(batch: int, jobs: int, bench: Bench) -> Measure:
    """XADD in a pipeline, XREADGROUP, XACK and XDEL."""
    import redis.asyncio

    client: Any = bench.enter_async(redis.asyncio.Redis(port=bench.redis("always").port))
    bench.run(client.xgroup_create("work", "workers", mkstream=True))

    async def one_batch(number: int) -> None:
        pipe = client.pipeline(transaction=False)
        for _ in range(batch):
            pipe.xadd("work", {"v": VALUE})
        await pipe.execute()
        ((_, taken),) = await client.xreadgroup("workers", f"{number}", {"work": ">"}, count=batch)
        ids = [job_id for job_id, _ in taken]
        pipe = client.pipeline(transaction=False)
        pipe.xack("work", "workers", *ids)
        pipe.xdel("work", *ids)
        await pipe.execute()

    return side_by_side(bench, batch, jobs, one_batch)


def redis_lists(batch: int, jobs: int, bench: Bench) -> Measure:
    """RPUSH of the batch, LMOVE to a list of those at work, DEL of that list."""
    import redis.asyncio

    client: Any = bench.enter_async(redis.asyncio.Redis(port=bench.redis("always").port))

    async def one_batch(number: int) -> None:
        await client.rpush("work", *([VALUE] * batch))
        pipe = client.pipeline(transaction=False)
        for _ in range(batch):
            pipe.lmove("work", f"mine{number}", "LEFT", "RIGHT")
        assert len(await pipe.execute()) == batch
        await client.delete(f"mine{number}")

    return side_by_side(bench, batch, jobs, one_batch)


# -- NATS JetStream: a work queue, synced as it comes (2 min): older servers know no other --


def jetstream(batch: int, jobs: int, bench: Bench) -> Measure:
    """Publish a batch and await all acks; fetch it and ack each message."""
    import nats
    from nats.js.api import RetentionPolicy

    url = bench.nats().url

    async def prepare() -> tuple[Any, list[Any]]:
        stream = (await nats.connect(url)).jetstream(publish_async_max_pending=100_000)
        await stream.add_stream(
            name="work", subjects=["work.*"], retention=RetentionPolicy.WORK_QUEUE
        )
        names = [f"work.{number}" for number in range(TASKS)]
        return stream, [await stream.pull_subscribe(name, f"w{name[5:]}") for name in names]

    stream, subscriptions = bench.run(prepare())

    async def one_batch(number: int) -> None:
        pending = [await stream.publish_async(f"work.{number}", VALUE) for _ in range(batch)]
        await asyncio.gather(*pending)
        left = batch
        while left:
            taken = await subscriptions[number].fetch(left, timeout=30)
            for message in taken:
                await message.ack()
            left -= len(taken)

    return side_by_side(bench, batch, jobs, one_batch)
