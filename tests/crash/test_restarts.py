"""Planned restarts under load: no call fails, and each has run once (SPEC A7, O3; finding T9).

``SOAK=1`` restarts twelve times during 250,000 calls.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import nexo
from nexo.testing import Process
from tests.crash.restart_loads import (
    KINDS,
    Tally,
    async_clients,
    found,
    prepare,
    sync_threads,
)
from tests.timing import eventually

SOAK = bool(os.environ.get("SOAK"))
RESTARTS, CLIENTS, CALLS = (12, 4, 250_000) if SOAK else (2, 1, 0)
TIMEOUT_S = 120.0
"""On a busy machine a start takes long; how long calls took is printed."""


async def restart_under(process: Process, tally: Tally) -> None:
    for number in range(RESTARTS):
        await reach(tally, CALLS * number // (RESTARTS + 1))
        await each_kind_again(tally)
        assert await asyncio.to_thread(process.terminate) == 0
        await asyncio.to_thread(process.start)
    await each_kind_again(tally)


async def reach(tally: Tally, calls: int) -> None:
    await eventually(lambda: tally.calls.total() >= calls, 1_200)


async def each_kind_again(tally: Tally) -> None:
    """Wait until a call of each kind has ended."""
    before = tally.calls.copy()
    await eventually(lambda: len(tally.calls - before) == len(tally.calls), 120)


@pytest.mark.slow
@pytest.mark.timeout(2_400 if SOAK else 300)
async def test_a_planned_restart_fails_no_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, tally = Process(tmp_path / "nexo", store_snapshot_ms=60_000), Tally()
    process.start()
    async with nexo.AsyncClient(process.url) as client:
        await prepare(client)
    threads = [
        thread
        for number in range(CLIENTS)
        for thread in sync_threads(process.url, number, tally, TIMEOUT_S)
    ]
    for thread in threads:
        thread.start()
    loads = [
        asyncio.create_task(async_clients(process.url, number, tally, TIMEOUT_S))
        for number in range(CLIENTS)
    ]
    try:
        await eventually(lambda: len(tally.calls) > 2 * len(KINDS), 60)
        await restart_under(process, tally)
        await reach(tally, CALLS)
    finally:
        tally.stopped.set()
        await asyncio.gather(*loads)
        for thread in threads:
            await asyncio.to_thread(thread.join)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{RESTARTS} restarts under {tally.calls.total():,} calls of {len(tally.calls)} kinds"
            f": {len(tally.failures)} failed, longest call {tally.longest_s:.2f} s\n"
        )
    try:
        assert tally.failures == []
        async with nexo.AsyncClient(process.url) as client:
            assert await found(client, tally) == tally.sums
    finally:
        process.close()
