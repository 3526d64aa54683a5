"""Streams against Redis Streams and JetStream: produce, consume, single records, replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from benchmarks import stream_peers as theirs
from benchmarks.harness import Bench, Contender, Measure, Row, latencies_us, percentile
from benchmarks.queue_peers import in_tasks, side_by_side

VALUE = theirs.VALUE
RECORDS = 400_000
PEER_RECORDS = 80_000
TASKS = 500
SINGLES = 50_000
REPLAYED = 5_000_000

_BACKGROUND = "synced in background"
_SYNCED = "fsync before every reply"
_MODES = {"file_async": _BACKGROUND, "file_sync": _SYNCED}
_REDIS = {"file_async": "everysec", "file_sync": "always"}


def rows() -> list[Row]:
    return [
        *(_produce_row(batch, mode) for mode in _MODES for batch in (100, 1_000)),
        _consume_row(),
        *(_tasks_row(mode) for mode in _MODES),
        *(_round_trip_row(mode, share) for mode in _MODES for share in (0.50, 0.99)),
        _replay_row(),
        Row(
            "stream replay, first ÷ last tenth of the log", "×",
            ours=Contender("nexo", _nexo_evenness), limit=1.5, lower_is_better=True,
            durability=_BACKGROUND,
        ),
        Row(
            "stream, memory of 10,000 streams", "MB",
            ours=Contender("nexo", _nexo_many_streams), limit=100, lower_is_better=True,
            durability=_BACKGROUND, slow=True,
        ),
    ]  # fmt: skip


def _produce_row(batch: int, mode: str) -> Row:
    peers = [
        Contender(f"redis {_REDIS[mode]}", partial(theirs.redis_produce, batch, mode, PEER_RECORDS))
    ]
    if mode == "file_async":
        peers.append(Contender("jetstream", partial(theirs.jetstream_produce, batch, PEER_RECORDS)))
    return Row(
        f"stream produce, batches of {batch:,}, {mode}", "msg/s",
        ours=Contender("nexo", partial(_nexo_produce, batch, mode)), peers=peers,
        bar=20.0 if mode == "file_async" else 15.0, durability=_MODES[mode],
    )  # fmt: skip


def _consume_row() -> Row:
    return Row(
        "stream consume in a group with acks", "msg/s",
        ours=Contender("nexo", _nexo_consume),
        peers=[
            Contender("redis", partial(theirs.redis_consume, PEER_RECORDS)),
            Contender("jetstream", partial(theirs.jetstream_consume, PEER_RECORDS // 2)),
        ],
        bar=15.0, durability=_BACKGROUND,
    )  # fmt: skip


def _tasks_row(mode: str) -> Row:
    peers = [
        Contender("redis.asyncio", partial(theirs.redis_tasks, TASKS, SINGLES // 5, _REDIS[mode]))
    ]
    if mode == "file_async":
        peers.append(Contender("nats-py", partial(theirs.jetstream_tasks, TASKS, SINGLES // 5)))
    return Row(
        f"stream, {TASKS} tasks publishing single records, {mode}", "msg/s",
        ours=Contender("nexo", partial(_nexo_tasks, mode)), peers=peers,
        bar=10.0, durability=_MODES[mode],
    )  # fmt: skip


def _round_trip_row(mode: str, share: float) -> Row:
    return Row(
        f"stream single publish, p{share * 100:.0f}, {mode}", "µs",
        ours=Contender("nexo", partial(_nexo_round_trip, mode, share)),
        peers=[Contender("redis-py", partial(theirs.redis_round_trip, _REDIS[mode], share))],
        bar=1.0, durability=_MODES[mode], lower_is_better=True,
    )  # fmt: skip


def _replay_row() -> Row:
    return Row(
        "stream replay of old records by a new group", "msg/s",
        ours=Contender("nexo", _nexo_replay),
        peers=[Contender("redis", partial(theirs.redis_consume, PEER_RECORDS))],
        bar=10.0, durability=_BACKGROUND,
    )  # fmt: skip


# -- ours -------------------------------------------------------------------------

# ruff: noqa: PLC0415 - each contender imports its own client


def _client(bench: Bench) -> Any:
    import nexo

    return bench.enter_async(nexo.AsyncClient(bench.nexo(dashboard=False).url))


def _nexo_produce(batch: int, mode: str, bench: Bench) -> Measure:
    stream = bench.run(_client(bench).stream("log", bytes).create(persistence=mode))
    values = [VALUE] * batch

    async def one_batch(_number: int) -> None:
        await stream.publish_many(values)

    return side_by_side(bench, batch, RECORDS * (batch // 100), one_batch, theirs.WINDOW)


async def _fill(stream: Any, count: int) -> None:
    for _ in range(count // 1_000):
        await stream.publish_many([VALUE] * 1_000)


async def _drain(stream: Any, group: str, count: int) -> list[float]:
    """Take and ack ``count`` records; returns when each tenth of them was done.

    The ack of a batch leaves together with the request for the next, as it does for the peers.
    """
    marks, got = [time.perf_counter()], 0
    async with stream.consume(group, batch=theirs.FETCH) as consumer:
        async for records in consumer.batches():
            assert len(records.payloads()) == len(records)
            got += len(records)
            if got >= count:
                await records.ack()
                break
            await records.ack()
            while got >= count * len(marks) // 10:
                marks.append(time.perf_counter())
    return [*marks, time.perf_counter()]


def _groups(bench: Bench, count: int) -> Callable[[], Coroutine[Any, Any, list[float]]]:
    """A filled stream, and a coroutine that drains it with a new group each time."""
    stream = bench.run(_client(bench).stream("log", bytes).create(retention={"max_bytes": 0}))
    bench.run(_fill(stream, count))
    number = 0

    async def drain() -> list[float]:
        nonlocal number
        number += 1
        return await _drain(stream, f"group{number}", count)

    return drain


def _nexo_consume(bench: Bench) -> Measure:
    count = bench.scaled(RECORDS)
    drain = _groups(bench, count)

    def measure() -> float:
        marks = bench.run(drain())
        return count / (marks[-1] - marks[0])

    return measure


def _nexo_replay(bench: Bench) -> Measure:
    count = bench.scaled(REPLAYED)
    drain = _groups(bench, count)

    def measure() -> float:
        marks = bench.run(drain())
        return count / (marks[-1] - marks[0])

    return measure


def _nexo_evenness(bench: Bench) -> Measure:
    drain = _groups(bench, bench.scaled(REPLAYED))

    def measure() -> float:
        marks = bench.run(drain())
        first, last = marks[1] - marks[0], marks[10] - marks[9]
        return max(first / last, last / first)

    return measure


def _nexo_tasks(mode: str, bench: Bench) -> Measure:
    stream = bench.run(_client(bench).stream("log", bytes).create(persistence=mode))
    return in_tasks(bench, TASKS, bench.scaled(SINGLES), lambda: stream.publish(VALUE))


def _nexo_round_trip(mode: str, share: float, bench: Bench) -> Measure:
    import nexo

    client = bench.enter(nexo.Client(bench.nexo(dashboard=False).url))
    stream = client.stream("log", bytes).create(persistence=mode)
    count = bench.scaled(theirs.ROUND_TRIPS)
    return lambda: percentile(latencies_us(count, lambda: stream.publish(VALUE)), share)


def _nexo_many_streams(bench: Bench) -> Measure:
    client = _client(bench)
    (server,) = bench.servers
    number = 0

    async def create(first: int, count: int) -> None:
        for index in range(first, first + count):
            stream = await client.stream(f"sensor/{index}", bytes).create()
            await stream.publish(VALUE)

    def measure() -> float:
        nonlocal number
        before, count = server.memory_bytes(), bench.scaled(10_000)
        bench.run(create(number, count))
        number += count
        return (server.memory_bytes() - before) / 1e6

    return measure
