"""The leader lost with its disk, again and again, under load on all brokers (SPEC N1-N3, N5).

Twenty clients know both addresses and follow the leader by themselves. Five losses in short;
``SOAK=1`` loses a hundred leaders with a lease of 3 s and prints how long takeovers took.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import nexo
from nexo.client._sync.queue.queue import Queue
from nexo.client.pubsub_message import Message
from nexo.errors import NexoError
from nexo.testing import Process
from tests.replicas import ready
from tests.timing import wait_until

SOAK = bool(os.environ.get("SOAK"))
LOSSES = int(os.environ.get("SOAK_LOSSES", "100" if SOAK else "5"))
LEASE_MS = 3_000 if SOAK else 1_000
CLIENTS = 20
PAUSE_S = 0.05
REPLICATED, LOOSE = ("jobs", "records", "topics"), ("loose-jobs", "loose-records")


@dataclass
class Told:
    """What one kind of write was acknowledged."""

    values: dict[str, float] = field(default_factory=dict)
    """Each with the time of its acknowledgement."""
    numbers: Counter[object] = field(default_factory=Counter)
    """Ids and offsets that were given out."""


class Load(threading.Thread):
    """Twenty clients in a loop of their own."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.told = {kind: Told() for kind in (*REPLICATED, *LOOSE, "keys")}
        self.ended = threading.Event()
        self._url = url
        self._after_s: float | None = None
        self.first_s: float | None = None
        """When the first replicated write was acknowledged that began after `since`."""

    def since(self, moment_s: float) -> None:
        self.first_s, self._after_s = None, moment_s

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        kinds = list(self.told)
        clients = (self._client(kinds[at % len(kinds)], at) for at in range(CLIENTS))
        await asyncio.gather(*clients)

    async def _client(self, kind: str, at: int) -> None:
        turn = 0
        async with nexo.AsyncClient(f"{self._url}?while_down=fail&timeout=3") as client:
            write = _writer(client, kind, at)
            while not self.ended.is_set():
                turn += 1
                await self._write(kind, f"{at}-{turn}", write)
                await asyncio.sleep(PAUSE_S)

    async def _write(
        self, kind: str, value: str, write: Callable[[str], Awaitable[object]]
    ) -> None:
        began_s = time.monotonic()
        try:
            number = await write(value)
        except NexoError:
            return  # its outcome is not known
        now_s = time.monotonic()
        self.told[kind].values[value] = now_s
        self.told[kind].numbers[number] += 1
        after_s = self._after_s
        if kind in REPLICATED and self.first_s is None and after_s and began_s > after_s:
            self.first_s = now_s


def _writer(client: nexo.AsyncClient, kind: str, at: int) -> Callable[[str], Awaitable[object]]:
    """Writes a value, and returns the number that it was given."""
    if kind.endswith("jobs"):
        return client.queue(kind).push
    if kind.endswith("records"):
        stream = client.stream(kind)

        async def publish(value: str) -> object:
            return (await stream.publish(value)).offset

        return publish

    async def put(value: str) -> object:
        if kind == "topics":
            await client.pubsub.publish(f"last/{at}", value, retain=True)
        else:
            await client.store.set(f"key/{at}", value)
        return value

    return put


@pytest.mark.timeout(4_000 if SOAK else 240)
def test_losing_the_leader_and_its_disk_loses_nothing_replicated(tmp_path: Path) -> None:
    servers = [_server(tmp_path / name) for name in ("one", "two")]
    for server in servers:
        server.start()
    leader, standby = servers
    load = Load(f"{leader.url},127.0.0.1:{standby.port}")
    took_s: list[float] = []
    killed_s: list[float] = []
    try:
        _create(leader.url)
        load.start()
        for _ in range(LOSSES):
            wait_until(lambda: bool(ready(leader)["replica"]["standbys"]), 60)  # noqa: B023
            wait_until(lambda: ready(standby)["replica"]["prepared"], 60)  # noqa: B023
            leader.kill()
            shutil.rmtree(leader.data_dir)
            killed_s.append(time.monotonic())
            load.since(killed_s[-1])
            wait_until(lambda: load.first_s is not None, 60)
            assert load.first_s is not None
            took_s.append(load.first_s - killed_s[-1])
            leader.start()
            leader, standby = standby, leader
        load.ended.set()
        load.join()
        _check(load, leader.url, killed_s)
    finally:
        load.ended.set()
        for server in servers:
            server.close()
    p99_s = max(took_s) if len(took_s) < 100 else statistics.quantiles(took_s, n=100)[98]
    print(  # noqa: T201
        f"{LOSSES} losses at a lease of {LEASE_MS} ms: takeover p50 "
        f"{statistics.median(took_s):.1f} s, p99 {p99_s:.1f} s"
    )


def _server(folder: Path) -> Process:
    store = folder.with_name("store")
    return Process(
        folder, replicate=f"file://{store}", replicate_lease_ms=LEASE_MS, dashboard=False,
        retained_persistence="replicated",
    )  # fmt: skip


def _create(url: str) -> None:
    with nexo.Client(url) as client:
        client.queue("jobs").create(persistence="replicated")
        client.stream("records").create(persistence="replicated")
        client.queue("loose-jobs").create(persistence="file_sync")
        client.stream("loose-records").create(persistence="file_sync")


def _check(load: Load, url: str, killed_s: list[float]) -> None:
    found = _found(url)
    windows_ms: list[float] = []
    for kind, told in load.told.items():
        assert told.values, f"no {kind} were written"
        if kind in ("jobs", "records", *LOOSE):
            twice = [number for number, times in told.numbers.items() if times > 1]
            assert not twice, f"numbers of {kind} given twice: {twice[:5]}"
    for kind in ("jobs", "records"):
        lost = load.told[kind].values.keys() - found[kind]
        assert not lost, f"{len(lost)} {kind} lost"
    _check_topics(load.told["topics"], found["topics"])
    for kind in LOOSE:
        for value in load.told[kind].values.keys() - found[kind]:
            told_s = load.told[kind].values[value]
            windows_ms.append(1000 * min(abs(at - told_s) for at in killed_s))
    print(  # noqa: T201
        f"{sum(len(told.values) for told in load.told.values()):,} acknowledged: replicated lost 0,"
        f" file_sync lost {len(windows_ms)}, told at most {max(windows_ms, default=0):.0f} ms"
        " before a loss; no offset, id or value twice"
    )
    assert max(windows_ms, default=0) < 10_000


def _check_topics(told: Told, found: set[object]) -> None:
    """Each client's retained value is the last one that it was told of, or a later one."""
    last = {at: int(turn) for at, turn in (value.split("-") for value in told.values)}
    kept = dict(str(value).split("-") for value in found)
    behind = {at: turn for at, turn in last.items() if int(kept.get(at, -1)) < turn}
    assert not behind, f"retained messages lost: {behind}"


def _found(url: str) -> dict[str, set[object]]:
    """What the last leader has."""
    with nexo.Client(url) as client:
        found: dict[str, set[object]] = {
            "topics": {view.value for view in _retained(client)},
        }
        for kind in ("jobs", "loose-jobs"):
            found[kind] = _jobs(client.queue(kind))
        for kind in ("records", "loose-records"):
            found[kind], offset = set(), 0
            while records := client.stream(kind).read(offset=offset):
                found[kind] |= {record.value for record in records}
                offset = records[-1].offset + 1
    return found


def _jobs(queue: Queue[object]) -> set[object]:
    values: set[object] = set()
    while page := queue.peek(limit=10_000, offset=len(values)):
        values |= {view.value for view in page}
    return values


def _retained(client: nexo.Client) -> list[Message[object]]:
    messages: list[Message[object]] = []
    topics = sum(1 for at in range(CLIENTS) if at % 6 == REPLICATED.index("topics"))
    subscription = client.pubsub.subscribe("last/#", messages.append)
    wait_until(lambda: len(messages) >= topics)
    subscription.close()
    return messages


@pytest.mark.skipif(not SOAK, reason="writes gigabytes: set SOAK=1")
@pytest.mark.timeout(3_000)
def test_a_standby_joins_while_the_leader_works(tmp_path: Path) -> None:
    leader, standby = (_server(tmp_path / name) for name in ("one", "two"))
    joined_bytes = int(os.environ.get("SOAK_JOIN_MB", "2000")) * 1_000_000
    load = Load(f"{leader.url},127.0.0.1:{standby.port}")
    try:
        leader.start()
        _create(leader.url)
        with nexo.Client(f"{leader.url}?timeout=60") as client:
            client.stream("bulk").create(retention={"max_bytes": 0})
            for _ in range(joined_bytes // 8_000_000):
                client.stream("bulk").publish_many([os.urandom(8_000)] * 1_000)
        load.start()
        began_s = time.monotonic()
        standby.start()
        wait_until(lambda: ready(standby)["replica"]["prepared"], 2_000)
        wait_until(lambda: ready(standby)["replica"]["lag_ms"] == 0, 600)
        took_s = time.monotonic() - began_s
        size = sum(path.stat().st_size for path in standby.data_dir.rglob("*") if path.is_file())
        told = sum(len(told.values) for told in load.told.values())
    finally:
        load.ended.set()
        leader.close()
        standby.close()
    print(  # noqa: T201
        f"a standby joined {size / 1e9:.2f} GB in {took_s:.0f} s ({size / took_s / 1e6:.0f} MB/s) "
        f"while the leader acknowledged {told:,} writes"
    )
    assert told
