"""The store against Redis: GET and SET of 100 bytes, from one loop and from many tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks.harness import Bench, Contender, Measure, Row, rate, rate_async

VALUE = b"x" * 100
KEYS = [f"key:{n}" for n in range(1_000)]
LOOP_CALLS = 20_000
TASK_CALLS = 50_000

_IN_MEMORY = "nothing on disk"


def rows() -> list[Row]:
    return [
        *(_loop_row(command) for command in ("GET", "SET")),
        *(_tasks_row(command, tasks) for command in ("GET", "SET") for tasks in (50, 500)),
    ]


def _loop_row(command: str) -> Row:
    return Row(
        f"store {command}, one sync client in a loop", "op/s",
        ours=Contender("nexo", partial(_nexo_loop, command)),
        peers=[Contender("redis-py", partial(_redis_loop, command))],
        bar=1.4, durability=_IN_MEMORY,
    )  # fmt: skip


def _tasks_row(command: str, tasks: int) -> Row:
    return Row(
        f"store {command}, {tasks} tasks", "op/s",
        ours=Contender("nexo", partial(_nexo_tasks, command, tasks)),
        peers=[Contender("redis.asyncio", partial(_redis_tasks, command, tasks))],
        bar=8.0, durability=_IN_MEMORY,
    )  # fmt: skip


# -- one call after another -----------------------------------------------------


def _nexo_loop(command: str, bench: Bench) -> Measure:
    import nexo  # noqa: PLC0415 - each contender imports its own client

    store = bench.enter(nexo.connect(bench.nexo().url)).store
    store.mset(dict.fromkeys(KEYS, VALUE))
    return _in_loop(bench, store.get if command == "GET" else partial(_set, store.set))


def _redis_loop(command: str, bench: Bench) -> Measure:
    import redis  # noqa: PLC0415

    client = bench.enter(redis.Redis(port=bench.redis().port))
    client.mset(dict.fromkeys(KEYS, VALUE))
    return _in_loop(bench, client.get if command == "GET" else partial(_set, client.set))


def _set(set_key: Callable[[str, bytes], object], key: str) -> object:
    return set_key(key, VALUE)


def _in_loop(bench: Bench, call: Callable[[str], object]) -> Measure:
    count = bench.scaled(LOOP_CALLS)

    def work() -> None:
        for n in range(count):
            call(KEYS[n % len(KEYS)])

    return lambda: rate(count, work)


# -- many tasks at once -----------------------------------------------------------


def _nexo_tasks(command: str, tasks: int, bench: Bench) -> Measure:
    import nexo  # noqa: PLC0415

    store = bench.enter_async(nexo.AsyncClient(bench.nexo().url)).store
    bench.run(store.mset(dict.fromkeys(KEYS, VALUE)))
    return _in_tasks(
        bench, tasks, store.get if command == "GET" else partial(_set_async, store.set)
    )


def _redis_tasks(command: str, tasks: int, bench: Bench) -> Measure:
    import redis.asyncio  # noqa: PLC0415

    # Its pool gives up at 100 connections; waiting for one of 50 is as fast as one per task.
    pool = redis.asyncio.BlockingConnectionPool(
        port=bench.redis().port, max_connections=50, timeout=None
    )
    client = bench.enter_async(redis.asyncio.Redis(connection_pool=pool))
    bench.run(_fill(client))
    call = client.get if command == "GET" else partial(_set_async, client.set)
    return _in_tasks(bench, tasks, call)


async def _fill(client: Any) -> None:
    await client.mset(dict.fromkeys(KEYS, VALUE))


async def _set_async(set_key: Callable[[str, bytes], Awaitable[object]], key: str) -> None:
    await set_key(key, VALUE)


def _in_tasks(bench: Bench, tasks: int, call: Callable[[str], Awaitable[object]]) -> Measure:
    each = max(1, bench.scaled(TASK_CALLS) // tasks)

    async def one(first: int) -> None:
        for n in range(first, first + each):
            await call(KEYS[n % len(KEYS)])

    async def all_of_them() -> float:
        work = asyncio.gather(*(one(7 * n) for n in range(tasks)))
        return await rate_async(each * tasks, work)

    return lambda: bench.run(all_of_them())
