"""kill -9 of a real server under load: what was acknowledged is there, once (SPEC E3, F6, H2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.errors import Conflict, ConnectionLost, NexoError, TransactionAborted
from nexo.testing import Process

KILLS = 3


async def with_kills(served: Process, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` while the server is killed and started again a few times."""
    running = asyncio.ensure_future(work())
    for number in range(KILLS):
        await asyncio.wait({running}, timeout=0.15 + 0.07 * number)
        await asyncio.to_thread(served.kill)
        await asyncio.to_thread(served.restart)
    async with asyncio.timeout(60):
        await running


@pytest.mark.slow
@pytest.mark.parametrize("persistence", ["file_async", "file_sync"])
async def test_acknowledged_records_survive_and_no_offset_is_used_twice(
    served: Process, persistence: str
) -> None:
    acknowledged: dict[int, int] = {}

    async with nexo.AsyncClient(served.url, while_down="wait") as client:
        stream = await client.stream("s").create(persistence=persistence)

        async def publish() -> None:
            number = 0
            while len(acknowledged) < 2_000:
                batch = list(range(number, number + 10))
                number += 10
                try:
                    places = await stream.publish_many(batch)
                except NexoError:
                    continue
                for value, place in zip(batch, places, strict=True):
                    assert place.offset not in acknowledged
                    acknowledged[place.offset] = value

        await with_kills(served, publish)
        stored = await all_records(stream)
    assert sorted(stored) == list(range(len(stored)))
    assert {offset: stored.get(offset) for offset in acknowledged} == acknowledged


@pytest.mark.slow
async def test_read_process_write_gives_each_output_once(served: Process) -> None:  # SPEC H2
    inputs = 150

    async with nexo.AsyncClient(served.url, while_down="wait") as client:
        source = await client.stream("in").create()
        target = await client.stream("out").create()
        await source.publish_many(list(range(inputs)))

        async def process() -> None:
            async for record in source.consume("g", batch=5, wait=0.5, max_deliveries=0):
                try:
                    async with client.transaction() as tx:
                        await tx.publish("out", record.value)
                        await tx.ack(record)
                except (ConnectionLost, TransactionAborted, Conflict):
                    continue
                if not await lag(source):
                    return

        await with_kills(served, process)
        outputs = sorted((await all_records(target)).values())
    assert outputs == list(range(inputs))


async def lag(stream: Stream[Any]) -> int:
    try:
        return await stream.group("g").lag()
    except NexoError:
        return 1


async def all_records(stream: Stream[Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    at, end = 0, (await stream.info()).partitions[0].stable_offset
    while at < end:
        records = await stream.read(0, at)
        if not records:
            break
        found |= {record.offset: record.value for record in records}
        at = records[-1].offset + 1
    return found
