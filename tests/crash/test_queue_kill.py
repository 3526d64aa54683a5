"""kill -9 of the real server under load: what was confirmed is there, what was acked is gone.

``SOAK=1`` kills fifty times (SPEC D7, MEASURE's table of faults).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import nexo
from nexo import testing
from nexo.client._async.queue.jobs import Job
from nexo.errors import NexoError
from tests.timing import eventually

KILLS = 50 if os.environ.get("SOAK") else 3
BATCH = 20


class Load:
    """Pushes and works off jobs, noting only what the server confirmed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmed: set[int] = set()
        self.attempted = 0
        self.acked: set[int] = set()
        self.unsure: set[int] = set()
        """Acks that got no reply: such a job may be gone or come back."""
        self.back_after_ack: list[int] = []
        self.failures: Counter[int] = Counter()
        self.stopping = False

    async def run(self) -> None:
        async with nexo.AsyncClient(f"{self._url}?while_down=fail&timeout=5") as client:
            await asyncio.gather(self._produce(client), self._work(client))

    async def _produce(self, client: nexo.AsyncClient) -> None:
        queue = client.queue("load", int)
        while not self.stopping:
            numbers = range(self.attempted, self.attempted + BATCH)
            self.attempted += BATCH
            delay = 0.3 if numbers[0] % (5 * BATCH) == 0 else 0
            try:
                await queue.push_many(numbers, priority=numbers[0] % 3, delay=delay)
                self.confirmed.update(numbers)
            except NexoError:
                await asyncio.sleep(0.01)

    async def _work(self, client: nexo.AsyncClient) -> None:
        queue = client.queue("load", int)
        while not self.stopping:
            try:
                jobs = await queue.pop(BATCH, wait=0.2)
                for job in jobs:
                    self._check(job.value, job.attempt)
                await self._settle(list(jobs))
            except NexoError:
                await asyncio.sleep(0.01)

    def _check(self, number: int, attempt: int) -> None:
        if number in self.acked:
            self.back_after_ack.append(number)
        assert attempt >= self.failures[number] + 1, "a counted failure was forgotten"

    async def _settle(self, jobs: list[Job[int]]) -> None:
        for job in jobs:
            if job.value % 7 == 0 and job.attempt == 1:
                await job.nack("seven")
                self.failures[job.value] = 1
            else:
                self.unsure.add(job.value)
                await job.ack()
                self.unsure.discard(job.value)
                self.acked.add(job.value)


async def acks(load: Load, more: int) -> None:
    """Wait until so many more jobs are acked."""
    goal = len(load.acked) + more
    await eventually(lambda: len(load.acked) >= goal)


async def kill_and_restart(server: testing.Process, kills: int, load: Load) -> None:
    for _ in range(kills):
        await acks(load, 3 * BATCH)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    load.stopping = True


async def drain(url: str, load: Load) -> Counter[int]:
    """Take everything that is left."""
    left: Counter[int] = Counter()
    async with nexo.AsyncClient(url) as client:
        queue = client.queue("load", int)
        while jobs := await queue.pop(1_000, wait=1):
            for job in jobs:
                load._check(job.value, job.attempt)
                left[job.value] += 1
            await jobs.ack()
        info = await queue.info()
        assert (info.waiting, info.scheduled, info.working, info.dead) == (0, 0, 0, 0)
    return left


async def test_no_confirmed_job_is_lost_and_no_acked_job_comes_back(tmp_path: Path) -> None:
    server = testing.Process(tmp_path / "nexo", dashboard=False)
    await asyncio.to_thread(server.start)
    try:
        async with nexo.AsyncClient(server.url) as client:
            await client.queue("load").create(max_retries=1_000)
        load = Load(server.url)
        working = asyncio.create_task(load.run())
        await kill_and_restart(server, KILLS, load)
        await working
        left = await drain(server.url, load)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert not await drain(server.url, load), "nothing that was acked comes back"
    finally:
        await asyncio.to_thread(server.close)
    lost = load.confirmed - load.acked - load.unsure - left.keys()
    assert not lost
    assert not load.back_after_ack
    assert not load.acked & left.keys()
    assert max(left.values(), default=1) == 1, "no job is there twice"
    assert load.failures, "the run must have counted failures"
