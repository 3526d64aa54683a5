"""kill -9 while partitions are added: what was acknowledged is there (SPEC E1, E3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.errors import NexoError
from nexo.testing import Process

ROUNDS = 4


@pytest.mark.slow
@pytest.mark.parametrize("persistence", ["file_async", "file_sync"])
async def test_acknowledged_partitions_and_their_records_survive(
    served: Process, persistence: str
) -> None:
    """Killed right after the answer, and at any moment before it."""
    acknowledged: dict[tuple[int, int], int] = {}
    count = 2
    async with nexo.AsyncClient(served.url, while_down="wait") as client:
        stream: Stream[Any] = await client.stream("s").create(
            partitions=count, persistence=persistence
        )

        async def publish(numbers: range) -> None:
            for number in numbers:
                with suppress(NexoError):
                    place = await stream.publish(number, key=f"k{number}")
                    acknowledged[place.partition, place.offset] = number

        for round_ in range(ROUNDS):
            await publish(range(round_ * 1_000, round_ * 1_000 + 50))
            await stream.update(partitions=count + 1)
            await asyncio.to_thread(served.kill)  # right after the answer
            await asyncio.to_thread(served.restart)
            count += 1
            assert len((await stream.info()).partitions) == count
            growing = asyncio.ensure_future(stream.update(partitions=count + 2))
            writing = asyncio.ensure_future(
                publish(range(round_ * 1_000 + 50, round_ * 1_000 + 90))
            )
            await asyncio.wait({growing}, timeout=0.001 * round_)
            await asyncio.to_thread(served.kill)  # at some moment
            await asyncio.to_thread(served.restart)
            await asyncio.gather(growing, writing, return_exceptions=True)
            found = len((await stream.info()).partitions)
            assert found in (count, count + 2)
            assert growing.exception() is not None or found == count + 2
            count = found
        stored: dict[tuple[int, int], int] = {}
        for partition in range(count):
            offset = 0
            while rows := await stream.read(partition, offset):
                stored |= {(partition, row.offset): row.value for row in rows}
                offset = rows[-1].offset + 1
        assert acknowledged.items() <= stored.items()
        assert {partition for partition, _ in acknowledged} > {0, 1}
