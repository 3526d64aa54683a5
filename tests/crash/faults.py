"""Faults let loose on a real server under load. The seed decides what is done and when.

Each returns rows for the table of `docs/RELIABILITY.md`. Short runs are tests; ``make soak``
does the long ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import nexo
from nexo.model import Broker
from nexo.testing import Process
from tests.crash.history import Findings
from tests.crash.loads import (
    Load,
    QueueLoad,
    RetainedLoad,
    SavedStoreLoad,
    StreamLoad,
    status,
)
from tests.timing import eventually

PROGRESS_S = 60.0


@dataclass(frozen=True)
class Row:
    """What a fault came to."""

    fault: str
    broker: str
    runs: int
    operations: int
    findings: Findings

    @property
    def clean(self) -> bool:
        """Whether every promise held."""
        return not self.findings


def all_loads(seed: int) -> list[Load]:
    """A load for every broker in each of its modes."""
    return [
        SavedStoreLoad(seed),
        RetainedLoad(seed + 1),
        QueueLoad(seed + 2, "file_sync"),
        QueueLoad(seed + 3, "file_async"),
        StreamLoad(seed + 4, "file_async"),
        StreamLoad(seed + 5, "file_sync"),
    ]


def server(folder: Path) -> Process:
    """A server whose store is saved often."""
    return Process(folder, dashboard=False, store_snapshot_ms=100, log="error")


class Fault(Protocol):
    """Something that happens to a server, and what brings it back."""

    name: str

    def strikes(self, broker: Broker, lives: int) -> int:
        """How often ``broker`` is struck in so many lives."""
        ...

    async def strike(self, process: Process, life: int) -> None: ...

    async def recover(self, process: Process) -> None: ...


class KillEverything:
    """kill -9 of the supervisor and all brokers at once."""

    name = "kill -9, all processes"

    def strikes(self, broker: Broker, lives: int) -> int:
        return lives

    async def strike(self, process: Process, life: int) -> None:
        await asyncio.to_thread(process.kill)

    async def recover(self, process: Process) -> None:
        await asyncio.to_thread(process.start)


class StopEverything(KillEverything):
    """SIGTERM in the middle of the work."""

    name = "SIGTERM under load"

    async def strike(self, process: Process, life: int) -> None:
        code = await asyncio.to_thread(process.terminate)
        assert code == 0, f"the server ended with {code}"


class KillOneBroker:
    """kill -9 of one broker after the other, which the supervisor restarts."""

    name = "kill -9, one broker"

    def strikes(self, broker: Broker, lives: int) -> int:
        return sum(struck(life) == broker for life in range(lives))

    async def strike(self, process: Process, life: int) -> None:
        os.kill(await pid_of(process, life), signal.SIGKILL)

    async def recover(self, process: Process) -> None:
        await asyncio.to_thread(process.wait_ready)


class FreezeOneBroker(KillOneBroker):
    """SIGSTOP of one broker for a while: it goes on as if nothing had happened."""

    name = "SIGSTOP, one broker"

    async def strike(self, process: Process, life: int) -> None:
        pid = await pid_of(process, life)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(pid, signal.SIGCONT)


def struck(life: int) -> Broker:
    """The broker whose turn it is."""
    return list(Broker)[life % len(Broker)]


async def pid_of(process: Process, life: int) -> int:
    """The process of a broker, another one in every life."""
    async with nexo.AsyncClient(process.url) as client:
        pid: int = (await status(client, struck(life)))["process"]["pid"]
    return pid


async def inflict(fault: Fault, folder: Path, seed: int, runs: int) -> list[Row]:
    """Let every load make some progress, strike, check, and again; then check everything."""
    loads, source = all_loads(seed), random.Random(seed)
    found = {load.label: Findings() for load in loads}
    process = server(folder)
    await asyncio.to_thread(process.start)
    try:
        async with nexo.AsyncClient(process.url) as client:
            for load in loads:
                await load.prepare(client)
        for life in range(runs):
            await _one_life(process, loads, source, fault, life)
            await fault.recover(process)
            async with nexo.AsyncClient(process.url) as client:
                for load in loads:
                    found[load.label] += await load.after_restart(client)
        async with nexo.AsyncClient(process.url) as client:
            for load in loads:
                found[load.label] += await load.check(client)
    finally:
        await asyncio.to_thread(process.close)
    return [
        Row(fault.name, x.label, fault.strikes(x.broker, runs), x.operations, found[x.label])
        for x in loads
    ]


async def _one_life(
    process: Process, loads: Sequence[Load], source: random.Random, fault: Fault, life: int
) -> None:
    """Work, then the fault in the middle of it; all work has ended when this returns."""
    async with nexo.AsyncClient(f"{process.url}?while_down=fail&timeout=10") as client:
        goals = [load.operations + source.randrange(5, 60) for load in loads]
        for load in loads:
            load.stopping = False
        working = asyncio.gather(*(load.run(client) for load in loads))

        def halfway() -> bool:
            if working.done():
                working.result()
            return all(x.operations >= goal for x, goal in zip(loads, goals, strict=True))

        try:
            await eventually(halfway, PROGRESS_S)
            await fault.strike(process, life)
        finally:
            for load in loads:
                load.stopping = True
            await working
