"""kill -9 of a real server under load: what was acknowledged is there, once (SPEC E3, F6, H2)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record
from nexo.errors import Conflict, ConnectionLost, NexoError, TransactionAborted
from nexo.testing import Process, process

KILLS = 40 if os.environ.get("SOAK") else 3
KEYS = 50


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
async def test_kills_during_compaction_lose_no_newest_value(tmp_path: Path) -> None:
    """SPEC I1: a key keeps its newest acknowledged value whatever moment the kill strikes at."""
    acknowledged: dict[str, int] = {}
    with process(tmp_path / "nexo", segment_bytes=8_192, dashboard=False) as served:
        async with nexo.AsyncClient(served.url, while_down="wait") as client:
            stream = await client.stream("s").create(cleanup="compact", min_dirty_ratio=0.01)
            compacted = 0

            async def publish() -> None:
                number = 0
                while len(acknowledged) < KEYS or number < 4_000:
                    rows = {f"key {n % KEYS}": n for n in range(number, number + 20)}
                    number += 20
                    with suppress(NexoError):
                        await stream.publish_many(list(rows.values()), keys=list(rows))
                        acknowledged.update(rows)

            async def compact(publishing: asyncio.Future[None]) -> None:
                nonlocal compacted
                while not publishing.done():
                    with suppress(NexoError):
                        compacted += await stream.compact() > 0

            async def both() -> None:
                publishing = asyncio.ensure_future(publish())
                await asyncio.gather(publishing, compact(publishing))

            await with_kills(served, both)
            newest = await newest_values(stream)
    assert compacted > KILLS
    assert {key: value for key, value in acknowledged.items() if newest[key] < value} == {}


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
    return {record.offset: record.value async for record in read(stream)}


async def newest_values(stream: Stream[Any]) -> dict[Any, Any]:
    return {record.key: record.value async for record in read(stream)}


async def read(stream: Stream[Any]) -> AsyncIterator[Record[Any]]:
    at, end = 0, (await stream.info()).partitions[0].stable_offset
    while at < end:
        records = await stream.read(0, at)
        if not records:
            break
        for record in records:
            yield record
        at = records[-1].offset + 1
