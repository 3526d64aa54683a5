"""Servers that replicate to S3's API (SPEC N1, N4): takeover, restore, and every fault of a put."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

import pytest
from click.testing import CliRunner
from msgspec import structs

from nexo import Client
from nexo.cli import main
from nexo.config.keywords import ServerSettings
from nexo.errors import Unavailable
from nexo.replication.objects import AlreadyThere, StoreFailed
from nexo.replication.stores import open_store
from nexo.testing import Process, process
from nexo.types import Message
from tests.azure_server import azure_server
from tests.replicas import Writer, leads, ready, verdict
from tests.s3_server import Fault, S3Server
from tests.timing import wait_until

LEASE_MS = 1_500
SNAPSHOTS: ServerSettings = {"store_snapshot_ms": 100}
YES = "acknowledged"
FAULTS: tuple[Fault, ...] = ("refused", "503", "409", "412", "reply lost", "hung")
SOAK = bool(os.environ.get("SOAK"))
LONG_FAULTS = FAULTS if SOAK else FAULTS[::5]
"""Those that are tried for longer than a write waits."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.bucket()}/nexo"


def serve(folder: Path, url: str, **settings: Unpack[ServerSettings]) -> Process:
    usual: ServerSettings = {"dashboard": False, "replicate_ms": 50, "replicate_lease_ms": LEASE_MS}
    server = Process(folder, **(usual | {"replicate": url} | settings))
    server.start()
    return server


def restored(url: str, folder: Path, *options: str) -> dict[str, Any]:
    """Restore a folder, have the doctor look at it, and return all that a server finds in it."""
    done = CliRunner().invoke(main, ["restore", url, "--data-dir", str(folder), *options])
    assert done.exit_code == 0, done.output
    sound = CliRunner().invoke(main, ["doctor", str(folder)])
    assert sound.exit_code == 0, sound.output
    assert json.loads((folder / "nexo.format").read_text())["format"]
    alone: ServerSettings = SNAPSHOTS | {"dashboard": False}
    with process(folder, **alone) as server, Client(server.url) as client:
        return everything(client) | {"users": users(folder)}


def fill(client: Client, name: str) -> None:
    """Something of each kind, under this name."""
    client.store.set(name, "a value")
    client.pubsub.publish(f"last/{name}", "a message", retain=True)
    queue = client.queue(name).create(persistence="replicated", max_retries=0)
    queue.push_many([f"{name} {n}" for n in range(50)])
    queue.pop()[0].nack("it is bad")
    queue.push("later", delay=3_600)
    queue.cron.set("daily", "0 0 * * *", "a job")
    stream = client.stream(name).create(persistence="replicated", partitions=2)
    stream.publish_many([f"{name} {n}" for n in range(50)], keys=[str(n) for n in range(50)])
    with stream.consume("readers", batch=7) as consumer:
        consumer.fetch(wait=30).ack()


def everything(client: Client) -> dict[str, Any]:
    """All that `fill` made, by kind."""
    messages: list[Message[object]] = []
    retained = client.pubsub.retained("last/#")
    with client.pubsub.subscribe("last/#", messages.append):
        wait_until(lambda: len(messages) >= len(retained), 60)
    queues = {name: client.queue(name) for name in client.queues()}
    streams = {name: client.stream(name) for name in client.streams()}
    return {
        "keys": {key: client.store.get(key) for key in client.store.keys("")},
        "retained": {message.topic: message.value for message in messages},
        "jobs": {n: [view.value for view in queue.peek(100)] for n, queue in queues.items()},
        "delayed": {n: [v.value for v in queue.scheduled.list()] for n, queue in queues.items()},
        "dead": {n: [view.value for view in queue.dlq.peek()] for n, queue in queues.items()},
        "cron": {n: [each.name for each in queue.cron.list()] for n, queue in queues.items()},
        "records": {
            name: [(r.partition, r.offset, r.value) for p in (0, 1) for r in stream.read(p)]
            for name, stream in streams.items()
        },
        "groups": {
            name: [(group.name, group.lag) for group in stream.groups()]
            for name, stream in streams.items()
        },
    }


def users(folder: Path) -> list[str]:
    listed = CliRunner().invoke(main, ["user", "list", "--json", "--data-dir", str(folder)])
    assert listed.exit_code == 0, listed.output
    return [json.loads(line)["name"] for line in listed.stdout.splitlines()]


def shipped(server: Process, client: Client) -> None:
    """Wait until the store has all that was written, keys and users too."""
    now_ms, before = int(time.time() * 1000), ready(server)["replica"]["lease_number"]
    client.store.set("now", now_ms)
    wait_until(lambda: (client.info().store.snapshot.saved_ms or 0) > now_ms, 60)
    wait_until(lambda: all(row.replica.lag_ms == 0 for row in structs.astuple(client.info())), 60)
    wait_until(lambda: ready(server)["replica"]["lease_number"] > before + 1, 60)


@pytest.mark.parametrize("fault", ["409", "412"])
def test_a_put_that_was_refused_with_nothing_there_has_failed(
    s3: S3Server, url: str, fault: Fault
) -> None:
    """A base would otherwise list files that nobody can restore."""
    store = open_store(url)
    with s3.failing(fault), pytest.raises(StoreFailed, match="nothing is there"):
        store.create("file/a", b"one")
    store.create("file/a", b"one")
    with pytest.raises(AlreadyThere):
        store.create("file/a", b"two")
    assert store.get("file/a") == b"one"


def test_a_standby_takes_over_and_an_empty_machine_is_restored(url: str, tmp_path: Path) -> None:
    take_over_and_restore(url, tmp_path)


@pytest.mark.skipif(not SOAK, reason="needs npm's azurite, 360 MB: make soak")
def test_a_standby_takes_over_on_azures_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with azure_server(tmp_path / "azure") as azure:
        for name, value in azure.environment().items():
            monkeypatch.setenv(name, value)
        take_over_and_restore(f"az://{azure.container()}/nexo", tmp_path)


def take_over_and_restore(url: str, tmp_path: Path) -> None:
    first = serve(tmp_path / "first", url, **SNAPSHOTS)
    second = None
    try:
        add = ["user", "add", "alice", "--no-password", "--data-dir", str(first.data_dir)]
        assert CliRunner().invoke(main, add).exit_code == 0
        with Client(first.url) as client:
            fill(client, "early")
            shipped(first, client)
            early = everything(client) | {"users": ["alice"]}
            time.sleep(0.002)
            chosen = datetime.now(UTC).isoformat()
            time.sleep(0.002)
            fill(client, "late")
        second = serve(tmp_path / "second", url, **SNAPSHOTS)
        wait_until(lambda: bool(ready(first)["replica"]["standbys"]), 60)
        with Client(first.url) as client:
            shipped(first, client)
            late = everything(client) | {"users": ["alice"]}
        first.kill()
        shutil.rmtree(first.data_dir)
        wait_until(lambda: leads(second), 60)
        with Client(second.url) as client:
            assert everything(client) | {"users": users(second.data_dir)} == late
            client.queue("late").push("after the takeover")
        late["jobs"]["late"].append("after the takeover")
        second.kill()
    finally:
        first.close()
        if second is not None:
            second.close()
    assert restored(url, tmp_path / "all") == late
    assert restored(url, tmp_path / "then", "--at", chosen) == early
    assert len(early["jobs"]["early"]) == 49
    assert early["dead"]["early"] == ["early 0"]
    print(f"restored from {url}: {', '.join(late)}, now and as of {chosen}")  # noqa: T201


def test_whatever_happens_to_puts_nothing_acknowledged_is_lost(
    s3: S3Server, url: str, tmp_path: Path
) -> None:
    server = serve(tmp_path / "server", url, replicate_wait_ms=300)
    confirmed: set[object] = set()
    try:
        with Client(f"{server.url}?timeout=20") as client:
            queue, fast = client.queue("jobs"), client.queue("fast")
            queue.create(persistence="replicated")
            fast.create(persistence="file_sync")
            for fault in LONG_FAULTS:
                before = s3.faults
                with s3.failing(fault):
                    said = _push(queue, f"during {fault}", confirmed)
                    fast.push(fault)  # needs no store
                    wait_until(lambda: s3.faults > before, 30)  # noqa: B023 - called in the loop
                print(f"put {fault}: {said}")  # noqa: T201
                wait_until(lambda: _push(queue, f"after {fault}", confirmed) == YES, 60)  # noqa: B023
            assert len(fast.peek(limit=100)) == len(LONG_FAULTS)
            assert leads(server)
    finally:
        server.close()
    shutil.rmtree(tmp_path / "server")
    found = set(restored(url, tmp_path / "restored")["jobs"]["jobs"])
    assert confirmed <= found
    assert {f"after {fault}" for fault in LONG_FAULTS} <= found


def test_every_put_goes_wrong_once_and_nothing_is_lost(
    s3: S3Server, url: str, tmp_path: Path
) -> None:
    """Of logs, leases, claims, bases and files alike, while a standby reads along."""
    took_s: dict[Fault, float] = {}
    confirmed: set[object] = set()
    leader = serve(tmp_path / "leader", url)
    standby: Process | None = None
    try:
        with Client(leader.url) as client:
            client.queue("jobs").create(persistence="replicated")
        leader.kill()  # its next start uploads all files
        with s3.striking(FAULTS):
            leader.start()
            standby = serve(tmp_path / "standby", url)
            with Client(f"{leader.url}?timeout=20&down_wait=60") as client:
                queue = client.queue("jobs")
                wait_until(lambda: _struck_all(s3, queue, confirmed, took_s), 120)
            wait_until(lambda: bool(ready(leader)["replica"]["standbys"]), 60)
            leader.kill()
            shutil.rmtree(leader.data_dir)
            wait_until(lambda: leads(standby), 60)
            with Client(f"{standby.url}?timeout=20") as client:
                wait_until(lambda: _push(client.queue("jobs"), "last", confirmed) == YES, 60)
                found = {view.value for view in client.queue("jobs").peek(10_000)}
    finally:
        leader.close()
        if standby is not None:
            standby.close()
    print(f"put by put: {sum(s3.struck.values())} went wrong, {len(confirmed)} confirmed, 0 lost;")  # noqa: T201
    print("slowest write by what its put met:", {f: f"{s:.2f} s" for f, s in took_s.items()})  # noqa: T201
    print("objects:", sorted({kind for kind, _ in s3.struck}))  # noqa: T201
    assert confirmed <= found
    assert {"queue", "stream", "store", "pubsub", "lease", "reset", "base"} <= {
        kind for kind, _ in s3.struck
    }


def _struck_all(
    s3: S3Server, queue: Any, confirmed: set[object], took_s: dict[Fault, float]
) -> bool:
    """Push once; whether each fault has met a put of such a push."""
    before, began_s = s3.struck.copy(), time.monotonic()
    if _push(queue, f"job {len(confirmed)}", confirmed) == YES:
        new = {fault for kind, fault in s3.struck - before if kind == "queue"}
        for fault in new:
            took_s[fault] = max(took_s.get(fault, 0.0), time.monotonic() - began_s)
    return len(took_s) == len(FAULTS)


def test_a_leader_cut_from_the_store_alone_falls_silent(
    s3: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = serve(tmp_path / "old", url)
    for name, value in s3.environment(door=1).items():
        monkeypatch.setenv(name, value)
    new = serve(tmp_path / "new", url)
    try:
        with Client(old.url) as client:
            client.queue("jobs").create(persistence="file_sync")
            client.stream("records").create(persistence="file_sync")
        wait_until(lambda: bool(ready(old)["replica"]["standbys"]), 60)
        with Writer(old.url) as past, Writer(new.url) as present:
            past.wait_for(8)
            s3.cut = True
            present.wait_for(8)
            s3.cut = False
            wait_until(lambda: ready(old).get("state") == "standby", 60)
            present.wait_for(8)
        print(f"cut from the store: {verdict(past, present)}")  # noqa: T201
    finally:
        s3.cut = False
        old.close()
        new.close()


@pytest.mark.skipif(not SOAK, reason="takes half a minute: set SOAK=1")
def test_a_standby_that_joins_while_the_leader_is_cut_off_waits_for_it(
    s3: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a leader knows of no standby and goes on without the store, but not with ``replicated``.

    It can be reached, so its lead is not taken.
    """
    old = serve(tmp_path / "old", url)
    new: Process | None = None
    try:
        with Client(old.url) as client:
            client.queue("jobs").create(persistence="file_sync")
            client.stream("records").create(persistence="file_sync")
        before = ready(old)["replica"]["lease_number"]
        wait_until(lambda: ready(old)["replica"]["lease_number"] > before + 1, 60)
        s3.cut = True
        for name, value in s3.environment(door=1).items():
            monkeypatch.setenv(name, value)
        new = serve(tmp_path / "new", url)
        with Writer(old.url) as past, Writer(new.url) as present:
            wait_until(lambda: "and serves" in ready(new)["replica"]["problem"], 60)
            past.wait_for(8)
            assert not present.values, "the standby acknowledged"
            old.kill()
            present.wait_for(8)
        print(f"cut from the store before a standby joined: {verdict(past, present)}")  # noqa: T201
    finally:
        s3.cut = False
        old.close()
        if new is not None:
            new.close()


def _push(queue: Any, value: str, confirmed: set[object]) -> str:
    """What the client is told of a push."""
    try:
        queue.push(value)
    except Unavailable as error:
        return f"UNAVAILABLE, {error.message}"
    confirmed.add(value)
    return YES
