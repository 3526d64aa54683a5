"""``nexo bench``: how fast this server is from here."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import click

import nexo
from nexo.cli import output
from nexo.cli.options import check_reachable, terms
from nexo.cli.sizes import seconds
from nexo.server import loops

_TASKS = 500
"""Requests in flight where they are sent one by one."""
_MANY = 1_000
"""Records or jobs that are sent together."""


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
    check_reachable(terms().url)
    found = loops.run(_measure(seconds, size))
    rows = [asdict(result) | {"per_s": round(result.per_s)} for result in found]
    output.rows(rows, ("work", "per_s", "note"))


async def _measure(seconds: float, size: int) -> list[WorkResult]:
    async with nexo.AsyncClient(terms().url, **terms().client_options()) as client:
        name, found = f"nexo-bench-{secrets.token_hex(4)}", []
        async with Bench(client, name, bytes(size), seconds) as bench:
            with output.progress("measuring", len(bench.works)) as bar:
                for work in bench.works:
                    found.append(await work())
                    bar.advance()
        return found


@dataclass(frozen=True, slots=True)
class WorkResult:
    """What one piece of work came to."""

    work: str
    per_s: float
    note: str = ""


class Bench:
    """Measures one server; what it makes there is named after ``name``, and removed."""

    def __init__(self, client: nexo.AsyncClient, name: str, value: bytes, seconds: float) -> None:
        self._client = client
        self._name = name
        self._value = value
        self._seconds = seconds

    @property
    def works(self) -> list[Callable[[], Awaitable[WorkResult]]]:
        """Every piece of work, in the order to run them."""
        return [
            self.round_trips, self.set_keys, self.get_keys, self.fan_out,
            self.push, self.pop, self.publish, self.consume,
        ]  # fmt: skip

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove what was made, as far as it goes; an error before that is the one to be told."""
        found = await asyncio.gather(
            self._client.queue(self._name).delete(),
            self._client.stream(self._name).delete(),
            self._client.store.delete_many(*self._keys()),
            return_exceptions=True,
        )
        failed = next((one for one in found if isinstance(one, BaseException)), None)
        if failed is not None and error is None:
            raise failed

    def _keys(self) -> list[str]:
        return [f"{self._name}:{number}" for number in range(_TASKS)]

    async def _repeat(self, work: str, step: Callable[[], Awaitable[int]], note: str) -> WorkResult:
        """Run ``step``, which says how much it did, until time is up or nothing is left."""
        start_s, count = time.perf_counter(), 0
        while time.perf_counter() - start_s < self._seconds:
            done = await step()
            count += done
            if not done:
                break
        elapsed_s = time.perf_counter() - start_s
        return WorkResult(work, count / elapsed_s, note)

    async def _send(
        self, work: str, send: Callable[[list[bytes]], Awaitable[Any]], mode: str
    ) -> WorkResult:
        values = [self._value] * _MANY

        async def step() -> int:
            await send(values)
            return len(values)

        return await self._repeat(work, step, f"batches of {_MANY}, {mode}")

    # -- connection and store -----------------------------------------------------

    async def round_trips(self) -> WorkResult:
        """One request at a time."""
        times: list[float] = []
        end_s = time.perf_counter() + self._seconds
        while time.perf_counter() < end_s:
            times.append(await self._client.ping())
        times.sort()
        p50, p99 = (1e6 * times[int(len(times) * share)] for share in (0.5, 0.99))
        return WorkResult(
            "round trips", len(times) / sum(times), f"p50 {p50:.0f} µs, p99 {p99:.0f} µs"
        )

    async def set_keys(self) -> WorkResult:
        """Write many keys at once."""
        return await self._each_key(
            "store set", lambda key: self._client.store.set(key, self._value)
        )

    async def get_keys(self) -> WorkResult:
        """Read many keys at once."""
        return await self._each_key("store get", self._client.store.get)

    async def _each_key(self, work: str, use: Callable[[str], Awaitable[Any]]) -> WorkResult:
        """Many tasks, a key each."""
        keys = self._keys()

        async def step() -> int:
            await asyncio.gather(*map(use, keys))
            return len(keys)

        return await self._repeat(work, step, f"{_TASKS} tasks")

    # -- pub/sub --------------------------------------------------------------------

    async def fan_out(self) -> WorkResult:
        """Publish, and receive everything."""
        topic, values = f"{self._name}/topic", [self._value] * _TASKS
        async with await self._client.pubsub.subscribe(topic) as subscription:

            async def step() -> int:
                await self._client.pubsub.publish_many(topic, values)
                for _ in values:
                    await anext(subscription)
                return len(values)

            return await self._repeat("pubsub publish to deliver", step, "one subscriber")

    # -- queue ------------------------------------------------------------------------

    async def push(self) -> WorkResult:
        """Push in batches."""
        queue = await self._client.queue(self._name).create()
        return await self._send("queue push", queue.push_many, "file_sync")

    async def pop(self) -> WorkResult:
        """Take and finish what was pushed."""
        queue: Any = self._client.queue(self._name)

        async def step() -> int:
            jobs = await queue.pop(_MANY)
            if jobs:
                await jobs.ack()
            return len(jobs)

        return await self._repeat("queue pop and ack", step, f"batches of {_MANY}, file_sync")

    # -- stream -------------------------------------------------------------------------

    async def publish(self) -> WorkResult:
        """Publish in batches."""
        stream = await self._client.stream(self._name).create()
        return await self._send("stream publish", stream.publish_many, "file_async")

    async def consume(self) -> WorkResult:
        """Read and ack what was published."""
        stream = self._client.stream(self._name)
        async with stream.consume("bench", batch=_MANY) as consumer:

            async def step() -> int:
                records = await consumer.fetch(wait=0)
                if len(records):
                    records.payloads()
                    await records.ack()
                return len(records)

            return await self._repeat("stream consume and ack", step, f"batches of {_MANY}")
