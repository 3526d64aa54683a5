"""Whatever fails when its time has come is tried again by itself, and delays nothing else."""

from __future__ import annotations

import pytest

from nexo.brokers.queue.engine import QueueEngine
from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.groups.kafka.coordinator import Coordinator
from nexo.brokers.stream.groups.kafka.model import Join
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.errors import NexoError
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from tests.memory_files import MemoryFiles
from tests.unit.brokers.pubsub.desk import Desk as PubSubDesk
from tests.unit.brokers.queue.desk import Desk as QueueDesk
from tests.unit.brokers.stream.desk import Desk
from tests.unit.brokers.stream.test_transactions import Tx

RETRY_MS = 1_000


def break_down(patch: pytest.MonkeyPatch, owner: type, name: str, victim: object) -> None:
    """Make a method fail on one object, or with it as its first argument, until `patch.undo`."""
    method = getattr(owner, name)

    def call(self: object, *args: object) -> object:
        if self is victim or args[0] is victim:
            raise ZeroDivisionError("a mistake in the code")
        return method(self, *args)

    patch.setattr(owner, name, call)


def test_a_shared_group_that_fails_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC F2: leases of the others end in time, its own a little later, without a request."""
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    for name in ("g0", "g1", "g2"):
        peer.join("s", name, options={"ack_wait_ms": 1_000}).take()

    def redelivered() -> list[int]:
        infos = (peer.group("s", name) for name in ("g0", "g1", "g2"))
        return [info.partitions[0].to_redeliver for info in infos]

    broken = desk.service.core.engine.find("s", "g1")[1]
    break_down(monkeypatch, SharedGroup, "expire", broken)
    desk.after(1_000)
    assert redelivered() == [1, 0, 1]
    assert desk.runtime.time.now + RETRY_MS in desk.runtime.wakes
    monkeypatch.undo()
    desk.after(RETRY_MS)
    assert redelivered() == [1, 1, 1]


def test_an_ordered_group_that_fails_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC G6: silent members of the others leave in time."""
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    for name in ("o0", "o1", "o2"):
        ask = ordered.OrderedJoin(group=name, topics=["s"], options={"session_timeout_ms": 1_000})
        peer.call(Op.S_ORDERED_JOIN, ask, ordered.Assigned)
    groups = desk.service.core.engine.ordered
    break_down(monkeypatch, OrderedGroup, "expire", groups["o1"])
    desk.after(1_000)
    assert [len(group.members) for group in groups.values()] == [0, 1, 0]
    monkeypatch.undo()
    desk.after(RETRY_MS)
    assert groups["o1"].members == []


def test_a_group_of_kafka_clients_that_fails_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SPEC L2."""
    desk = Desk()
    peer, classic = desk.client(), desk.service.classic
    join = Join("consumer", (("range", b""),), session_timeout_ms=6_000, asks_for_id=False)
    for name in ("k0", "k1", "k2"):
        classic.join(peer, name, join, f"member of {name}", lambda _: None)
    broken = classic.group("k1")
    break_down(monkeypatch, Coordinator, "expire", broken)
    desk.after(60_000)
    desk.after(60_000)
    assert [name for name, _ in classic.live()] == ["k1"]
    monkeypatch.undo()
    desk.after(RETRY_MS)
    desk.after(60_000)
    assert not list(classic.live())


def test_a_transaction_that_cannot_be_rolled_back_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SPEC H1: nor does it delay the long polls and leases that are due in the same tick."""
    desk = Desk()
    peer, engine = desk.client(), desk.service.core.engine
    peer.make("s")
    waiting = peer.join("s", "g").poll(wait_ms=1_000)
    first, second = Tx(peer, timeout_ms=1_000), Tx(peer, timeout_ms=1_000)
    break_down(monkeypatch, StreamEngine, "abort", engine.transactions.get(first.id, peer.id))
    desk.after(1_000)
    assert len(engine.transactions) == 1
    with pytest.raises(NexoError, match=f"transaction {second.id} is not open"):
        engine.transactions.get(second.id, peer.id)
    assert waiting in peer.replies
    assert desk.runtime.time.now + RETRY_MS in desk.runtime.wakes
    monkeypatch.undo()
    desk.after(RETRY_MS)
    assert not len(engine.transactions)


def test_a_queue_that_fails_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC D5: jobs of the others are retried in time, its own a little later."""
    desk = QueueDesk(MemoryFiles())
    peer = desk.client()
    names = ("q0", "q1", "q2")
    for name in names:
        peer.create(name, visibility_timeout_ms=1_000)
        peer.push_many(name, [b"\0job"])
        peer.pop(name)
    engines = [desk.service.registry.find(name).engine for name in names]
    break_down(monkeypatch, QueueEngine, "tick", engines[1])
    desk.pass_time(1_000)
    assert [len(engine.dispatch.leases) for engine in engines] == [0, 1, 0]
    assert desk.runtime.time.now + RETRY_MS in desk.runtime.wakes
    monkeypatch.undo()
    desk.pass_time(RETRY_MS)
    assert len(engines[1].dispatch.leases) == 0


def test_a_subscriber_that_fails_delays_no_other() -> None:
    """SPEC C4: it is disconnected, as it has missed messages."""
    desk = PubSubDesk()
    for number in range(3):
        desk.client().publish(f"t/{number}", bytes(200_000), retain=True)
    clients = [desk.client() for _ in range(6)]
    for client in clients:
        client.subscribe("t/#")
        assert len(client.received) == 2, "the first chunk"

    def fail(data: bytes) -> None:
        raise ZeroDivisionError("a mistake in the code")

    broken = desk.service._clients[clients[2].id]
    broken.push = fail
    desk.service.tick(desk.runtime.time.now)
    assert [len(client.received) for client in clients] == [3, 3, 2, 3, 3, 3]
    assert [client.closed for client in clients] == [False, False, True, False, False, False]
