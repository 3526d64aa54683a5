"""Replication to an object store whose puts take 20 ms: its cost, and takeovers."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import nexo
from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.object_store import object_store
from nexo.client._sync.stream.stream import Stream
from nexo.errors import NexoError
from nexo.testing import Process

PUT_MS = 20
BATCH = [b"x" * 100] * 1_000


def rows() -> list[Row]:
    return [
        Row(
            "replicated: publish 100 B in batches of 1,000, puts of 20 ms", "rec/s",
            ours=Contender("nexo replicated", _batches_replicated),
            peers=[Contender("nexo file_sync", _batches_synced)],
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


def _stream(bench: Bench, persistence: str) -> Stream[bytes]:
    settings: dict[str, object] = {"dashboard": False}
    if persistence == "replicated":
        settings["replicate"] = bench.enter(object_store(PUT_MS))
    server = bench.nexo(**settings)
    client = bench.enter(nexo.Client(server.url))
    stream: Stream[bytes] = client.stream("records")
    stream.create(persistence=persistence)
    return stream


def _batches_replicated(bench: Bench) -> Measure:
    return _batches(bench, "replicated")


def _batches_synced(bench: Bench) -> Measure:
    return _batches(bench, "file_sync")


def _batches(bench: Bench, persistence: str) -> Measure:
    stream, batches = _stream(bench, persistence), bench.scaled(200)

    def measure() -> float:
        began_s = time.perf_counter()
        stream.publish_many(BATCH * batches)
        return batches * len(BATCH) / (time.perf_counter() - began_s)

    return measure


def _one(bench: Bench) -> Measure:
    stream, times = _stream(bench, "replicated"), bench.scaled(100)

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
    with nexo.Client(leader.url) as client:
        client.queue("jobs").create(persistence="replicated")
        deadline_s = time.monotonic() + 10  # the standby has loaded, and its processes wait
        while time.monotonic() < deadline_s:
            client.queue("jobs").push("before")
    began_s = time.perf_counter()
    leader.kill()
    shutil.rmtree(leader.data_dir)
    while True:
        try:
            with nexo.Client(f"{standby.url}?while_down=fail") as client:
                client.queue("jobs").push("after")
                return time.perf_counter() - began_s
        except NexoError:
            time.sleep(0.02)
