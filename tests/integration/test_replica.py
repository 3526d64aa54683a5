"""Two real servers and a store in a folder: losses of the leader with its disk (SPEC N1-N5)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nexo import Client
from nexo.cli import main
from nexo.errors import NexoError, NotLeader, Unavailable
from nexo.testing import Process, process
from tests.timing import wait_until

LOSSES = int(os.environ.get("NEXO_SOAK_LOSSES", "3"))
LEASE_MS = 1_500


class Pair:
    """Two servers over one store; one of them leads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.servers: list[Process] = []
        self.leader = self.start()

    def start(self, **settings: Any) -> Process:
        server = Process(
            self.folder / f"server-{len(self.servers)}",
            replicate=f"file://{self.store}",
            replicate_lease_ms=LEASE_MS,
            dashboard=False,
            **settings,
        )
        self.servers.append(server)
        server.start()
        return server


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for server in made.servers:
        server.close()


def ready(server: Process) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{server.health_url}/ready") as reply:
            body = reply.read()
    except urllib.error.HTTPError as error:
        body = error.read()
    except OSError:
        return {}
    found: dict[str, Any] = json.loads(body)
    return found


def leads(server: Process) -> bool:
    return ready(server).get("ready") is True


def waiting(client: Client) -> int:
    return len(client.queue("jobs").peek(limit=10_000))


def values(client: Client) -> Iterator[object]:
    """Every record of the stream; offsets have gaps after a takeover."""
    stream, offset = client.stream("records"), 0
    while records := stream.read(offset=offset):
        yield from (record.value for record in records)
        offset = records[-1].offset + 1


class Producer(threading.Thread):
    """Pushes jobs and publishes records until it is stopped, and notes what was acknowledged."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.urls: list[str] = []
        self.jobs: dict[str, int] = {}
        self.records: dict[int, int] = {}
        self.twice: list[object] = []
        self.ended = threading.Event()
        self._value = 0

    def run(self) -> None:
        while not self.ended.is_set():
            for url in list(self.urls):
                try:
                    with Client(f"{url}?while_down=fail&timeout=3") as client:
                        self._work(client)
                except NexoError:
                    time.sleep(0.02)

    def _work(self, client: Client) -> None:
        queue, stream = client.queue("jobs"), client.stream("records")
        while not self.ended.is_set():
            self._value += 1
            job = queue.push(self._value)
            self._note(self.jobs, job, self._value)
            offset = stream.publish(self._value).offset
            self._note(self.records, offset, self._value)

    def wait_for(self, more: int) -> None:
        """Wait until so many more records were acknowledged."""
        wanted = len(self.records) + more
        wait_until(lambda: len(self.records) >= wanted, 60)

    def _note(self, told: dict[Any, int], number: object, value: int) -> None:
        if number in told:
            self.twice.append(number)
        told[number] = value


def test_nothing_replicated_is_lost_with_the_leader_and_its_disk(pair: Pair) -> None:
    with Client(pair.leader.url) as client:
        client.queue("jobs").create(persistence="replicated")
        client.stream("records").create(persistence="replicated")
    producer = Producer()
    producer.urls = [pair.leader.url]
    producer.start()
    took: list[float] = []
    for _ in range(LOSSES):
        standby = pair.start()
        producer.urls = [pair.leader.url, standby.url]
        wait_until(lambda: bool(ready(pair.leader)["replica"]["standbys"]))
        producer.wait_for(20)
        began_s = time.monotonic()
        pair.leader.kill()
        shutil.rmtree(pair.leader.data_dir)
        producer.wait_for(1)
        took.append(time.monotonic() - began_s)
        pair.leader = standby
    producer.ended.set()
    producer.join()
    assert not producer.twice
    with Client(pair.leader.url) as client:
        found = set(values(client))
        jobs = {view.value for view in client.queue("jobs").peek(limit=10_000)}
    assert set(producer.records.values()) <= found
    assert set(producer.jobs.values()) <= jobs
    print(f"takeovers: {', '.join(f'{s:.1f} s' for s in took)}; {len(found)} records")  # noqa: T201


def test_a_standby_says_who_leads(pair: Pair) -> None:
    standby = pair.start()
    state = ready(standby)
    assert state["state"] == "standby"
    assert state["replica"]["leader"] == pair.leader.url
    with (
        Client(f"{standby.url}?while_down=fail") as client,
        pytest.raises(NexoError, match=f"{pair.leader.url} leads"),
    ):
        client.store.get("key")
    assert issubclass(NotLeader, Unavailable)


def test_an_old_leader_that_wakes_after_a_takeover_acknowledges_nothing(pair: Pair) -> None:
    old = pair.leader
    with Client(old.url) as client:
        client.queue("jobs").create(persistence="file_async")
        client.queue("jobs").push("before")
        standby = pair.start()
        wait_until(lambda: bool(ready(old)["replica"]["standbys"]))
        wait_until(lambda: ready(standby)["replica"]["lease_number"] >= 0)
        os.killpg(old.pid, signal.SIGSTOP)
        wait_until(lambda: leads(standby), 60)
        os.killpg(old.pid, signal.SIGCONT)
        with pytest.raises(NexoError):
            client.queue("jobs").push("from the past")
    wait_until(lambda: ready(old).get("state") == "standby", 60)
    with Client(standby.url) as client:
        client.queue("jobs").push("after")
        assert [view.value for view in client.queue("jobs").peek()] == ["before", "after"]


def test_the_lead_moves_on_purpose_without_loss(pair: Pair) -> None:
    old = pair.leader
    with Client(old.url) as client:
        client.queue("jobs").create(persistence="file_async")
        client.queue("jobs").push_many(list(range(500)))
    standby = pair.start()
    url = f"file://{pair.store}"
    wait_until(lambda: bool(ready(old)["replica"]["standbys"]))
    both = f"{old.url},127.0.0.1:{standby.port}?timeout=60&down_wait=60"
    with Client(both) as client:
        assert waiting(client) == 500
        moved = CliRunner().invoke(main, ["replica", "promote", url, "--json"])
        assert moved.exit_code == 0, moved.output
        assert json.loads(moved.output)["leader"] == standby.url
        assert waiting(client) == 500  # from the new leader, over the same client
    wait_until(lambda: leads(standby), 60)
    with Client(standby.url) as client:
        assert waiting(client) == 500
    wait_until(lambda: ready(old).get("state") == "standby", 60)
    shown = CliRunner().invoke(main, ["replica", "status", url, "--json"])
    roles = {row["address"]: row["role"] for row in map(json.loads, shown.output.splitlines())}
    assert roles[standby.url] == "leader"


def test_a_killed_leader_goes_on_with_its_own_files(pair: Pair) -> None:
    with Client(pair.leader.url) as client:
        client.queue("jobs").create(persistence="file_sync")
        client.queue("jobs").push_many(list(range(100)))
    pair.leader.kill()
    pair.leader.start()
    with Client(pair.leader.url) as client:
        assert waiting(client) == 100


def test_a_folder_is_restored_from_the_store(pair: Pair, tmp_path: Path) -> None:
    with Client(pair.leader.url) as client:
        client.queue("jobs").create(persistence="replicated")
        client.queue("jobs").push_many(list(range(100)))
    pair.leader.kill()
    folder = tmp_path / "restored"
    source = f"file://{pair.store}"
    restored = CliRunner().invoke(main, ["restore", source, "--data-dir", str(folder)])
    assert restored.exit_code == 0, restored.output
    sound = CliRunner().invoke(main, ["doctor", str(folder)])
    assert sound.exit_code == 0, sound.output
    with process(folder, dashboard=False) as server, Client(server.url) as client:
        assert waiting(client) == 100


def test_a_store_that_is_away_fails_replicated_writes_and_no_others(pair: Pair) -> None:
    pair.leader.close()
    server = pair.start(replicate_wait_ms=500)
    wait_until(lambda: leads(server), 60)
    with Client(server.url) as client:
        client.queue("safe").create(persistence="replicated")
        client.queue("fast").create(persistence="file_sync")
        away = pair.store.with_name("away")
        pair.store.rename(away)
        pair.store.write_text("no folder")
        with pytest.raises(Unavailable, match="object store"):
            client.queue("safe").push("lost?")
        client.queue("fast").push("here")
        pair.store.unlink()
        away.rename(pair.store)
        wait_until(lambda: client.queue("safe").push("again") is not None)
