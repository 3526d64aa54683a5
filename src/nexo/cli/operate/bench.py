"""``nexo bench``: how fast this server is from here."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import click

import nexo
from nexo.cli import output
from nexo.cli.options import check_reachable, common
from nexo.cli.times import seconds
from nexo.server.loop import run_loop

_TASKS = 500
"""Requests in flight where they are sent one by one."""
_MANY = 1_000
"""Records or jobs that are sent together."""
_WORKS = 8

BenchRow: TypeAlias = dict[str, object]
"""``work``, ``per_s`` and ``note``."""


@click.command()
@click.option("--seconds", type=seconds(least_ms=10), default="1s", show_default=True,
              help="How long each piece of work runs.")  # fmt: skip
@click.option("--size", type=click.IntRange(min=1, max=1024**2), default=100, show_default=True,
              help="Bytes of each value.")  # fmt: skip
def command(seconds: float, size: int) -> None:
    """Measure the server from here with one client: rates per broker.

    What it makes there begins with nexo-bench- and is removed again: it takes permission to
    read, write and administer such names. `make bench` compares with other brokers.
    """
    check_reachable(common().url)
    output.rows(run_loop(_measure(seconds, size)), ("work", "per_s", "note"))


async def _measure(seconds: float, size: int) -> list[BenchRow]:
    name, found = f"nexo-bench-{secrets.token_hex(4)}", list[BenchRow]()
    async with nexo.AsyncClient(common().url, **common().client_options()) as client:
        bench = Bench(client, name, bytes(size), seconds)
        try:
            with output.progress("measuring", _WORKS) as bar:
                async for row in bench.rows():
                    found.append(row)
                    bar.advance()
        finally:
            removed = await bench.remove()
    for failure in removed:  # only if nothing failed before
        if isinstance(failure, BaseException):
            raise failure
    return found


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures one server; what it makes there is named after ``name``."""

    client: nexo.AsyncClient
    name: str
    value: bytes
    seconds: float

    async def remove(self) -> Sequence[object]:
        """Remove what was made, as far as possible; returns what failed too."""
        client, name = self.client, self.name
        return await asyncio.gather(
            client.queue(name).delete(),
            client.stream(name).delete(),
            client.store.delete_many(*self._keys()),
            return_exceptions=True,
        )

    def _keys(self) -> list[str]:
        return [f"{self.name}:{number}" for number in range(_TASKS)]

    async def rows(self) -> AsyncIterator[BenchRow]:
        """Every piece of work, one after another."""
        yield await self._round_trips()
        for work in (self._store, self._pubsub, self._queue, self._stream):
            async for row in work():
                yield row

    async def _round_trips(self) -> BenchRow:
        """One request at a time."""
        times: list[float] = []
        end_s = time.perf_counter() + self.seconds
        while time.perf_counter() < end_s:
            times.append(await self.client.ping())
        times.sort()
        p50, p99 = (1e6 * times[int(len(times) * share)] for share in (0.5, 0.99))
        note = f"p50 {p50:.0f} µs, p99 {p99:.0f} µs"
        return {"work": "round trips", "per_s": round(len(times) / sum(times)), "note": note}

    async def _repeat(self, work: str, note: str, step: Callable[[], Awaitable[int]]) -> BenchRow:
        """Run ``step``, which says how much it did, until time is up or nothing is left."""
        start_s, count = time.perf_counter(), 0
        while time.perf_counter() - start_s < self.seconds and (done := await step()):
            count += done
        elapsed_s = time.perf_counter() - start_s
        return {"work": work, "per_s": round(count / elapsed_s), "note": note}

    async def _store(self) -> AsyncIterator[BenchRow]:
        """Many tasks, a key each."""
        store, keys, note = self.client.store, self._keys(), f"{_TASKS} tasks"

        async def each(use: Callable[[str], Awaitable[object]]) -> int:
            await asyncio.gather(*map(use, keys))
            return len(keys)

        yield await self._repeat(
            "store set", note, lambda: each(lambda key: store.set(key, self.value))
        )
        yield await self._repeat("store get", note, lambda: each(store.get))

    async def _pubsub(self) -> AsyncIterator[BenchRow]:
        """Publish, and receive everything."""
        pubsub, topic, values = self.client.pubsub, f"{self.name}/topic", [self.value] * _TASKS
        async with await pubsub.subscribe(topic) as subscription:

            async def step() -> int:
                await pubsub.publish_many(topic, values)
                for _ in values:
                    await anext(subscription)
                return len(values)

            yield await self._repeat("pubsub publish to deliver", "one subscriber", step)

    async def _queue(self) -> AsyncIterator[BenchRow]:
        """Push in batches, then take and finish them."""
        queue: Any = await self.client.queue(self.name).create()
        note = f"batches of {_MANY}, file_sync"

        async def push() -> int:
            return len(await queue.push_many([self.value] * _MANY))

        async def pop() -> int:
            jobs = await queue.pop(_MANY)
            if jobs:
                await jobs.ack()
            return len(jobs)

        yield await self._repeat("queue push", note, push)
        yield await self._repeat("queue pop and ack", note, pop)

    async def _stream(self) -> AsyncIterator[BenchRow]:
        """Publish in batches, then read and ack them."""
        stream = await self.client.stream(self.name).create()

        async def publish() -> int:
            await stream.publish_many([self.value] * _MANY)
            return _MANY

        yield await self._repeat("stream publish", f"batches of {_MANY}, file_async", publish)
        async with stream.consume("bench", batch=_MANY) as consumer:

            async def consume() -> int:
                records = await consumer.fetch(wait=0)
                if len(records):
                    records.payloads()
                    await records.ack()
                return len(records)

            yield await self._repeat("stream consume and ack", f"batches of {_MANY}", consume)
