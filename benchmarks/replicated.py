"""Replication to an object store whose puts take 20 ms: its cost, and takeovers."""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nexo
from benchmarks.harness import Bench, Contender, Measure, Row, rate_async
from benchmarks.object_store import object_store
from nexo.errors import NexoError
from nexo.testing import Process
from nexo.types import AsyncStream, Stream

PUT_MS = 20
TASKS = 40
"""Whoever waits for each batch alone has one batch per put."""
WAIT_S = 60
BATCH = [b"x" * 100] * 1_000


def rows() -> list[Row]:
    return [
        Row(
            "replicated: 40 tasks publish 100 B in batches of 1,000, puts of 20 ms", "rec/s",
            ours=Contender("nexo replicated", partial(_batches, "replicated")),
            peers=[Contender("nexo file_sync", partial(_batches, "file_sync"))],
            bar=0.3, durability="replicated",
        ),
        Row(
            "replicated: publish one, p50, puts of 20 ms", "ms",
            ours=Contender("nexo replicated", _one),
            limit=3.0 * PUT_MS, durability="replicated", lower_is_better=True,
        ),
        Row(
            "takeover: leader killed with its disk to first acknowledged write, lease 3 s", "s",
            ours=Contender("nexo replicated", lambda bench: _takeover_s),
            limit=6.0, durability="replicated", lower_is_better=True, slow=True,
        ),
    ]  # fmt: skip


def _url(bench: Bench, persistence: str) -> str:
    """A server. Its port is open before it leads, for which a busy machine takes its time."""
    settings: dict[str, object] = {"dashboard": False}
    if persistence == "replicated":
        settings["replicate"] = bench.enter(object_store(PUT_MS))
    return f"{bench.nexo(**settings).url}?timeout=60&down_wait=60"


def _batches(persistence: str, bench: Bench) -> Measure:
    client = bench.enter_async(nexo.AsyncClient(_url(bench, persistence)))
    stream: AsyncStream[bytes] = client.stream("records")
    bench.run(stream.create(persistence=persistence))
    batches = bench.scaled(400) // TASKS

    async def task() -> None:
        for _ in range(batches):
            await stream.publish_many(BATCH)

    async def measure() -> float:
        records = TASKS * batches * len(BATCH)
        return await rate_async(records, asyncio.gather(*(task() for _ in range(TASKS))))

    return lambda: bench.run(measure())


def _one(bench: Bench) -> Measure:
    client = bench.enter(nexo.Client(_url(bench, "replicated")))
    stream: Stream[bytes] = client.stream("records")
    stream.create(persistence="replicated")
    times = bench.scaled(100)

    def measure() -> float:
        return statistics.median(_publish_ms(stream) for _ in range(times))

    return measure


def _publish_ms(stream: Stream[bytes]) -> float:
    began_s = time.perf_counter()
    stream.publish(b"x" * 100)
    return (time.perf_counter() - began_s) * 1000


def _takeover_s() -> float:
    folder = Path(tempfile.mkdtemp(prefix="nexo-takeover-"))
    with object_store(PUT_MS) as url:
        servers = [Process(folder / name, replicate=url, dashboard=False) for name in "ab"]
        try:
            for server in servers:
                server.start()
            return _lose(*servers)
        finally:
            for server in servers:
                server.close()
            shutil.rmtree(folder, ignore_errors=True)


def _lose(leader: Process, standby: Process) -> float:
    with nexo.Client(f"{leader.url}?timeout=60&down_wait=60") as client:
        client.queue("jobs").create(persistence="replicated")
        client.queue("jobs").push("before")
    _wait(lambda: _replica(standby)["prepared"] and bool(_replica(leader)["standbys"]))
    began_s = time.perf_counter()
    leader.kill()
    shutil.rmtree(leader.data_dir)
    _wait(lambda: _pushed(standby))
    return time.perf_counter() - began_s


def _replica(server: Process) -> dict[str, Any]:
    """What a server says of its replicas."""
    try:
        with urllib.request.urlopen(f"{server.health_url}/ready") as reply:
            body = reply.read()
    except urllib.error.HTTPError as error:  # a standby is not ready
        body = error.read()
    found: dict[str, Any] = json.loads(body)["replica"]
    return found


def _pushed(server: Process) -> bool:
    try:
        with nexo.Client(f"{server.url}?while_down=fail") as client:
            client.queue("jobs").push("after")
    except NexoError:
        return False
    return True


def _wait(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nothing happened in {WAIT_S} s")
        time.sleep(0.02)
