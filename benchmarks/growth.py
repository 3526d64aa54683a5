"""How the cost of one operation grows with what is stored: it should not (MEASURE, growth)."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves import Bar, Curve, Limit, Probe
from benchmarks.harness import Bench, Contender, Measure, Row

STORED = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
STREAMS = (1, 10, 100, 1_000, 10_000)
TAILS = (1_000, 10_000, 100_000, 1_000_000)
OPERATIONS = 200
BATCH = 10
FILL = 1_000
REMADE = 100_000
"""Streams up to here are made anew each round, so that they stay as small as they should be."""
VALUE = b"x" * 16

_BACKGROUND = "synced in background"
_ROUND_TRIP = Limit("an echo over loopback", lambda limits, _: limits["round_trip_us"])

# ruff: noqa: PLC0415 - each contender imports its own client


def rows() -> list[Row]:
    return [
        Row(
            "stream, restart after kill -9 with 10 M records ÷ with 1,000", "×",
            ours=Contender("nexo", _restart), limit=1.5, lower_is_better=True,
            durability=_BACKGROUND,
        ),
    ]  # fmt: skip


def curves() -> list[Curve]:
    return [
        Curve(
            "stored", f"One operation ({BATCH} messages of 16 B) with many messages stored",
            "messages stored", "µs", _stored, [_ROUND_TRIP],
            [
                *(_stored_bar("stream", what, "records") for what in ("publish", "fetch", "ack")),
                *(_stored_bar("queue", what, "jobs") for what in ("push", "pop", "ack")),
            ],
            lower_is_better=True,
        ),
        Curve(
            "streams", f"One operation ({BATCH} records of 16 B) with many streams",
            "streams", "µs", _streams, [_ROUND_TRIP],
            [
                Bar(f"stream, cost of {what} with 10,000 streams ÷ with 1", what, STREAMS[0],
                    durability=_BACKGROUND)
                for what in ("publish", "fetch", "ack")
            ],
            lower_is_better=True,
        ),
        Curve(
            "recovery", "Opening the data folder after a crash",
            "jobs or records on disk", "ms", _recovery,
            [Limit("100 B each at disk speed",
                   lambda limits, x: x * 100 / limits["disk_bytes_per_s"] * 1e3)],
            [
                Bar("queue, recovery with a journal tail of 1 M jobs ÷ of 100,000 (linear: 10)",
                    "queue, jobs since the snapshot", limit=15.0),
            ],
            lower_is_better=True,
        ),
    ]  # fmt: skip


def _stored_bar(broker: str, what: str, things: str) -> Bar:
    name = f"{broker}, cost of {what} with 10 M {things} ÷ with 1,000"
    return Bar(name, f"{broker} {what}", STORED[0], durability=_BACKGROUND)


def _sizes(bench: Bench, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Without the largest two in a quick run."""
    return sizes[:-2] if bench.quick else sizes


def _client(bench: Bench) -> Any:
    import nexo

    return bench.enter_async(nexo.AsyncClient(bench.nexo().url))


class Stopwatch:
    """Microseconds of the median operation, by what it was."""

    def __init__(self) -> None:
        self._spent_s: dict[str, list[float]] = {}

    async def time(self, what: str, work: Awaitable[Any]) -> Any:
        start = time.perf_counter()
        result = await work
        self._spent_s.setdefault(what, []).append(time.perf_counter() - start)
        return result

    def medians_us(self, prefix: str = "") -> dict[str, float]:
        spent = self._spent_s.items()
        return {f"{prefix}{what}": statistics.median(each) * 1e6 for what, each in spent}


# -- with many messages ----------------------------------------------------------------


def _stored(bench: Bench) -> Mapping[int, Probe]:
    client = _client(bench)
    sizes = _sizes(bench, STORED)
    for size in sizes:
        bench.run(_fill_stream(client, size))
        bench.run(_fill_queue(client, size))
    return {size: partial(_probe_stored, bench, client, size) for size in sizes}


async def _fill_stream(client: Any, size: int) -> Any:
    stream = await client.stream(f"log{size}", bytes).create(retention={"max_bytes": 0})
    await _publish(stream, size)
    return stream


async def _publish(stream: Any, count: int) -> None:
    await _in_batches(stream.publish_many, count)


async def _in_batches(send: Callable[[list[bytes]], Awaitable[object]], count: int) -> None:
    """A few at once, so that client and server both have something to do."""
    batch, left = [VALUE] * FILL, count // FILL
    while left:
        together = min(left, 4)
        await asyncio.gather(*(send(batch) for _ in range(together)))
        left -= together


async def _fill_queue(client: Any, size: int) -> None:
    queue = await client.queue(f"work{size}", bytes).create(persistence="file_async")
    await _in_batches(queue.push_many, size)


def _probe_stored(bench: Bench, client: Any, size: int) -> Mapping[str, float]:
    async def probe() -> dict[str, float]:
        stream = client.stream(f"log{size}", bytes)
        if size <= REMADE:
            await stream.delete()
            await _fill_stream(client, size)
        found = await _stream_costs_us(stream, "stream ", size)
        return found | await _queue_costs_us(client.queue(f"work{size}", bytes))

    return bench.run(probe())


async def _stream_costs_us(stream: Any, prefix: str = "", size: int = 0) -> dict[str, float]:
    """Publish, fetch and ack at the end of the log; read all over it if it has a ``size``."""
    watch, values = Stopwatch(), [VALUE] * BATCH
    await stream.seek("g", "end")
    async with stream.consume("g", batch=BATCH) as consumer:
        for _ in range(OPERATIONS):
            await watch.time("publish", stream.publish_many(values))
            records = await watch.time("fetch", consumer.fetch())
            await watch.time("ack", records.ack())
    for number in range(OPERATIONS if size else 0):
        place = number * 7_919_993 % size
        await watch.time("read", stream.read(0, place, max_bytes=1_000))
    return watch.medians_us(prefix)


async def _queue_costs_us(queue: Any) -> dict[str, float]:
    watch, values = Stopwatch(), [VALUE] * BATCH
    for _ in range(OPERATIONS):
        await watch.time("push", queue.push_many(values))
        jobs = await watch.time("pop", queue.pop(BATCH))
        await watch.time("ack", jobs.ack())
    return watch.medians_us("queue ")


# -- with many streams -----------------------------------------------------------------


def _streams(bench: Bench) -> Mapping[int, Probe]:
    clients = {count: _client(bench) for count in _sizes(bench, STREAMS)}
    for count, client in clients.items():
        bench.run(_crowd(client, count))
    return {
        count: partial(_probe_streams, bench, client, count) for count, client in clients.items()
    }


async def _crowd(client: Any, count: int) -> None:
    async def make(number: int) -> None:
        stream = await client.stream(f"sensor/{number}", bytes).create()
        await stream.publish_many([VALUE] * BATCH)

    for first in range(0, count, 100):
        await asyncio.gather(*map(make, range(first, min(first + 100, count))))


def _probe_streams(bench: Bench, client: Any, count: int) -> Mapping[str, float]:
    async def probe() -> dict[str, float]:
        found = await _stream_costs_us(client.stream("sensor/0", bytes))
        return found | await _spread_us(client, count)

    return bench.run(probe())


async def _spread_us(client: Any, count: int) -> dict[str, float]:
    """Publish to another stream each time."""
    watch, values = Stopwatch(), [VALUE] * BATCH
    for number in range(OPERATIONS):
        stream = client.stream(f"sensor/{number * 7_919 % count}", bytes)
        await watch.time("publish, another stream each time", stream.publish_many(values))
    return watch.medians_us()


# -- recovery --------------------------------------------------------------------------


def _recovery(bench: Bench) -> Mapping[int, Probe]:
    """Both brokers opened in this process: what a start costs beside Python itself."""
    folder = Path(bench.enter(tempfile.TemporaryDirectory(prefix="nexo-bench-")))
    sizes = TAILS[:-1] if bench.quick else TAILS
    for size in sizes:
        bench.run(_crashed(folder / f"queue{size}", _fill_queue, size))
        bench.run(_crashed(folder / f"stream{size}", _fill_stream, size))
    return {size: partial(_probe_recovery, bench, folder, size) for size in sizes}


def _server(folder: Path) -> Any:
    from nexo.config import load
    from nexo.server.embedded import EmbeddedServer

    flags = {"port": 0, "data_dir": str(folder), "dashboard": False}
    return EmbeddedServer(load(flags=flags))


async def _crashed(folder: Path, fill: Callable[[Any, int], Awaitable[Any]], size: int) -> None:
    import nexo

    server = _server(folder)
    await server.open()
    async with nexo.AsyncClient(f"nexo://127.0.0.1:{server.port}") as client:
        await fill(client, size)
    await server.crash()


def _probe_recovery(bench: Bench, folder: Path, size: int) -> Mapping[str, float]:
    return {
        "queue, jobs since the snapshot": bench.run(_open_ms(folder / f"queue{size}")),
        "stream, records stored": bench.run(_open_ms(folder / f"stream{size}")),
    }


async def _open_ms(folder: Path) -> float:
    server = _server(folder)
    start = time.perf_counter()
    server.host.open()
    spent_s = time.perf_counter() - start
    server.host.crash()
    return spent_s * 1e3


def _restart(bench: Bench) -> Measure:
    from nexo import testing

    few = bench.enter(testing.process(dashboard=False))
    many = bench.enter(testing.process(dashboard=False))
    for server, count in ((few, STORED[0]), (many, bench.scaled(STORED[-1]))):
        bench.run(_fill_server(server.url, count))
    return lambda: _restart_s(many) / _restart_s(few)


async def _fill_server(url: str, count: int) -> None:
    import nexo

    async with nexo.AsyncClient(url) as client:
        await _publish(await client.stream("log", bytes).create(retention={"max_bytes": 0}), count)


def _restart_s(server: Any) -> float:
    """From the start until the log gives its last record."""
    import nexo

    server.kill()
    start = time.perf_counter()
    server.start()
    with nexo.Client(server.url) as client:
        stream = client.stream("log", bytes)
        end = stream.info().partitions[0].next_offset
        assert stream.read(0, end - 1)
    return time.perf_counter() - start
