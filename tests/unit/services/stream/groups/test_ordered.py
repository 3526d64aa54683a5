"""Ordered groups over the service: membership, offsets, crashes."""

from __future__ import annotations

import tracemalloc

import pytest

from nexo.errors import Fenced, InvalidInput, InvalidOption, NotFound, NotMember
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.services.stream.groups import ordered as service
from tests.faulty_files import FaultyFiles
from tests.unit.brokers.stream.desk import Desk, Peer


@pytest.fixture
def desk() -> Desk:
    return Desk()


def join(peer: Peer, *topics: str, **options: object) -> ordered.Assigned:
    ask = ordered.OrderedJoin(group="g", topics=list(topics), options=dict(options))
    return peer.call(Op.S_ORDERED_JOIN, ask, ordered.Assigned)


def beat(peer: Peer, me: ordered.Assigned, generation: int | None = None) -> ordered.Assigned:
    ask = ordered.Heartbeat(
        group="g", member=me.member, generation=me.generation if generation is None else generation
    )
    return peer.call(Op.S_HEARTBEAT, ask, ordered.Assigned)


def commit(peer: Peer, me: ordered.Assigned, *rows: tuple[str, int, int]) -> None:
    offsets = [(*row, "") for row in rows]
    ask = ordered.Commit(group="g", member=me.member, generation=me.generation, offsets=offsets)
    peer.ask(Op.S_COMMIT, wire.pack(ask))


def committed(peer: Peer) -> list[tuple[str, int, int]]:
    rows = peer.call(Op.S_COMMITTED, ordered.CommittedAsk(group="g"), list[ordered.CommittedAt])
    return [(row.topic, row.partition, row.offset) for row in rows]


def test_partitions_are_shared_out_and_taken_over(desk: Desk) -> None:  # SPEC G6
    one, two = desk.client(), desk.client()
    one.make("t", partitions=8)
    first = join(one, "t")
    assert len(first.owned) == 8
    second = join(two, "t")
    first = beat(one, first)
    assert [p for _, p in first.revoked] == [4, 5, 6, 7]
    first = beat(one, first)
    second = beat(two, second, first.generation)
    assert [p for _, p in second.owned] == [4, 5, 6, 7]
    two.close()
    first = beat(one, first)
    assert len(beat(one, first).owned) == 8


def test_offsets_survive_a_crash_and_stale_generations_are_refused(desk: Desk) -> None:  # SPEC G5
    peer = desk.client()
    peer.make("t")
    peer.publish("t", b"a", b"b")
    me = join(peer, "t")
    commit(peer, me, ("t", 0, 1))
    join(desk.client(), "t")
    with pytest.raises(Fenced):
        commit(peer, me, ("t", 0, 0))
    assert committed(desk.crash().client()) == [("t", 0, 1)]
    assert committed(desk.restart().client()) == [("t", 0, 1)]


def test_a_silent_member_is_put_out(desk: Desk) -> None:  # SPEC G6
    one, two = desk.client(), desk.client()
    one.make("t", partitions=2)
    join(one, "t", session_timeout_ms=1_000)
    second = join(two, "t")
    desk.after(900)
    second = beat(two, second)
    desk.after(200)
    second = beat(two, beat(two, second))
    assert len(second.owned) == 2
    info = two.call(Op.S_ORDERED_GROUPS, ordered.OrderedAsk(group="g"), list[ordered.OrderedInfo])
    assert info[0].members == [second.member]


def test_a_group_is_shown_as_far_as_it_reads_the_stream_asked_for(desk: Desk) -> None:
    """SPEC A10: so that who may read only that stream may ask."""
    peer = desk.client()
    for name in ("t", "u", "v"):
        peer.make(name)
        peer.publish(name, b"a", b"b")
    me = join(peer, "t", "u")
    commit(peer, me, ("t", 0, 0), ("u", 0, 1))

    def shown(**asked: str) -> list[ordered.OrderedInfo]:
        ask = ordered.OrderedAsk(**asked)
        return peer.call(Op.S_ORDERED_GROUPS, ask, list[ordered.OrderedInfo])

    (info,) = shown(stream="t")
    assert (info.lag, info.lags) == (1, {"t": 1})
    assert ({row[0] for row in info.owners}, {row.topic for row in info.offsets}) == ({"t"}, {"t"})
    assert shown(stream="v") == []
    (other,) = shown(stream="v", group="g")
    assert (other.lags, other.owners, other.offsets) == ({}, [], [])
    assert shown()[0].lags == {"t": 1, "u": 0}


def test_what_an_older_broker_does_not_tell_is_empty() -> None:
    """SPEC K1: as with all that was added later, a newer client understands it."""
    told = {
        "name": "g", "generation": 1, "leader": "m", "members": [], "stable": True,
        "options": {}, "owners": [], "offsets": [], "lag": 0,
    }  # fmt: skip
    assert wire.unpack(ordered.OrderedInfo, wire.pack(told)).lags == {}


def test_members_stay_while_a_commit_waits_for_room_on_the_disk() -> None:  # SPEC I7, G6
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.make("t")
    peer.publish("t", b"a")
    me = join(peer, "t")
    files.fill()
    ask = ordered.Commit(
        group="g", member=me.member, generation=me.generation, offsets=[("t", 0, 0, "")]
    )
    waiting = peer.send(Op.S_COMMIT, wire.pack(ask))
    assert waiting not in peer.replies
    files.fill()
    known = ordered.Heartbeat(group="g", member=me.member, generation=me.generation, known=1)
    assert peer.call(Op.S_HEARTBEAT, known, ordered.Assigned).owned == me.owned
    desk.after(2_000)
    assert peer.replies[waiting] == "ok"


def test_deleting_a_topic_forgets_its_offsets(desk: Desk) -> None:  # SPEC G1
    peer = desk.client()
    peer.make("t")
    peer.publish("t", b"a")
    commit(peer, join(peer, "t"), ("t", 0, 0))
    peer.ask(Op.S_DELETE, pack_str("t"))
    assert committed(peer) == []
    assert committed(desk.crash().client()) == []


def test_one_request_reads_all_partitions_and_waits_for_any(desk: Desk) -> None:  # SPEC G4
    peer = desk.client()
    peer.make("t", partitions=2)
    peer.make("u")
    ask = wire.pack(wire.ReadMany([("t", 0, 0), ("t", 1, 0), ("u", 0, 0)], 1 << 20, 1_000))
    first, second = peer.send(Op.S_READ_MANY, ask), peer.send(Op.S_READ_MANY, ask)
    assert first not in peer.replies
    peer.publish("u", b"x")
    head, _ = wire.unpack_headed(wire.ReadManyReply, peer.replies[first])
    assert (head.batches, [at for _, _, at in head.heads]) == ([2], [0, 0, 1])
    assert second in peer.replies


def test_bad_requests_are_named(desk: Desk) -> None:
    peer = desk.client()
    with pytest.raises(NotFound, match="'nowhere'"):
        join(peer, "nowhere")
    peer.make("t")
    with pytest.raises(InvalidOption, match="strategy"):
        join(peer, "t", strategy="best")
    with pytest.raises(NotFound, match="'g'"):
        peer.ask(Op.S_HEARTBEAT, wire.pack(ordered.Heartbeat(group="g", member="m", generation=1)))


def _refused_joins_and_commits() -> list[tuple[Op, object]]:
    stranger = ordered.Commit(group="g", member="m", generation=3, offsets=[("t", 0, 0, "")])
    below = ordered.Commit(group="g", offsets=[("t", 0, -2, "")])
    return [
        (Op.S_ORDERED_JOIN, ordered.OrderedJoin(group="g", topics=[])),
        (Op.S_COMMIT, stranger),
        (Op.S_COMMIT, below),
        (Op.S_ORDERED_SEEK, ordered.OrderedSeek(group="g", offsets=[("t", 0, -2, "")])),
    ]


@pytest.mark.parametrize(("op", "ask"), _refused_joins_and_commits())
def test_a_refused_request_leaves_no_group_behind(desk: Desk, op: Op, ask: object) -> None:
    """Bad input changes nothing (SPEC, preamble)."""
    peer = desk.client()
    peer.make("t")
    peer.publish("t", b"x")
    with pytest.raises((InvalidInput, NotMember)):
        peer.ask(op, wire.pack(ask))
    assert peer.call(Op.S_ORDERED_GROUPS, ordered.OrderedAsk(), list[ordered.OrderedInfo]) == []


def test_groups_that_ended_leave_nothing_in_memory(desk: Desk) -> None:
    peer = desk.client()
    peer.make("t")
    _come_and_go(peer, "first")
    tracemalloc.start()
    try:
        for number in range(200):
            _come_and_go(peer, f"group-{number}")
        desk.after(60_000)
        held = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, service.__file__)]
        )
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in held.traces) < 5_000


def _come_and_go(peer: Peer, group: str) -> None:
    """A group whose member waited for news."""
    me = peer.call(
        Op.S_ORDERED_JOIN, ordered.OrderedJoin(group=group, topics=["t"]), ordered.Assigned
    )
    waiting = ordered.Heartbeat(
        group=group, member=me.member, generation=me.generation, known=1, wait_ms=60_000
    )
    request = peer.send(Op.S_HEARTBEAT, wire.pack(waiting))
    assert request not in peer.replies
    peer.ask(Op.S_ORDERED_LEAVE, wire.pack(ordered.OrderedLeave(group=group, member=me.member)))
    assert isinstance(peer.replies.pop(request), NotMember)
    peer.ask(Op.S_ORDERED_DELETE, wire.pack(ordered.OrderedName(group=group)))
