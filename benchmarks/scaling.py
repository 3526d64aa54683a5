"""How throughput changes with subscribers, consumers, message size and batch size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.curves import Bar, Curve, Limit, Probe
from benchmarks.harness import Bench, rate_async
from benchmarks.pubsub_raw import DIALECTS, FanOut

SUBSCRIBERS = (1, 10, 100, 1_000)
CONSUMERS = (1, 3, 10, 30, 100)
SIZES = (16, 256, 4_096, 65_536, 1_048_576)
BATCHES = (1, 10, 100, 1_000, 10_000)

DELIVERIES = 200_000
CONSUMED = 100_000
TAKEN = 100
PUBLISHED_BYTES = 64 * 1024**2
BATCH_BYTES = 256 * 1024
VALUE = b"x" * 100
SIDE_BY_SIDE = 8

_DELIVERY_BYTES = DIALECTS["nexo"].delivery_bytes
_BURST = 100

# ruff: noqa: PLC0415 - each contender imports its own client


def curves() -> list[Curve]:
    return [
        Curve(
            "subscribers", "Pub/sub fan-out, 100 B messages, raw sockets",
            "subscribers", "deliveries/s", _fan_outs,
            [
                Limit("loopback bandwidth",
                      lambda limits, _: limits["loopback_bytes_per_s"] / _DELIVERY_BYTES),
                Limit("one system call each",
                      lambda limits, _: 1e6 / limits["syscall_us"]),
            ],
            [Bar("pubsub, cost of a delivery with 1,000 subscribers ÷ with 10 (linear: 1)",
                 f"bursts of {_BURST}", small=10, durability="none")],
        ),
        Curve(
            "consumers", "Taking and acking 100 B messages, 100 at a time",
            "consumers", "msg/s", _consumers,
            [_bandwidth_of(len(VALUE)),
             Limit("two round trips per 100",
                   lambda limits, _: TAKEN * 1e6 / (2 * limits["round_trip_us"]))],
        ),
        Curve(
            "sizes", "Publishing to a stream in batches of up to 256 KiB",
            "message size in bytes", "bytes/s", _sizes,
            [Limit("loopback bandwidth", lambda limits, _: limits["loopback_bytes_per_s"]),
             Limit("disk, write and sync", lambda limits, _: limits["disk_bytes_per_s"])],
        ),
        Curve(
            "batches", "Publishing 100 B messages to a stream",
            "messages per batch", "msg/s", _batches,
            [_bandwidth_of(len(VALUE)),
             Limit("one round trip per batch",
                   lambda limits, x: x * 1e6 / limits["round_trip_us"])],
        ),
    ]  # fmt: skip


def _bandwidth_of(size: int) -> Limit:
    return Limit("loopback bandwidth", lambda limits, _: limits["loopback_bytes_per_s"] / size)


def _client(bench: Bench) -> Any:
    import nexo

    return bench.enter_async(nexo.AsyncClient(bench.nexo().url))


async def _times(count: int, work: Callable[[], Awaitable[object]]) -> None:
    for _ in range(count):
        await work()


async def _side_by_side(tasks: int, count: int, work: Callable[[], Awaitable[object]]) -> None:
    """``count`` pieces of work in all, by several tasks."""
    await asyncio.gather(*(_times(count // tasks, work) for _ in range(tasks)))


# -- subscribers -----------------------------------------------------------------------


def _fan_outs(bench: Bench) -> Mapping[int, Probe]:
    return {count: _fan_out(bench, count) for count in SUBSCRIBERS}


def _fan_out(bench: Bench, subscribers: int) -> Probe:
    fan = bench.enter(FanOut(DIALECTS["nexo"], bench.nexo().port, subscribers))
    deliveries = max(1, bench.scaled(DELIVERIES) // subscribers)

    def probe() -> Mapping[str, float]:
        return {
            f"bursts of {_BURST}": fan.deliver(max(4, deliveries // _BURST), _BURST, 4),
            "one at a time": fan.deliver(max(20, deliveries // 100), 1, 1),
        }

    return probe


# -- consumers -------------------------------------------------------------------------


def _consumers(bench: Bench) -> Mapping[int, Probe]:
    client = _client(bench)
    total = bench.scaled(CONSUMED)
    stream = bench.run(client.stream("log", bytes).create(retention={"max_bytes": 0}))
    queue = bench.run(client.queue("work", bytes).create(persistence="file_async"))
    bench.run(_times(total // 1_000, lambda: stream.publish_many([VALUE] * 1_000)))
    groups = iter(range(10**9))

    def probe(count: int) -> Mapping[str, float]:
        bench.run(_times(total // 1_000, lambda: queue.push_many([VALUE] * 1_000)))
        group = f"group{next(groups)}"
        return {
            "stream, one shared group": bench.run(_drain_stream(stream, group, count, total)),
            "queue": bench.run(_drain_queue(queue, count, total)),
        }

    return {count: partial(probe, count) for count in CONSUMERS}


async def _drain_stream(stream: Any, group: str, consumers: int, total: int) -> float:
    left = total

    async def consume() -> None:
        nonlocal left
        async with stream.consume(group, batch=TAKEN) as consumer:
            while left > 0:
                records = await consumer.fetch(wait=0)
                if len(records):
                    left -= len(records.payloads())
                    await records.ack()

    await stream.seek(group, "beginning")
    return await rate_async(total, asyncio.gather(*(consume() for _ in range(consumers))))


async def _drain_queue(queue: Any, workers: int, total: int) -> float:
    async def work() -> None:
        while jobs := await queue.pop(TAKEN):
            jobs.values()
            await jobs.ack()

    return await rate_async(total, asyncio.gather(*(work() for _ in range(workers))))


# -- sizes -----------------------------------------------------------------------------


def _sizes(bench: Bench) -> Mapping[int, Probe]:
    client = _client(bench)
    return {size: _published(bench, client, size) for size in SIZES}


def _published(bench: Bench, client: Any, size: int) -> Probe:
    batch = [b"x" * size] * max(1, BATCH_BYTES // size)
    batch_bytes = size * len(batch)
    batches = max(SIDE_BY_SIDE, bench.scaled(PUBLISHED_BYTES) // batch_bytes)
    batches -= batches % SIDE_BY_SIDE
    streams = {
        mode: bench.run(
            client.stream(f"{mode}{size}", bytes).create(
                persistence=mode, retention={"max_bytes": 4 * PUBLISHED_BYTES}
            )
        )
        for mode in ("file_async", "file_sync")
    }

    def publish(stream: Any) -> float:
        work = _side_by_side(SIDE_BY_SIDE, batches, lambda: stream.publish_many(batch))
        return bench.run(rate_async(batches * batch_bytes, work))

    return lambda: {mode: publish(stream) for mode, stream in streams.items()}


# -- batches ---------------------------------------------------------------------------


def _batches(bench: Bench) -> Mapping[int, Probe]:
    client = _client(bench)
    stream = bench.run(
        client.stream("log", bytes).create(retention={"max_bytes": 4 * PUBLISHED_BYTES})
    )
    return {size: partial(_probe_batches, bench, stream, size) for size in BATCHES}


def _probe_batches(bench: Bench, stream: Any, size: int) -> Mapping[str, float]:
    values = [VALUE] * size
    count = max(SIDE_BY_SIDE * 2, min(bench.scaled(5_000), bench.scaled(1_000_000) // size))
    count -= count % SIDE_BY_SIDE

    def publish(tasks: int) -> float:
        work = _side_by_side(tasks, count, lambda: stream.publish_many(values))
        return bench.run(rate_async(count * size, work))

    return {"one after another": publish(1), f"{SIDE_BY_SIDE} at once": publish(SIDE_BY_SIDE)}
