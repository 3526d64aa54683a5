"""Single pushes and acks of one turn: one of each, one answer each (SPEC A3, D2, D7)."""

from __future__ import annotations

import json

import pytest

from nexo.brokers.queue.records import Finished, Pushed
from nexo.errors import LeaseLost, NexoError, NotFound, QueueFull
from nexo.model.blocks import pack_id
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.services.queue import gathering
from nexo.services.queue.gathering import _runs
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk, DeskPeer


@pytest.fixture
def desk() -> Desk:
    return Desk(MemoryFiles())


def end_turn(desk: Desk) -> None:
    """This turn and those that it asks for."""
    while desk.runtime.end_turn():
        pass


def push(peer: DeskPeer, value: bytes, queue: str = "q", **options: int) -> int:
    payload = pack_str(queue) + pack_str(json.dumps(options)) + b"\0" + value
    return peer.send(Op.Q_PUSH, payload)


def ack(desk: Desk, peer: DeskPeer, job: int, queue: str = "q") -> int:
    incarnation = desk.service.registry.find(queue).engine.ledger.incarnation
    return peer.send(Op.Q_ACK, pack_id(incarnation, job) + pack_str(queue))


def records(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is journalled from now on."""
    queue = desk.service.registry.find("q")
    kept: list[object] = []
    write = queue.write

    def noting(now_ms: int) -> None:
        kept.extend(queue.engine.outbox)
        write(now_ms)

    monkeypatch.setattr(queue, "write", noting)
    return kept


def test_pushes_of_all_connections_are_one_record_in_the_order_they_came(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = desk.client(), desk.client()
    a.create("q")
    kept = records(desk, monkeypatch)
    asked = [(peer, push(peer, value)) for peer, value in ((a, b"1"), (b, b"2"), (a, b"3"))]
    assert not a.replies
    end_turn(desk)
    assert [peer.replies[number] for peer, number in asked] == [b"", b"", b""]
    assert [record.count for record in kept if isinstance(record, Pushed)] == [3]
    assert list(a.pop("q")[1].values()) == [b"\x001", b"\x002", b"\x003"]


def test_a_request_comes_after_what_its_connection_pushed_before(desk: Desk) -> None:
    peer = desk.client()
    peer.create("q")
    push(peer, b"x")
    assert list(peer.pop("q")[1].values()) == [b"\x00x"]


def test_jobs_of_other_kinds_keep_their_order_and_kind(desk: Desk) -> None:
    peer = desk.client()
    peer.create("q")
    push(peer, b"low 1")
    push(peer, b"high", priority=9)
    push(peer, b"low 2")
    push(peer, b"late", delayMs=60_000)
    refused = push(peer, b"x", priority=300)
    assert isinstance(peer.replies[refused], NexoError)
    end_turn(desk)
    token, jobs = peer.pop("q")
    assert list(jobs.values()) == [b"\x00high", b"\x00low 1", b"\x00low 2"]
    peer.settle("q", token)
    desk.pass_time(60_000)
    assert list(peer.pop("q")[1].values()) == [b"\x00late"]


def test_a_full_queue_takes_as_many_as_have_room(desk: Desk) -> None:
    """As many as it took when each was pushed by itself."""
    peer = desk.client()
    peer.create("q", max_jobs=3)
    asked = [push(peer, b"%d" % number) for number in range(5)]
    end_turn(desk)
    replies = [peer.replies[number] for number in asked]
    assert replies[:3] == [b"", b"", b""]
    assert [type(reply) for reply in replies[3:]] == [QueueFull, QueueFull]


def test_acks_of_one_turn_are_one_record(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\0x"] * 5)
    _, jobs = peer.pop("q")
    kept = records(desk, monkeypatch)
    first = min(jobs)
    asked = [ack(desk, peer, first + index) for index in (0, 1, 3)]
    twice = ack(desk, peer, first)
    end_turn(desk)
    assert [peer.replies[number] for number in asked] == [b"", b"", b""]
    assert isinstance(peer.replies[twice], LeaseLost)
    assert [type(record) for record in kept] == [Finished]
    desk.service.connection_closed(peer)
    left = desk.client().pop("q")[1]
    assert sorted(left) == [first + 2, first + 4]


def test_who_acks_and_leaves_in_the_same_turn_has_acked(desk: Desk) -> None:
    """SPEC D8: only what was not acked is released."""
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\0x"] * 2)
    _, jobs = peer.pop("q")
    ack(desk, peer, min(jobs))
    desk.service.connection_closed(peer)
    assert list(desk.client().pop("q")[1]) == [max(jobs)]


def test_an_ack_in_time_counts_though_the_lease_ends_with_the_turn(desk: Desk) -> None:
    peer = desk.client()
    peer.create("q", visibility_timeout_ms=1_000)
    peer.push_many("q", [b"\0x"])
    _, jobs = peer.pop("q")
    number = ack(desk, peer, min(jobs))
    desk.runtime.time.now += 5_000
    desk.service.tick(desk.runtime.time.now)
    end_turn(desk)
    assert peer.replies[number] == b""
    assert peer.pop("q") == (0, {})


def test_a_queue_that_is_deleted_within_the_turn_takes_no_jobs(desk: Desk) -> None:
    peer = desk.client()
    peer.create("q")
    number = push(peer, b"x")
    desk.service.remove(desk.service.registry.find("q"))
    end_turn(desk)
    assert isinstance(peer.replies[number], NotFound)


def test_a_push_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_JOBS", 2)
    peer = desk.client()
    peer.create("q")
    kept = records(desk, monkeypatch)
    asked = [push(peer, b"x") for _ in range(5)]
    end_turn(desk)
    assert [peer.replies[number] for number in asked] == [b""] * 5
    assert [record.count for record in kept if isinstance(record, Pushed)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("jobs", "runs"),
    [([4], [(4, 5)]), ([1, 2, 3], [(1, 4)]), ([1, 3, 4, 9], [(1, 2), (3, 5), (9, 10)])],
)
def test_numbers_become_ranges(jobs: list[int], runs: list[tuple[int, int]]) -> None:
    assert _runs(jobs) == runs
