"""Planned restarts under load: calls that may be repeated never fail (SPEC O3).

``SOAK=1`` restarts twenty times under twenty clients of each kind.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import nexo
from nexo.errors import NexoError
from nexo.testing import Process
from tests.timing import eventually

SOAK = bool(os.environ.get("SOAK"))
RESTARTS, CLIENTS = (20, 20) if SOAK else (2, 4)
TIMEOUT_S = 120.0 if SOAK else 30.0
"""On a busy machine a start takes long; how long calls took is printed."""


@dataclass
class Tally:
    """What clients saw."""

    stop: threading.Event = field(default_factory=threading.Event)
    calls: int = 0
    failures: list[str] = field(default_factory=list)
    unknown: int = 0
    """Writes whose outcome was reported as unknown."""
    stored: set[str] = field(default_factory=set)
    """Acknowledged records."""
    longest_s: float = 0.0
    under_way: set[str] = field(default_factory=set)
    """Clients that have reached every broker they use."""

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        """One call that the client may send again."""
        began_s = time.monotonic()
        try:
            yield
        except NexoError as error:
            self.failures.append(f"{error.code}: {error}")
        self.calls += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)


async def async_load(url: str, number: int, tally: Tally) -> None:
    async with nexo.AsyncClient(url, timeout=TIMEOUT_S) as client:
        stream = client.stream("s")
        for turn in range(1_000_000):
            if tally.stop.is_set():
                return
            with tally.repeatable():
                await client.store.get("k")
            with tally.repeatable():
                await stream.info()
            name = f"async-{number}-{turn}"
            try:
                await stream.publish(name)
            except NexoError:
                tally.unknown += 1
            else:
                tally.stored.add(name)
                tally.under_way.add(f"async-{number}")


def sync_load(url: str, number: int, tally: Tally) -> None:
    with nexo.Client(url, timeout=TIMEOUT_S) as client:
        queue = client.queue("q")
        for turn in range(1_000_000):
            if tally.stop.is_set():
                return
            with tally.repeatable():
                client.store.get("k")
            with tally.repeatable():
                queue.info()
            name = f"sync-{number}-{turn}"
            try:
                queue.push(name)
            except NexoError:
                tally.unknown += 1
            else:
                tally.stored.add(name)
                tally.under_way.add(f"sync-{number}")


async def restart(process: Process, tally: Tally) -> None:
    await eventually(lambda: len(tally.under_way) == 2 * CLIENTS, 60)
    for _ in range(RESTARTS):
        await asyncio.sleep(0.5)  # some load between two restarts
        assert await asyncio.to_thread(process.terminate) == 0
        await asyncio.to_thread(process.start)


@pytest.mark.slow
@pytest.mark.timeout(1_200 if SOAK else 120)
async def test_planned_restarts_fail_no_call_that_may_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, tally = Process(tmp_path / "nexo"), Tally()
    process.start()
    with nexo.connect(process.url) as client:
        client.store.set("k", "v")
        client.stream("s").create()
        client.queue("q").create()
    threads = [
        threading.Thread(target=sync_load, args=(process.url, number, tally))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    loads = [
        asyncio.create_task(async_load(process.url, number, tally)) for number in range(CLIENTS)
    ]
    try:
        await restart(process, tally)
    finally:
        tally.stop.set()
        await asyncio.gather(*loads)
        for thread in threads:
            await asyncio.to_thread(thread.join)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{RESTARTS} restarts under {2 * CLIENTS} clients: {tally.calls:,} repeatable calls, "
            f"{len(tally.failures)} failed, {tally.unknown} writes of unknown outcome, longest "
            f"call {tally.longest_s:.2f} s\n"
        )
    try:
        assert tally.failures == []
        assert tally.calls > 2 * CLIENTS
        assert tally.stored <= found(process.url)
    finally:
        process.close()


def found(url: str) -> set[str]:
    """Everything that is stored."""
    with nexo.connect(url) as client:
        names = {record.value for record in read_all(client)}
        while jobs := client.queue("q", str).pop(1_000):
            names.update(jobs.values())
            jobs.ack()
        return names


def read_all(client: nexo.Client) -> Iterator[nexo.types.Record[str]]:
    stream, offset = client.stream("s", str), 0
    while records := stream.read(0, offset):
        yield from records
        offset = records[-1].offset + 1
