"""Read-process-write transactions, and kill -9 at random moments: N inputs, N outputs (SPEC H2).

``SOAK=1`` goes on for a minute.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.errors import NexoError
from nexo.testing import Process
from tests.timing import eventually

# ruff: noqa: T201 - the counts are to be seen

SOAK = bool(os.environ.get("SOAK"))
SECONDS = 60.0 if SOAK else 6.0
WORKERS = 3


class Pipeline:
    """Copies ``in`` to two streams, some of it in transactions that are rolled back."""

    def __init__(self, client: nexo.AsyncClient, seed: int) -> None:
        self.client = client
        self.committed = self.failed = self.rolled_back = 0
        self.feeding = True
        self._source: Stream[Any] = client.stream("in")
        self._random = random.Random(seed)

    async def feed(self) -> None:
        """Publish inputs; what fails may be stored or not, so they are counted in the stream."""
        while self.feeding:
            try:
                await self._source.publish_many(["input"] * self._random.randrange(1, 20))
            except NexoError:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.01)

    async def work(self) -> None:
        async for records in self._source.consume(
            "g", batch=7, wait=0.2, max_deliveries=0
        ).batches():
            try:
                await self._transact(list(records))
            except NexoError:
                self.failed += 1

    async def _transact(self, records: list[Any]) -> None:
        async with self.client.transaction() as tx:
            for record in records:
                await tx.publish("out", record.offset)
                await tx.publish("copy", record.offset, key=str(record.offset))
            await tx.ack(*records)
            if self._random.random() < 0.1:
                self.rolled_back += 1
                await tx.abort()
                return
        self.committed += 1

    async def is_done(self) -> bool:
        try:
            return await self._source.group("g").lag() == 0
        except NexoError:
            return False


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_kills_at_random_moments_leave_one_output_per_input(served: Process) -> None:
    chance = random.Random(11)
    async with nexo.AsyncClient(served.url, while_down="wait") as client:
        source = await client.stream("in").create()
        await source.seek("g", "beginning")
        outputs = (
            await client.stream("out").create(),
            await client.stream("copy").create(partitions=2),
        )
        pipeline = Pipeline(client, seed=5)
        running = [asyncio.ensure_future(pipeline.work()) for _ in range(WORKERS)]
        feeder = asyncio.ensure_future(pipeline.feed())
        kills, deadline_s = 0, time.monotonic() + SECONDS
        while time.monotonic() < deadline_s:
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.restart)
            kills += 1
        pipeline.feeding = False
        await feeder
        await eventually(pipeline.is_done, 60)
        for worker in running:
            worker.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        inputs = (await source.info()).partitions[0].next_offset
        found = [Counter(await values(stream)) for stream in outputs]
    print(
        f"\n{kills} kills, {inputs} inputs, {pipeline.committed} transactions committed, "
        f"{pipeline.failed} failed, {pipeline.rolled_back} rolled back; "
        f"{[sum(each.values()) for each in found]} outputs"
    )
    assert found == [Counter(range(inputs))] * 2


async def values(stream: Stream[Any]) -> list[int]:
    found: list[int] = []
    for partition, bounds in enumerate((await stream.info()).partitions):
        at = 0
        while at < bounds.stable_offset:
            records = await stream.read(partition, at)
            if not records:
                break
            found += [record.value for record in records]
            at = records[-1].offset + 1
    return found
