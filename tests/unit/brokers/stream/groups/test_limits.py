"""What a client may have a group remember, and what one reply may hold (findings G6, G12)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from nexo.brokers.stream.groups import limits, ordered_members
from nexo.brokers.stream.groups.claims import Claims
from nexo.errors import InvalidInput, Overloaded
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol import xstreams
from nexo.protocol.ops import Op
from nexo.services.stream.groups import parked, xgroups
from tests.unit.brokers.stream.desk import Desk, Peer


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make("s")
    return desk


@pytest.fixture
def peer(desk: Desk) -> Peer:
    return desk.client()


def join_ordered(peer: Peer, member: str = "") -> ordered.Assigned:
    ask = ordered.OrderedJoin(group="o", topics=["s"], member=member)
    return peer.call(Op.S_ORDERED_JOIN, ask, ordered.Assigned)


def x_group(peer: Peer) -> Claims:
    peer.ask(Op.S_X_GROUP, wire.pack(xstreams.MakeGroup("s", "x", None)))
    claims = peer._desk.service.core.engine.find("s", "x")[1].claims
    assert claims is not None
    return claims


def x_read(peer: Peer, consumer: str, count: int = 100, pending: int = 1 << 40) -> bytes:
    ask = xstreams.ReadGroup("s", "x", consumer, count, 0, pending)
    reply: bytes = peer.ask(Op.S_X_READ, wire.pack(ask))
    return reply


def test_names_and_metadata_have_a_limit(peer: Peer) -> None:
    longest = "m" * limits.MAX_NAME
    me = join_ordered(peer, longest)
    with pytest.raises(InvalidInput, match="member name has 256 characters: at most 255"):
        join_ordered(peer, longest + "m")
    assert me.member == longest
    peer.publish("s", b"a")

    def commit(size: int) -> None:
        row = ("s", 0, 0, "x" * size)
        ask = ordered.Commit(group="o", offsets=[row], member=me.member, generation=me.generation)
        peer.ask(Op.S_COMMIT, wire.pack(ask))

    commit(limits.MAX_METADATA)
    with pytest.raises(InvalidInput, match="commit metadata has 4,097 characters"):
        commit(limits.MAX_METADATA + 1)
    x_group(peer)
    x_read(peer, longest)
    with pytest.raises(InvalidInput, match="consumer name has 256 characters"):
        x_read(peer, longest + "m")


def test_a_refused_join_makes_no_group(desk: Desk, peer: Peer) -> None:
    with pytest.raises(InvalidInput):
        join_ordered(peer, "m" * 1_000)
    assert not desk.service.core.engine.ordered


def test_members_and_consumers_have_a_number(
    desk: Desk, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_members, "MAX_MEMBERS", 2)
    monkeypatch.setattr("nexo.brokers.stream.groups.claims.MAX_CONSUMERS", 2)
    monkeypatch.setattr("nexo.brokers.stream.groups.shared.MAX_CONSUMERS", 2)
    x_group(peer)
    acts: list[Callable[[int], object]] = [
        lambda number: join_ordered(peer, f"m{number}"),
        lambda number: x_read(peer, f"c{number}"),
        lambda number: peer.join("s", "g"),
    ]
    for act in acts:
        act(1)
        act(2)
        with pytest.raises(Overloaded, match="which is the limit"):
            act(3)
    join_ordered(peer, "m1")
    x_read(peer, "c2")
    peer.ask(Op.S_X_CONSUMER_DELETE, wire.pack(xstreams.ConsumerName("s", "x", "c1")))
    x_read(peer, "c3")


def test_groups_have_a_number(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nexo.brokers.stream.engine.MAX_GROUPS", 2)

    def commit(group: str) -> None:
        ask = ordered.Commit(group=group, offsets=[("s", 0, 0, "")])
        peer.ask(Op.S_COMMIT, wire.pack(ask))

    peer.publish("s", b"a")
    for number in (1, 2):
        peer.join("s", f"g{number}")
        commit(f"o{number}")
    with pytest.raises(Overloaded, match="there are 2 groups of stream 's' already"):
        peer.join("s", "g3")
    with pytest.raises(Overloaded, match="there are 2 ordered groups already"):
        commit("o3")
    peer.join("s", "g1")
    commit("o1")


def test_the_reason_of_a_nack_is_cut(peer: Peer) -> None:
    consumer = peer.join("s", "g", options={"max_deliveries": 1})
    peer.publish("s", b"a")
    consumer.take()
    who = "s", "g", consumer.name, consumer.generation
    peer.ask(
        Op.S_SETTLE, wire.pack(wire.SettleRecords(*who, "nack", [(0, 0, 1)], 0, "why" * 10_000))
    )
    [row] = parked_rows(peer)
    assert len(row.reason) == limits.MAX_REASON


def parked_rows(peer: Peer, limit: int = 100, offset: int = 0) -> list[wire.ParkedInfo]:
    ask = wire.ListParked(stream="s", group="g", limit=limit, offset=offset)
    head, _ = wire.unpack_headed(wire.ParkedList, peer.ask(Op.S_PARKED, wire.pack(ask)))
    return head.rows


def test_parked_records_come_in_bounded_replies(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked, "MAX_READ_BYTES", 3_000)
    consumer = peer.join("s", "g", options={"max_deliveries": 1})
    for _ in range(10):
        peer.publish("s", bytes(1_000))
    consumer.take()
    for offset in range(10):
        who = "s", "g", consumer.name, consumer.generation
        reason = f"no {offset}"
        ranges = [(0, offset, offset + 1)]
        peer.ask(Op.S_SETTLE, wire.pack(wire.SettleRecords(*who, "nack", ranges, 0, reason)))
    found: list[int] = []
    while rows := parked_rows(peer, offset=len(found)):
        assert len(rows) <= 3
        found += [row.first for row in rows]
    assert found == [*reversed(range(10))]


def test_a_page_of_pending_messages_costs_a_page(desk: Desk, peer: Peer) -> None:
    """Finding G6: eight million took 882 MB before paging."""
    claims = x_group(peer)
    claims.deliver("a", 2_000_000, 2_000_000, 1)
    ask = xstreams.PendingAsk("s", "x", None, 1_000_000)
    tracemalloc.start()
    try:
        rows = peer.call(Op.S_X_PENDING, ask, list[xstreams.XPending])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row.seq for row in rows] == list(range(1_000_000, 1_000_000 + xstreams.PAGE))
    assert peak < 5_000_000


def test_pending_pages_of_one_consumer(peer: Peer) -> None:
    claims = x_group(peer)
    for number in range(6):
        claims.deliver("ab"[number % 2], 10, number * 10 + 10, 1)
    ask = xstreams.PendingAsk("s", "x", "b", 15)
    rows = peer.call(Op.S_X_PENDING, ask, list[xstreams.XPending])
    assert [row.seq for row in rows] == [*range(15, 20), *range(30, 40), *range(50, 60)]
    assert {row.consumer for row in rows} == {"b"}


def test_a_claim_takes_over_a_bounded_number(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgroups, "MAX_CLAIMED", 5)
    x_group(peer)
    for _ in range(20):
        peer.publish("s", b"a")
    x_read(peer, "a")
    ask = xstreams.XClaim("s", "x", "b", 0, 1 << 40)
    head, _ = wire.unpack_headed(xstreams.XDelivered, peer.ask(Op.S_X_CLAIM, wire.pack(ask)))
    assert sum(end - first for first, end, _ in head.ranges) == 5
