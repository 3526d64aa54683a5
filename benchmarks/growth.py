"""How the cost of one operation grows with what is stored: it should not (MEASURE, growth)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.harness import Bench, Contender, Measure, Row

STORED = 10_000_000
STREAMS = 10_000
OPERATIONS = 2_000
BATCH = 100
VALUE = b"x" * 16
LIMIT = 1.5

_BACKGROUND = "synced in background"

# ruff: noqa: PLC0415 - each contender imports its own client


def rows() -> list[Row]:
    return [
        *(
            _row(f"stream, cost of {what} with 10 M records ÷ with 1,000", partial(_stored, what))
            for what in ("publish", "fetch + ack", "read")
        ),
        _row("stream, cost of publish + fetch + ack with 10,000 streams ÷ with 1", _streams),
        _row("stream, restart after kill -9 with 10 M records ÷ with 1,000", _restart),
    ]


def _row(name: str, prepare: Any) -> Row:
    return Row(
        name, "×", ours=Contender("nexo", prepare), limit=LIMIT, lower_is_better=True,
        durability=_BACKGROUND,
    )  # fmt: skip


def _client(bench: Bench) -> Any:
    import nexo

    return bench.enter_async(nexo.AsyncClient(bench.nexo(dashboard=False).url))


async def _fill(stream: Any, count: int) -> None:
    for _ in range(count // 1_000):
        await stream.publish_many([VALUE] * 1_000)


async def _filled(client: Any, name: str, count: int) -> Any:
    stream = await client.stream(name, bytes).create(retention_bytes=0)
    await _fill(stream, count)
    return stream


# -- with many records ---------------------------------------------------------------


async def _publish(stream: Any, count: int) -> None:
    for _ in range(count):
        await stream.publish_many([VALUE] * BATCH)


async def _fetch(stream: Any, count: int) -> None:
    """At the end of the log, where a group that keeps up is."""
    await stream.seek("g", "end")
    await _publish(stream, count)
    async with stream.consume("g", batch=BATCH) as consumer:
        for _ in range(count):
            await (await consumer.fetch()).ack()


async def _read(stream: Any, count: int) -> None:
    """Places all over the log, few of them read twice."""
    end = (await stream.describe()).partitions[0].next_offset
    for number in range(count):
        await stream.read(0, number * 7_919_993 % end, max_bytes=1_000)


_WORK = {"publish": _publish, "fetch + ack": _fetch, "read": _read}


def _stored(what: str, bench: Bench) -> Measure:
    client, work = _client(bench), _WORK[what]
    few = bench.run(_filled(client, "few", 1_000))
    many = bench.run(_filled(client, "many", bench.scaled(STORED)))
    return _ratio(bench, lambda: work(many, OPERATIONS), lambda: work(few, OPERATIONS))


def _ratio(bench: Bench, large: Any, small: Any) -> Measure:
    """Both halves of the work in turn, so that a stall hits either."""

    async def took_s(work: Any) -> float:
        start = time.perf_counter()
        await work()
        return time.perf_counter() - start

    return lambda: bench.run(took_s(large)) / bench.run(took_s(small))


# -- with many streams ---------------------------------------------------------------


def _streams(bench: Bench) -> Measure:
    alone = bench.run(_filled(_client(bench), "alone", 1_000))
    crowd = _client(bench)
    bench.run(_crowd(crowd, bench.scaled(STREAMS)))
    one_of_many = bench.run(_filled(crowd, "alone", 1_000))
    return _ratio(bench, lambda: _fetch(one_of_many, OPERATIONS), lambda: _fetch(alone, OPERATIONS))


async def _crowd(client: Any, count: int) -> None:
    for number in range(count):
        stream = await client.stream(f"sensor/{number}", bytes).create()
        await stream.publish(VALUE)


# -- recovery ------------------------------------------------------------------------


def _restart(bench: Bench) -> Measure:
    from nexo import testing

    few = bench.enter(testing.process(dashboard=False))
    many = bench.enter(testing.process(dashboard=False))
    for server, count in ((few, 1_000), (many, bench.scaled(STORED))):
        bench.run(_fill_server(server.url, count))
    return lambda: _restart_s(many) / _restart_s(few)


async def _fill_server(url: str, count: int) -> None:
    import nexo

    async with nexo.AsyncClient(url) as client:
        await _filled(client, "log", count)


def _restart_s(server: Any) -> float:
    """From the start until the log gives its last record."""
    import nexo

    server.kill()
    start = time.perf_counter()
    server.start()
    with nexo.Client(server.url) as client:
        stream = client.stream("log", bytes)
        end = stream.describe().partitions[0].next_offset
        assert stream.read(0, end - 1)
    return time.perf_counter() - start
