"""One group under a storm of consumers that join, leave, fail and vanish (SPEC F1, F2, F3).

``SOAK=1`` runs the long forms: 100 consumers and 200,000 records.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.records import StreamRecord
from nexo.client._async.stream.stream import Stream
from nexo.model import Broker
from nexo.testing import Process
from tests.integration.holdings import Holdings
from tests.timing import eventually

# ruff: noqa: T201 - the counts are to be seen

SOAK = bool(os.environ.get("SOAK"))
CONSUMERS = 100 if SOAK else 30
RECORDS = 200_000 if SOAK else 20_000
BATCH = 25


class Storm:
    """Consumers of one group that come and go until every record is acked."""

    def __init__(self, url: str, seed: int) -> None:
        self.seen = Holdings()
        self.joined = 0
        self._url = url
        self._random = random.Random(seed)
        self._done = asyncio.Event()

    async def consumers(self, count: int) -> None:
        await asyncio.gather(*(self._lives() for _ in range(count)))

    def finish(self) -> None:
        self._done.set()

    async def _lives(self) -> None:
        while not self._done.is_set():
            self.joined += 1
            await self._life(f"c{self.joined}", self._random.randrange(1, 12))

    async def _life(self, name: str, fetches: int) -> None:
        """A few fetches, then a polite leave, or just the end of the connection."""
        client = nexo.AsyncClient(self._url)
        consumer = client.stream("s", int).consume("g", batch=BATCH, wait=0.2, max_deliveries=0)
        held: list[StreamRecord[int]] = []
        for _ in range(fetches):
            if self._done.is_set():
                break
            held += await self._fetch(name, consumer)
            held = await self._settle_some(name, consumer, held)
        self.seen.let_go(name, (record.offset for record in held))
        if self._random.random() < 0.5:
            await consumer.close()
        await client.close()

    async def _fetch(self, name: str, consumer: Any) -> list[StreamRecord[int]]:
        records: list[StreamRecord[int]] = list(await consumer.fetch())
        assert all(record.value == record.offset for record in records)
        self.seen.take(name, (record.offset for record in records))
        return records

    async def _settle_some(
        self, name: str, consumer: Any, held: list[StreamRecord[int]]
    ) -> list[StreamRecord[int]]:
        """Ack most, in any order, nack a few, keep the rest for later."""
        self._random.shuffle(held)
        acks: list[StreamRecord[int]] = []
        nacks: list[StreamRecord[int]] = []
        kept: list[StreamRecord[int]] = []
        for record in held:
            lot = self._random.random()
            (acks if lot < 0.8 else nacks if lot < 0.9 else kept).append(record)
        self.seen.let_go(name, (record.offset for record in [*acks, *nacks]))
        await consumer.ack(*acks)
        self.seen.acked(record.offset for record in acks)
        await consumer.nack(*nacks)
        return kept


async def flow(stream: Stream[int], storm: Storm) -> None:
    """Publish, and wait until the group has finished everything."""
    for first in range(0, RECORDS, 500):
        await stream.publish_many(range(first, first + 500))
        await asyncio.sleep(0)
    await eventually(lambda: finished(stream))
    storm.finish()


async def finished(stream: Stream[Any]) -> bool:
    return await stream.group("g").lag() == 0


@pytest.mark.slow
@pytest.mark.timeout(900 if SOAK else 120)
async def test_consumers_come_and_go_and_nothing_is_lost_or_held_twice(url: str) -> None:
    storm = Storm(url, seed=7)
    async with nexo.AsyncClient(url) as client:
        stream = await client.stream("s", int).create()
        await stream.seek("g", "beginning")
        await asyncio.gather(storm.consumers(CONSUMERS), flow(stream, storm))
        floor = (await stream.group("g").info()).partitions[0].floor
    print(f"\n{storm.joined:,} lives of {CONSUMERS} consumers: {storm.seen.report(RECORDS)}")
    assert floor == RECORDS
    assert storm.seen.lost(RECORDS) == 0
    assert storm.seen.held_twice == 0
    assert storm.seen.after_ack == 0
    assert storm.joined > CONSUMERS


async def test_a_reset_connection_releases_at_once(url: str) -> None:  # SPEC F2
    async with nexo.AsyncClient(url) as client:
        stream = await client.stream("s", int).create()
        await stream.publish_many(range(10))
        other = nexo.AsyncClient(url)
        first = other.stream("s", int).consume("g", ack_wait=600)
        assert len(await first.fetch()) == 10
        reset(other)
        async with stream.consume("g") as second:
            assert len(await second.fetch(wait=5)) == 10
        await other.close()


def reset(client: nexo.AsyncClient) -> None:
    """End a connection with RST instead of FIN."""
    link: Any = client.link(Broker.STREAM)
    transport = link._wire._transport
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


# -- crashed consumers -----------------------------------------------------------------


async def test_after_a_crash_records_are_acked_one_by_one(url: str) -> None:  # SPEC F3
    async with nexo.AsyncClient(url) as client, nexo.AsyncClient(url) as other:
        stream = await client.stream("s", int).create()
        await stream.publish_many(range(4))
        crashed = nexo.AsyncClient(url)
        await crashed.stream("s", int).consume("g").fetch()
        await crashed.close()
        lags: list[int] = []

        async def handle(_record: Any) -> None:
            lags.append(await other.stream("s").group("g").lag())

        subscription = await stream.subscribe("g", handle)
        await eventually(lambda: len(lags) == 4)
        await subscription.close()
    assert lags == [4, 3, 2, 1], "whoever dies now is known by what it had begun"


CONSUMER = """
import os, signal, sys, time, nexo
url, log = sys.argv[1:]
seen = open(log, "a", buffering=1)

def handle(record):
    print(record.offset, file=seen)
    if record.value == "poison":
        os.kill(os.getpid(), signal.SIGKILL)

with nexo.Client(url) as client:
    client.stream("s").subscribe("g", handle, batch=50, wait=1)
    time.sleep(60)
"""
POISON = (3, 70, 150)


def crashing_consumer(url: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CONSUMER, url, str(log)])


@pytest.mark.slow
async def test_five_crashed_consumers_park_only_what_a_handler_saw(
    served: Process, tmp_path: Path
) -> None:  # SPEC F3
    logs = [tmp_path / f"seen{number}" for number in range(5)]
    async with nexo.AsyncClient(served.url) as client:
        stream = await client.stream("s").create()
        await stream.publish_many(["poison" if n in POISON else n for n in range(200)])
        await stream.seek("g", "beginning")
        running = [crashing_consumer(served.url, log) for log in logs]
        crashes = 0

        async def finished_despite_crashes() -> bool:
            nonlocal crashes
            for number, consumer in enumerate(running):
                if consumer.poll() is not None:
                    assert consumer.returncode == -signal.SIGKILL
                    crashes += 1
                    running[number] = crashing_consumer(served.url, logs[number])
            return await finished(stream)

        try:
            await eventually(finished_despite_crashes)
        finally:
            for consumer in running:
                consumer.kill()
                consumer.wait()
        parked = await stream.group("g").parked.peek()
    seen = [int(line) for log in logs for line in log.read_text().split()]
    print(f"\n{crashes} crashes, {len(seen)} records seen by handlers, {len(parked)} parked")
    assert [record.offset for record in parked] == sorted(POISON, reverse=True)
    assert all(seen.count(record.offset) >= record.attempts == 5 for record in parked)
    assert set(seen) == set(range(200))
