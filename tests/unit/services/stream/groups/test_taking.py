"""A leave, delete, seek, cancel or close answers the waits it concerns (finding F15)."""

from __future__ import annotations

import struct

import pytest

from nexo.errors import Fenced, NotFound, NotMember
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol import xstreams
from nexo.protocol.frames import FieldReader, pack_str
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Desk, Peer

EMPTY = bytes(4)
"""The existing client's reply of no records."""


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make("s")
    return desk


class ClassicMember:
    """A consumer of the existing client."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        reader = FieldReader(memoryview(peer.ask(Op.S_JOIN, pack_str("g") + pack_str("s"))))
        reader.u64()
        self.generation = reader.u64()
        self.name = reader.text()
        self._head = pack_str("s") + pack_str("g") + pack_str(self.name)

    def fetch(self, wait_ms: int = 20_000) -> int:
        tail = struct.pack(">QII", self.generation, 10, wait_ms)
        return self.peer.send(Op.S_FETCH, self._head + tail)

    def leave(self) -> None:
        self.peer.ask(Op.S_LEAVE, self._head + struct.pack(">Q", self.generation))


def test_a_leave_of_the_existing_client_answers_its_fetch(desk: Desk) -> None:
    peer = desk.client(coded=False)
    leaving, staying = ClassicMember(peer), ClassicMember(peer)
    gone, kept = leaving.fetch(), staying.fetch()
    leaving.leave()
    assert peer.replies[gone] == EMPTY
    assert kept not in peer.replies


def test_a_leave_of_our_client_answers_its_take(desk: Desk) -> None:
    peer = desk.client()
    consumer = peer.join("s", "g")
    waiting = consumer.poll(wait_ms=20_000)
    leave = wire.GroupLeave(stream="s", group="g", consumer=consumer.name)
    peer.ask(Op.S_GROUP_LEAVE, wire.pack(leave))
    assert consumer.opened(peer.replies[waiting]) == []


def test_a_seek_fences_a_fetch_of_the_existing_client_and_serves_a_take(desk: Desk) -> None:
    peer, old = desk.client(), desk.client(coded=False)
    peer.publish("s", b"a")
    consumer, member = peer.join("s", "g"), ClassicMember(old)
    assert len(consumer.take()) == 1
    fetch, take = member.fetch(), consumer.poll(wait_ms=20_000)
    peer.ask(Op.S_GROUP_SEEK, wire.pack(wire.GroupSeek(stream="s", group="g")))
    assert isinstance(old.replies[fetch], Fenced)
    assert [row.value for row in consumer.opened(peer.replies[take])] == [b"a"]


@pytest.mark.parametrize("what", ["group", "stream"])
def test_a_delete_answers_every_wait_of_what_is_gone(desk: Desk, what: str) -> None:
    peer, old = desk.client(), desk.client(coded=False)
    fetch, take = ClassicMember(old).fetch(), peer.join("s", "g").poll(wait_ms=20_000)
    if what == "group":
        peer.ask(Op.S_GROUP_DELETE, wire.pack(wire.GroupName(stream="s", group="g")))
    else:
        peer.ask(Op.S_DELETE, pack_str("s"))
    assert isinstance(old.replies[fetch], NotFound)
    assert isinstance(peer.replies[take], NotFound)


def test_a_cancel_answers_one_poll_and_a_close_drops_the_rest(desk: Desk) -> None:
    peer = desk.client()
    consumer = peer.join("s", "g")
    first, second = consumer.poll(wait_ms=20_000), consumer.poll(wait_ms=20_000)
    desk.service.cancel(peer, first)
    assert consumer.opened(peer.replies[first]) == []
    assert second not in peer.replies
    peer.close()
    assert desk.service.status()["waiting"] == 0
    desk.after(30_000)
    assert second not in peer.replies


def x_read(consumer: str, wait_ms: int = 20_000) -> bytes:
    return wire.pack(xstreams.ReadGroup("s", "x", consumer, 10, wait_ms, 100))


def test_a_deleted_consumer_of_xstreams_is_answered_and_does_not_come_back(desk: Desk) -> None:
    peer = desk.client()
    peer.ask(Op.S_X_GROUP, wire.pack(xstreams.MakeGroup("s", "x", None)))
    gone, kept = peer.send(Op.S_X_READ, x_read("a")), peer.send(Op.S_X_READ, x_read("b"))
    peer.ask(Op.S_X_CONSUMER_DELETE, wire.pack(xstreams.ConsumerName("s", "x", "a")))
    head, _ = wire.unpack_headed(xstreams.XDelivered, peer.replies[gone])
    assert head.ranges == []
    assert kept not in peer.replies
    peer.publish("s", b"new")
    info = peer.call(Op.S_X_INFO, xstreams.XName("s"), xstreams.XInfo)
    assert [each.name for each in info.groups[0].consumers] == ["b"]


def beat(group: str, me: ordered.Assigned, known: int) -> bytes:
    return wire.pack(
        ordered.Heartbeat(
            group=group,
            member=me.member,
            generation=me.generation,
            wait_ms=20_000,
            known=known,
        )
    )


def member_of(peer: Peer, *topics: str) -> ordered.Assigned:
    ask = ordered.OrderedJoin(group="o", topics=list(topics))
    return peer.call(Op.S_ORDERED_JOIN, ask, ordered.Assigned)


def test_a_deleted_ordered_group_answers_its_heartbeats(desk: Desk) -> None:
    peer = desk.client()
    waiting = peer.send(Op.S_HEARTBEAT, beat("o", member_of(peer, "s"), known=1))
    peer.ask(Op.S_ORDERED_DELETE, wire.pack(ordered.OrderedName(group="o")))
    assert isinstance(peer.replies[waiting], NotFound)


def test_a_deleted_stream_is_news_to_members_that_read_it(desk: Desk) -> None:
    peer = desk.client()
    peer.make("t")
    me = member_of(peer, "s", "t")
    waiting = peer.send(Op.S_HEARTBEAT, beat("o", me, known=2))
    peer.ask(Op.S_DELETE, pack_str("t"))
    told = wire.unpack(ordered.Assigned, peer.replies[waiting])
    assert told.generation > me.generation
    assert told.owned == [("s", 0)]


def test_a_leave_answers_the_heartbeat_of_that_member_only(desk: Desk) -> None:
    peer = desk.client()
    me, other = member_of(peer, "s"), member_of(peer, "s")
    del other
    me = wire.unpack(ordered.Assigned, peer.ask(Op.S_HEARTBEAT, _now(me.member, me.generation + 1)))
    waiting = peer.send(Op.S_HEARTBEAT, beat("o", me, known=len(me.owned)))
    leave = ordered.OrderedLeave(group="o", member=me.member)
    peer.ask(Op.S_ORDERED_LEAVE, wire.pack(leave))
    assert isinstance(peer.replies[waiting], NotMember)


def _now(member: str, generation: int) -> bytes:
    return wire.pack(ordered.Heartbeat(group="o", member=member, generation=generation))
