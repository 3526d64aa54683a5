"""Two real servers and a store in a folder: roles, a hand-over, a paused leader (SPEC N1-N5)."""

from __future__ import annotations

import json
import os
import signal
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nexo import Client
from nexo.cli import main
from nexo.errors import NexoError, NotLeader, Unavailable
from nexo.replication.encrypted import MAGIC
from nexo.testing import Process, free_port
from tests.integration import certificates
from tests.integration.admin_api import Api
from tests.replicas import Door, Writer, leads, ready, verdict
from tests.timing import wait_until

LEASE_MS = 1_000
PAUSE_S = 30 if os.environ.get("SOAK") else 0
"""For how long a leader is paused at least."""


class Pair:
    """Servers over one store; the first one leads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.servers: list[Process] = []

    def start(self, **settings: Any) -> Process:
        server = Process(
            self.folder / f"server-{len(self.servers)}",
            replicate=f"file://{self.store}",
            replicate_lease_ms=LEASE_MS,
            **{"dashboard": False, **settings},
        )
        self.servers.append(server)
        server.start()
        return server

    def start_both(self, **settings: Any) -> tuple[Process, Process]:
        """A leader, with ``settings``, that knows of its standby; each broker has something."""
        leader = self.start(**settings)
        with Client(leader.url) as client:
            client.queue("jobs").create(persistence="file_async")
            client.queue("jobs").push("before")
            client.stream("records").create(persistence="file_async")
        standby = self.start()
        wait_until(lambda: bool(ready(leader)["replica"]["standbys"]), 60)
        return leader, standby


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for server in made.servers:
        server.close()


def waiting(client: Client) -> int:
    return len(client.queue("jobs").peek(limit=10_000))


def test_the_lead_moves_on_purpose_without_loss_over_tls(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = certificates.make(tmp_path)
    tls = {"tls_cert": certs.server, "tls_key": certs.server_key}
    trust = f"ca_file={certs.ca}"
    key = tmp_path / "key"
    key.write_bytes(b64encode(os.urandom(32)))
    monkeypatch.setenv("NEXO_REPLICATE_KEY_FILE", str(key))  # encrypts all objects
    old = pair.start(**tls)
    with Client(f"{old.url}?{trust}") as client:
        client.queue("jobs").create(persistence="file_async")
        client.queue("jobs").push_many(list(range(500)))
    standby = pair.start(**tls)
    url = f"file://{pair.store}"
    assert ready(standby)["state"] == "standby"
    with (
        Client(f"{standby.url}?while_down=fail&{trust}") as client,
        pytest.raises(NotLeader, match=f"{old.url} leads"),
    ):
        client.store.get("key")
    wait_until(lambda: bool(ready(old)["replica"]["standbys"]))
    both = f"{old.url},127.0.0.1:{standby.port}?timeout=60&down_wait=60&{trust}"
    with Client(both) as client:
        assert waiting(client) == 500
        moved = CliRunner().invoke(main, ["replica", "promote", url, "--json"])
        assert moved.exit_code == 0, moved.output
        assert json.loads(moved.output)["leader"] == standby.url
        assert waiting(client) == 500  # from the new leader, over the same client
    wait_until(lambda: leads(standby) and ready(old).get("state") == "standby", 60)
    shown = CliRunner().invoke(main, ["replica", "status", url, "--json"])
    roles = {row["address"]: row["role"] for row in map(json.loads, shown.output.splitlines())}
    assert roles[standby.url] == "leader"
    assert issubclass(NotLeader, Unavailable)
    objects = [path.read_bytes() for path in pair.store.rglob("*") if path.is_file()]
    assert all(data.startswith(MAGIC) for data in objects)


def test_an_old_leader_that_wakes_after_a_takeover_acknowledges_nothing(pair: Pair) -> None:
    old, standby = pair.start_both()
    with Writer(old.url) as past, Writer(standby.url) as present:
        past.wait_for(8)
        paused_s = time.monotonic()
        os.killpg(old.pid, signal.SIGSTOP)
        present.wait_for(8)
        wait_until(lambda: time.monotonic() - paused_s > PAUSE_S, 60)
        os.killpg(old.pid, signal.SIGCONT)
        wait_until(lambda: ready(old).get("state") == "standby", 60)
        present.wait_for(8)
    print(f"paused for {PAUSE_S} s and woken: {verdict(past, present)}")  # noqa: T201
    with Client(standby.url) as client:
        jobs = {view.value for view in client.queue("jobs").peek(limit=10_000)}
        records = {record.value for record in client.stream("records").read()}
    assert "before" in jobs
    assert {value for value in present.values if value.startswith("job")} <= jobs
    assert {value for value in present.values if value.startswith("record")} <= records


def test_a_leader_cut_from_clients_alone_keeps_the_lead(pair: Pair) -> None:
    """Nobody takes over, so nobody acknowledges anything until the clients are back."""
    old_port = free_port()
    door = Door(old_port)
    try:
        old, standby = pair.start_both(port=old_port, replicate_address=f"127.0.0.1:{door.port}")
        url, others = f"nexo://127.0.0.1:{door.port}", f",127.0.0.1:{standby.port}"
        with Writer(url, others) as past, Writer(standby.url) as present:
            past.wait_for(8)
            before = ready(old)["replica"]
            door.cut()
            cut_s = time.monotonic()
            wait_until(lambda: time.monotonic() - cut_s > 3 * LEASE_MS / 1000 + PAUSE_S, 60)
            healed_s = time.monotonic()
            door.heal()
            past.wait_for(8)
        after = ready(old)["replica"]
        assert (after["role"], after["term"]) == ("leader", before["term"])
        assert after["lease_number"] > before["lease_number"]
        assert not present.values, "the standby acknowledged"
        times = past.values.values()
        meanwhile = [sent_s for sent_s, acked_s in times if cut_s < sent_s and acked_s < healed_s]
        print(  # noqa: T201
            f"cut from clients for {healed_s - cut_s:.1f} s: the leader kept its lease, "
            f"{len(past.values)} acknowledged by it, {len(meanwhile)} meanwhile, "
            "0 by the standby: never two at a time"
        )
        assert not meanwhile
    finally:
        door.close()


def test_a_killed_leader_goes_on_with_its_own_files(pair: Pair) -> None:
    """And without the store, ``replicated`` fails and nothing else does."""
    server = pair.start(replicate_wait_ms=500, dashboard=True)
    with Client(server.url) as client:
        client.queue("jobs").create(persistence="file_sync")
        client.queue("jobs").push_many(list(range(100)))
        client.queue("safe").create(persistence="replicated")
    server.kill()
    server.start()
    with Client(server.url) as client:
        assert waiting(client) == 100
        away = pair.store.with_name("away")
        pair.store.rename(away)
        pair.store.write_text("no folder")
        with pytest.raises(Unavailable, match="object store"):
            client.queue("safe").push("lost?")
        wait_until(lambda: _alerts(server) == {"replica"}, 60)
        client.queue("jobs").push("here")
        pair.store.unlink()
        away.rename(pair.store)
        wait_until(lambda: _pushed(client), 60)
    assert ready(server)["replica"]["role"] == "leader"


def _alerts(server: Process) -> set[str]:
    """What the dashboard of a leader says of replication; metrics have its role."""
    api = Api(server.http_url)
    api.wait_ready()
    found = api.get("/replicas")
    assert found["state"]["role"] == "leader"
    assert {row["broker"] for row in found["logs"]} == {"store", "pubsub", "queue", "stream"}
    assert "nexo_replica_leader 1.0" in api.request("GET", "/metrics").body.decode()
    return {alert["kind"] for alert in api.get("/overview")["alerts"]}


def _pushed(client: Client) -> bool:
    try:
        client.queue("safe").push("again")
    except NexoError:
        return False
    return True
