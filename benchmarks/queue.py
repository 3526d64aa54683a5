"""The queue against RabbitMQ, Redis and JetStream: push, pop and ack, safe before the confirm."""

# ruff: noqa: A005 - the groups of rows are named for the brokers

from __future__ import annotations

import time
from functools import partial

from benchmarks import queue_peers as theirs
from benchmarks.harness import Bench, Contender, Measure, Row

VALUE = b"x" * 100
JOBS = 100_000
TASKS = 500
SINGLE_JOBS = 20_000
WAITING = 1_000_000

_SYNCED = "fsync before every confirm and ack"


def rows() -> list[Row]:
    return [
        *(_batches_row(batch) for batch in (100, 1_000)),
        Row(
            f"queue, {TASKS} tasks pushing single jobs", "job/s",
            ours=Contender("nexo", _nexo_tasks),
            peers=[Contender("aio-pika", partial(theirs.rabbit_tasks, TASKS, SINGLE_JOBS))],
            bar=10.0, durability=_SYNCED,
        ),
        Row(
            "queue, memory of 1 M waiting jobs of 64 B", "MB",
            ours=Contender("nexo", _nexo_memory), limit=400, lower_is_better=True,
            durability=_SYNCED,
        ),
        Row(
            "queue, restart with 1 M waiting jobs after kill -9", "ms",
            ours=Contender("nexo", _nexo_recovery), lower_is_better=True, durability=_SYNCED,
            slow=True,
        ),
        Row(
            "queue, cost of a job with 1 M waiting ÷ with 1,000", "×",
            ours=Contender("nexo", _nexo_growth), limit=1.5, lower_is_better=True,
            durability=_SYNCED,
        ),
    ]  # fmt: skip


def _batches_row(batch: int) -> Row:
    return Row(
        f"queue push + pop + ack, batches of {batch:,}", "job/s",
        ours=Contender("nexo", partial(_nexo_batches, batch)),
        peers=[
            Contender("aio-pika", partial(theirs.rabbit_batches, batch, JOBS // 5), bar=30),
            Contender("redis streams", partial(theirs.redis_streams, batch, JOBS // 2), bar=5),
            Contender("redis lists", partial(theirs.redis_lists, batch, JOBS // 2), bar=5),
            Contender("jetstream, no fsync", partial(theirs.jetstream, batch, JOBS // 5), bar=10),
        ],
        durability=_SYNCED, slow=batch > 100,
    )  # fmt: skip


def _nexo_batches(batch: int, bench: Bench) -> Measure:
    import nexo  # noqa: PLC0415 - each contender imports its own client

    client = bench.enter_async(nexo.AsyncClient(bench.nexo().url))
    queue = bench.run(client.queue("work", bytes).create())
    values = [VALUE] * batch

    async def one_batch(_number: int) -> None:
        await queue.push_many(values)
        jobs = await queue.pop(batch)
        assert len(jobs.values()) == batch
        await jobs.ack()

    return theirs.side_by_side(bench, batch, JOBS, one_batch)


def _nexo_tasks(bench: Bench) -> Measure:
    import nexo  # noqa: PLC0415

    client = bench.enter_async(nexo.AsyncClient(bench.nexo().url))
    queue = bench.run(client.queue("work", bytes).create())
    count = bench.scaled(SINGLE_JOBS)
    return theirs.in_tasks(bench, TASKS, count, lambda: queue.push(VALUE))


def _fill(bench: Bench, url: str, name: str, count: int) -> None:
    """A queue with so many waiting jobs, and nothing of one that was there before."""
    import nexo  # noqa: PLC0415

    async def push() -> None:
        async with nexo.AsyncClient(url) as client:
            queue = client.queue(name, bytes)
            await queue.delete()
            await queue.create()
            for _ in range(max(1, count // 1_000)):
                await queue.push_many([b"x" * 64] * 1_000)

    bench.run(push())


def _nexo_memory(bench: Bench) -> Measure:
    server = bench.nexo(dashboard=False)  # it is still loading when the rest is idle
    idle = server.memory_bytes()

    def measure() -> float:
        _fill(bench, server.url, "full", bench.scaled(WAITING))
        return (server.memory_bytes() - idle) / 1e6

    return measure


def _nexo_recovery(bench: Bench) -> Measure:
    from nexo import testing  # noqa: PLC0415

    server = bench.enter(testing.process(dashboard=False))
    _fill(bench, server.url, "full", bench.scaled(WAITING))

    def measure() -> float:
        server.kill()
        start = time.perf_counter()
        server.start()
        return (time.perf_counter() - start) * 1e3

    return measure


def _nexo_growth(bench: Bench) -> Measure:
    import nexo  # noqa: PLC0415

    url = bench.nexo().url
    client = bench.enter_async(nexo.AsyncClient(url))
    for name, waiting in (("few", 1_000), ("many", bench.scaled(WAITING))):
        _fill(bench, url, name, waiting)

    async def cost_s(name: str) -> float:
        queue, values = client.queue(name, bytes), [VALUE] * 100
        start = time.perf_counter()
        for _ in range(bench.scaled(1_000)):
            await queue.push_many(values)
            await (await queue.pop(100)).ack()
        return time.perf_counter() - start

    return lambda: bench.run(cost_s("many")) / bench.run(cost_s("few"))
