"""The same work by the stream's peers, each with the client that Python users have for it."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.harness import Bench, Measure, latencies_us, percentile, rate_async
from benchmarks.queue_peers import in_tasks, side_by_side

VALUE = b"x" * 100
ROUND_TRIPS = 5_000
FETCH = 1_000
WINDOW = 32
"""Batches under way at once when producing, the same for everyone."""

# ruff: noqa: PLC0415 - each contender imports its own client


# -- Redis Streams -------------------------------------------------------------------


def _redis(bench: Bench, fsync: str) -> Any:
    import redis.asyncio

    return bench.enter_async(redis.asyncio.Redis(port=bench.redis(fsync).port))


async def _redis_add(client: Any, batch: int) -> None:
    pipe = client.pipeline(transaction=False)
    for _ in range(batch):
        pipe.xadd("log", {"v": VALUE})
    await pipe.execute()


def redis_produce(batch: int, mode: str, records: int, bench: Bench) -> Measure:
    """XADD in pipelines, several under way at once."""
    client = _redis(bench, "always" if mode == "file_sync" else "everysec")

    async def one_batch(_number: int) -> None:
        await _redis_add(client, batch)

    return side_by_side(bench, batch, records, one_batch, WINDOW)


def redis_consume(records: int, bench: Bench) -> Measure:
    """XREADGROUP and XACK by a new group, a thousand at a time, both in one pipeline."""
    client = _redis(bench, "everysec")
    count = bench.scaled(records)

    async def fill() -> None:
        for _ in range(max(1, count // 1_000)):
            await _redis_add(client, 1_000)

    bench.run(fill())
    number = 0

    async def drain(group: str) -> None:
        await client.xgroup_create("log", group, id="0")
        got = 0
        ids: list[bytes] = []
        while got < count:
            pipe = client.pipeline(transaction=False)
            if ids:
                pipe.xack("log", group, *ids)
            pipe.xreadgroup(group, "one", {"log": ">"}, count=FETCH)
            *_, ((_, taken),) = await pipe.execute()
            ids = [entry_id for entry_id, _ in taken]
            got += len(ids)
        await client.xack("log", group, *ids)

    def measure() -> float:
        nonlocal number
        number += 1
        return bench.run(rate_async(count, drain(f"group{number}")))

    return measure


def redis_tasks(tasks: int, records: int, fsync: str, bench: Bench) -> Measure:
    """Many tasks that each await one XADD, over a pool of connections."""
    import redis.asyncio

    port = bench.redis(fsync).port
    pool = redis.asyncio.BlockingConnectionPool(port=port, max_connections=50, timeout=None)
    client: Any = bench.enter_async(redis.asyncio.Redis.from_pool(pool))
    return in_tasks(bench, tasks, bench.scaled(records), lambda: client.xadd("log", {"v": VALUE}))


def redis_round_trip(fsync: str, share: float, bench: Bench) -> Measure:
    """One XADD after another by the sync client."""
    import redis

    client: Any = bench.enter(redis.Redis(port=bench.redis(fsync).port))
    count = bench.scaled(ROUND_TRIPS)
    return lambda: percentile(latencies_us(count, lambda: client.xadd("log", {"v": VALUE})), share)


# -- NATS JetStream ------------------------------------------------------------------


def _jetstream(bench: Bench) -> Any:
    import nats

    url = bench.nats().url

    async def connect() -> Any:
        stream = (await nats.connect(url)).jetstream(publish_async_max_pending=100_000)
        await stream.add_stream(name="log", subjects=["log"])
        return stream

    return bench.run(connect())


async def _jetstream_add(stream: Any, batch: int) -> None:
    pending = [await stream.publish_async("log", VALUE) for _ in range(batch)]
    await asyncio.gather(*pending)


def jetstream_produce(batch: int, records: int, bench: Bench) -> Measure:
    """Asynchronous publishes, acks awaited by the batch."""
    stream = _jetstream(bench)

    async def one_batch(_number: int) -> None:
        await _jetstream_add(stream, batch)

    return side_by_side(bench, batch, records, one_batch, WINDOW)


def jetstream_consume(records: int, bench: Bench) -> Measure:
    """Pull a thousand at a time with a new consumer; one ack is for all before it, too."""
    from nats.js.api import AckPolicy, ConsumerConfig

    stream = _jetstream(bench)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * FETCH)
    count = bench.scaled(records)

    async def fill() -> None:
        for _ in range(max(1, count // 1_000)):
            await _jetstream_add(stream, 1_000)

    bench.run(fill())
    number = 0

    async def drain(name: str) -> None:
        subscription = await stream.pull_subscribe("log", name, config=config)
        got = 0
        while got < count:
            taken = await subscription.fetch(min(FETCH, count - got), timeout=30)
            await taken[-1].ack()
            got += len(taken)

    def measure() -> float:
        nonlocal number
        number += 1
        return bench.run(rate_async(count, drain(f"group{number}")))

    return measure


def jetstream_tasks(tasks: int, records: int, bench: Bench) -> Measure:
    """Many tasks that each await the ack of one message."""
    stream = _jetstream(bench)
    return in_tasks(bench, tasks, bench.scaled(records), lambda: stream.publish("log", VALUE))
