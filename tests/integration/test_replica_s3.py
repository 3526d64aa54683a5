"""Servers that replicate to S3's API (SPEC N1, N4): takeover, restore, and every fault of a put."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from nexo import Client
from nexo.cli import main
from nexo.errors import Unavailable
from nexo.testing import Process, process
from tests.replicas import Writer, leads, ready, verdict
from tests.s3_server import Fault, S3Server
from tests.timing import wait_until

LEASE = {"replicate_lease_ms": 1_500}
FAULTS: tuple[Fault, ...] = ("refused", "503", "409", "412", "reply lost", "hung")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid4().hex[:8]}"
    urllib.request.urlopen(urllib.request.Request(f"{s3.url()}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}/nexo"


def serve(folder: Path, url: str, **settings: Any) -> Process:
    server = Process(folder, replicate=url, dashboard=False, replicate_ms=50, **LEASE, **settings)
    server.start()
    return server


def restored(url: str, folder: Path, *options: str) -> set[object]:
    """Restore a folder, have the doctor look at it, and return the jobs in it."""
    done = CliRunner().invoke(main, ["restore", url, "--data-dir", str(folder), *options])
    assert done.exit_code == 0, done.output
    sound = CliRunner().invoke(main, ["doctor", str(folder)])
    assert sound.exit_code == 0, sound.output
    assert json.loads((folder / "nexo.format").read_text())["format"]
    with process(folder, dashboard=False) as server, Client(server.url) as client:
        return {view.value for view in client.queue("jobs").peek(limit=10_000)}


def test_a_standby_takes_over_and_an_empty_machine_is_restored(url: str, tmp_path: Path) -> None:
    first = serve(tmp_path / "first", url)
    second = None
    try:
        with Client(first.url) as client:
            client.queue("jobs").create(persistence="replicated")
            client.queue("jobs").push_many([f"early {n}" for n in range(50)])
        time.sleep(0.002)
        chosen = datetime.now(UTC).isoformat()
        time.sleep(0.002)
        second = serve(tmp_path / "second", url)
        with Client(first.url) as client:
            client.queue("jobs").push_many([f"late {n}" for n in range(50)])
        wait_until(lambda: bool(ready(first)["replica"]["standbys"]), 60)
        first.kill()
        shutil.rmtree(first.data_dir)
        wait_until(lambda: leads(second), 60)
        with Client(second.url) as client:
            client.queue("jobs").push("after the takeover")
        second.kill()
    finally:
        first.close()
        if second is not None:
            second.close()
    early, late = {f"early {n}" for n in range(50)}, {f"late {n}" for n in range(50)}
    assert restored(url, tmp_path / "all") == early | late | {"after the takeover"}
    assert restored(url, tmp_path / "then", "--at", chosen) == early


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
            for fault in FAULTS:
                before = s3.faults
                with s3.failing(fault):
                    said = _push(queue, f"during {fault}", confirmed)
                    fast.push(fault)  # needs no store
                    wait_until(lambda: s3.faults > before, 30)  # noqa: B023 - called in the loop
                print(f"put {fault}: {said}")  # noqa: T201
                wait_until(lambda: _push(queue, f"after {fault}", confirmed) == "acknowledged", 60)  # noqa: B023
            assert len(fast.peek(limit=100)) == len(FAULTS)
            assert leads(server)
    finally:
        server.close()
    shutil.rmtree(tmp_path / "server")
    found = restored(url, tmp_path / "restored")
    assert confirmed <= found
    assert {f"after {fault}" for fault in FAULTS} <= found


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
        wait_until(lambda: bool(ready(old)["replica"]["standbys"]), 60)
        with Writer(old.url) as past, Writer(new.url) as present:
            past.wait_for(5)
            s3.cut = True
            present.wait_for(5)
            s3.cut = False
            wait_until(lambda: ready(old).get("state") == "standby", 60)
            present.wait_for(5)
        print(f"cut from the store: {verdict(past, present)}")  # noqa: T201
    finally:
        s3.cut = False
        old.close()
        new.close()


def _push(queue: Any, value: str, confirmed: set[object]) -> str:
    """What the client is told of a push."""
    try:
        queue.push(value)
    except Unavailable as error:
        return f"UNAVAILABLE, {error.message}"
    confirmed.add(value)
    return "acknowledged"
