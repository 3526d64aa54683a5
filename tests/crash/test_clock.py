"""The machine's clock is set by an hour, forth and back (MEASURE, faults)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo import xstreams
from nexo.server.clock import SteadyClock
from nexo.testing import Server
from tests.timing import wait_until

HOUR_NS = 3_600 * 10**9
WAIT_S = 20.0


class Wall:
    """A wall clock that can be set; the monotonic one goes on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.step_ns = 0
        real = time.time_ns
        patch.setattr("nexo.server.clock.time.time_ns", lambda: real() + self.step_ns)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@pytest.fixture(params=[HOUR_NS, -HOUR_NS], ids=["forth", "back"])
def step_ns(request: pytest.FixtureRequest) -> int:
    step: int = request.param
    return step


@pytest.fixture
def running(wall: Wall, tmp_path: Path) -> Iterator[Server]:
    server = Server(data_dir=tmp_path / "nexo")
    server.start()
    yield server
    server.close()


def test_time_goes_on_steadily(wall: Wall, step_ns: int) -> None:
    clock = SteadyClock()
    before = clock.now_ms()
    wall.step_ns = step_ns
    assert 0 <= clock.now_ms() - before < 60_000


def test_leases_delays_and_ttls_keep_their_length(
    running: Server, wall: Wall, step_ns: int
) -> None:
    with nexo.connect(running.url) as client:
        jobs = client.queue("q").create(visibility_timeout=60, max_retries=5)
        jobs.push("leased")
        assert jobs.pop(1)
        jobs.push("delayed", delay=0.5)
        client.store.set("k", 1, ttl=60)
        client.store.set("short", 1, ttl=0.3)
        began = time.monotonic()
        wall.step_ns = step_ns
        assert not jobs.pop(1), "the lease has not run out, the delay has not passed"
        (late,) = jobs.pop(1, wait=WAIT_S)
        took = time.monotonic() - began
        assert late.value == "delayed"
        assert 0.3 < took < WAIT_S
        assert client.store.get("k") == 1
        assert 50 < (client.store.ttl("k") or 0) <= 60
        wait_until(lambda: not client.store.exists("short"))


def test_a_group_and_retained_messages_keep_their_time(
    running: Server, wall: Wall, step_ns: int
) -> None:
    with nexo.connect(running.url) as client:
        records = client.stream("s").create()
        records.publish("leased")
        client.pubsub.publish("t", "kept", retain=True, ttl=60)
        with (
            records.consume("g", wait=0, ack_wait=60) as first,
            records.consume("g", wait=0, ack_wait=60) as second,
        ):
            held = list(first.fetch())
            wall.step_ns = step_ns
            records.publish("next")
            assert [record.value for record in second.fetch()] == ["next"]
            first.ack(*held)
        with client.pubsub.subscribe("t") as subscription:
            assert subscription.get(WAIT_S).value == "kept"


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_message_ids_and_offsets_still_rise(
    running: Server, wall: Wall, step_ns: int, restart: bool
) -> None:
    def add() -> tuple[str, int]:
        with nexo.connect(running.url) as client:
            offset = client.stream("s").publish("x").offset
        broker = xstreams.connect(running.url)
        try:
            return str(broker.xadd("ids", {"n": 1})), offset
        finally:
            broker.close()

    with nexo.connect(running.url) as client:
        client.stream("s").create()
    found = []
    for _ in range(3):
        found.append(add())
        wall.step_ns += step_ns
        if restart:
            running.stop()
            running.start()
    found.append(add())
    order = [tuple(map(int, message.split("-"))) for message, _ in found]
    assert order == sorted(set(order))
    assert [offset for _, offset in found] == [0, 1, 2, 3]
