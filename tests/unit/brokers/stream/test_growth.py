"""Partitions that are added to a stream: what was there stays right (SPEC E1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexo.batch import BatchProducer, decode, entries
from nexo.batch.partitions import partition_of
from nexo.errors import Conflict, Forbidden, InvalidOption, PartitionsChanged
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol import xstreams
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import KeyAt, TxBegin, TxInputs, publish_head
from nexo.storage.header import Flags
from tests.unit.brokers.stream.desk import Desk, Peer


@pytest.fixture
def desk() -> Desk:
    return Desk(segment_bytes=1_024)


def grow(peer: Peer, partitions: int, **options: object) -> wire.StreamInfo:
    ask = wire.Make(stream="s", options={"partitions": partitions, **options})
    return peer.call(Op.S_UPDATE, ask, wire.StreamInfo)


def values(peer: Peer, partitions: int) -> list[list[bytes | None]]:
    return [peer.read("s", partition=index) for index in range(partitions)]


def test_partitions_are_added_and_old_records_stay_where_they_are(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", partitions=2)
    peer.publish("s", b"a", partition=0)
    peer.publish("s", b"b", partition=1)
    assert len(grow(peer, 5).partitions) == 5
    assert peer.publish("s", b"c", partition=4) == [(4, 0, 1)]
    for again in (desk.crash(), desk.crash().restart(), desk.crash().restart().crash()):
        assert values(again.client(), 5) == [[b"a"], [b"b"], [], [], [b"c"]]
    again = desk.crash()
    assert len(grow(again.client(), 6).partitions) == 6
    assert len(again.crash().client().describe("s").partitions) == 6


@pytest.mark.parametrize(
    ("count", "says"),
    [(1, "never removed"), (0, "partitions"), (1_025, "1,024"), (-1, "partitions")],
)
def test_fewer_or_too_many_are_refused_and_nothing_changes(
    desk: Desk, count: int, says: str
) -> None:
    peer = desk.client()
    peer.make("s", partitions=2)
    with pytest.raises(InvalidOption, match=says):
        grow(peer, count)
    assert len(grow(peer, 2).partitions) == 2  # what it has already changes nothing
    assert len(desk.crash().client().describe("s").partitions) == 2


def test_streams_whose_readers_count_on_one_partition_do_not_grow(desk: Desk) -> None:
    peer = desk.client()
    peer.ask(Op.S_X_GROUP, wire.pack(xstreams.MakeGroup("s", "g", None)))
    with pytest.raises(Conflict, match=r"nexo\.xstreams"):
        grow(peer, 2)
    assert len(peer.describe("s").partitions) == 1


def test_the_broker_s_own_streams_do_not_grow() -> None:
    peer = Desk(stream_cdc=True).client()
    ask = wire.Make(stream="$cdc", options={"partitions": 2})
    with pytest.raises(Forbidden, match="belongs to the broker"):
        peer.ask(Op.S_UPDATE, wire.pack(ask))


def test_a_kill_before_the_journal_leaves_the_old_count_and_nothing_is_answered(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", partitions=2)
    answers: list[object] = []
    desk.service.admin.update(peer, "s", {"partitions": 3}, answers.append)
    placed: list[object] = []
    entry = peer.batch(b"a")
    desk.service.publishing.publish(peer, "s", entry, placed.append, 2)
    assert not answers
    assert not placed
    assert len(desk.crash().client().describe("s").partitions) == 2
    desk.runtime.end_turn()
    assert len(answers) == len(placed) == 1
    assert values(desk.crash().client(), 3) == [[], [], [b"a"]]


def test_every_partition_keeps_its_share_of_the_size_limit(desk: Desk) -> None:  # SPEC E4
    peer = desk.client()
    peer.make("s", partitions=2, retention_bytes=4_096)
    peer.publish("s", b"x" * 1_500, partition=0)
    assert grow(peer, 8).options["retention_bytes"] == 16_384
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
    assert peer.read("s") == [b"x" * 1_500]
    assert grow(peer, 16, retention_bytes=8_192).options["retention_bytes"] == 8_192


# -- producers ---------------------------------------------------------------------------


def test_a_sender_that_counts_the_old_partitions_is_told(desk: Desk) -> None:  # SPEC E2
    peer = desk.client()
    peer.make("s", partitions=2)
    grow(peer, 3)
    with pytest.raises(PartitionsChanged, match="3 partitions, not 2"):
        peer.publish("s", b"a", partition=1, count=2)
    assert values(peer, 3) == [[], [], []]


def test_a_repeat_of_a_batch_from_before_gets_the_answer_it_missed(desk: Desk) -> None:  # SPEC G3
    peer = desk.client()
    peer.make("s", partitions=2)
    first, second = BatchProducer(7, 0, 0), BatchProducer(7, 0, 1)
    assert peer.publish("s", b"a", partition=1, count=2, producer=first) == [(1, 0, 1)]
    grow(peer, 3)
    assert peer.publish("s", b"a", partition=1, count=2, producer=first) == [(1, 0, 1)]
    with pytest.raises(PartitionsChanged):
        peer.publish("s", b"b", partition=1, count=2, producer=second)
    assert values(peer, 3) == [[], [b"a"], []]


# -- groups ------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["beginning", "end"])
def test_a_shared_group_reads_new_partitions_from_their_start(desk: Desk, start: str) -> None:
    peer = desk.client()
    peer.make("s", partitions=2)
    consumer = peer.join("s", "g", start=start)
    peer.publish("s", b"a", partition=0)
    (held,) = consumer.take()
    grow(peer, 4)
    peer.publish("s", b"b", partition=3)
    assert [got.value for got in consumer.take()] == [b"b"]
    assert consumer.settle("ack", held.offset) == []
    for again in (desk.crash(), desk.crash().restart()):
        taken = again.client().join("s", "g").take()
        assert [got.value for got in taken] == [b"b"]


def test_a_poll_that_waits_gets_what_arrives_in_a_new_partition(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    poll = consumer.poll(wait_ms=10_000)
    grow(peer, 2)
    peer.publish("s", b"b", partition=1)
    assert [got.value for got in consumer.opened(peer.replies[poll])] == [b"b"]


def join(peer: Peer) -> ordered.Assigned:
    return peer.call(
        Op.S_ORDERED_JOIN, ordered.OrderedJoin(group="g", topics=["s"]), ordered.Assigned
    )


def beat(peer: Peer, me: ordered.Assigned, **more: int) -> int:
    ask = ordered.Heartbeat(group="g", member=me.member, generation=me.generation, **more)
    return peer.send(Op.S_HEARTBEAT, wire.pack(ask))


def committed(peer: Peer) -> dict[int, int]:
    rows = peer.call(Op.S_COMMITTED, ordered.CommittedAsk(group="g"), list[ordered.CommittedAt])
    return {row.partition: row.offset for row in rows}


def test_members_of_an_ordered_group_share_new_partitions(desk: Desk) -> None:  # SPEC G6
    peer = desk.client()
    peer.make("s", partitions=2)
    me = join(peer)
    waits = beat(peer, me, wait_ms=30_000, known=2)
    assert waits not in peer.replies
    grow(peer, 4)
    news = wire.unpack(ordered.Assigned, peer.replies[waits])
    assert news.generation > me.generation
    mine = wire.unpack(ordered.Assigned, peer.replies[beat(peer, news)])
    assert [partition for _, partition in mine.owned] == [0, 1, 2, 3]


def test_a_group_starts_at_the_beginning_of_partitions_that_it_saw_arrive(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    me = join(peer)
    ask = ordered.Commit(group="g", member=me.member, generation=me.generation, offsets=[])
    peer.ask(Op.S_COMMIT, wire.pack(ask))
    grow(peer, 3)
    for again in (desk, desk.crash(), desk.crash().restart()):
        assert committed(again.client()) == {1: -1, 2: -1}


# -- keys --------------------------------------------------------------------------------


def keys_that(wanted: Callable[[bytes], bool]) -> list[bytes]:
    return [key for key in (b"k%d" % i for i in range(200)) if wanted(key)]


MOVING = keys_that(lambda key: partition_of(key, 2) != partition_of(key, 3))[:20]
"""Keys that belong to another of three partitions than of two."""


def put(peer: Peer, key: bytes, value: bytes | None, partitions: int) -> None:
    peer.publish("s", value, keys=[key], partition=partition_of(key, partitions))


def get(peer: Peer, key: bytes) -> bytes | None:
    reply = peer.ask(Op.S_GET, wire.pack(wire.Get(stream="s", key=key)))
    if reply is None:
        return None
    _, rest = wire.unpack_headed(int, reply)
    return next(decode(next(entries(rest))).records()).value


def state(peer: Peer, max_bytes: int = 1 << 20) -> dict[bytes | None, bytes | None]:
    found: dict[bytes | None, bytes | None] = {}
    at = (0, 0)
    while True:
        ask = wire.StateAsk(stream="s", partition=at[0], offset=at[1], max_bytes=max_bytes)
        head, rest = wire.unpack_headed(wire.StateReply, peer.ask(Op.S_STATE, wire.pack(ask)))
        for entry in entries(rest):
            found |= {row.key: row.value for row in decode(entry).records()}
        if head.following is None:
            return found
        at = head.following


def compact(peer: Peer) -> None:
    peer.ask(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))


def test_the_newest_record_of_a_key_is_found_where_it_was_and_where_it_is(desk: Desk) -> None:
    """SPEC G2, whatever the clocks of the writers said."""
    peer = desk.client()
    peer.make("s", partitions=2, cleanup="compact")
    for key in MOVING:
        peer.publish(
            "s", b"old", keys=[key], partition=partition_of(key, 2),
            now_ms=desk.runtime.time.now + 30_000,
        )  # fmt: skip
    grow(peer, 3)
    moved, gone, left = MOVING[0], MOVING[1], MOVING[2:]
    put(peer, moved, b"new", 3)
    put(peer, gone, None, 3)
    expected = {moved: b"new", gone: None} | dict.fromkeys(left, b"old")
    for again in (desk, desk.crash(), desk.crash().restart()):
        client = again.client()
        assert {key: get(client, key) for key in MOVING} == expected
        assert state(client) == {key: value for key, value in expected.items() if value}
        assert state(client, max_bytes=1) == state(client)


def test_who_writes_to_the_old_partition_of_a_key_later_is_newer(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", partitions=2, cleanup="compact")
    key = MOVING[0]
    put(peer, key, b"old", 2)
    grow(peer, 3)
    put(peer, key, b"new", 3)
    desk.after(5)
    put(peer, key, b"late", 2)  # as a Kafka client does, until it looks again
    for again in (desk, desk.crash()):
        assert get(again.client(), key) == b"late"
        assert state(again.client()) == {key: b"late"}


def test_a_deletion_stays_while_it_hides_a_record_of_another_partition(desk: Desk) -> None:
    peer = desk.client()  # SPEC I1
    peer.make("s", partitions=2, cleanup="compact", min_dirty_ratio=0.0, delete_retention_ms=1)
    key = MOVING[0]
    put(peer, key, b"old", 2)
    grow(peer, 3)
    put(peer, key, None, 3)
    desk.after(10_000)
    compact(peer)
    for again in (desk, desk.crash(), desk.crash().restart()):
        assert get(again.client(), key) is None
        assert state(again.client()) == {}


def test_a_transaction_that_relied_on_a_key_does_not_take_another_partition_s_offset_for_its_own(
    desk: Desk,
) -> None:
    peer = desk.client()
    peer.make("s", partitions=2, cleanup="compact")
    key = MOVING[0]
    put(peer, key, b"old", 2)
    number = peer.call(Op.S_TX_BEGIN, TxBegin(timeout_ms=60_000), int)
    grow(peer, 3)
    put(peer, key, b"new", 3)  # at offset 0 too
    unchanged = [KeyAt("s", key, 0)]
    peer.ask(Op.S_TX_INPUTS, wire.pack(TxInputs(number, unchanged=unchanged)))
    with pytest.raises(Conflict, match="partitions were added"):
        peer.ask(Op.S_TX_COMMIT, wire.pack(number))


# -- transactions ------------------------------------------------------------------------


def test_a_transaction_open_across_the_change_commits_whole_or_not_at_all(desk: Desk) -> None:
    peer = desk.client()  # SPEC H1
    peer.make("s", partitions=2)
    number = peer.call(Op.S_TX_BEGIN, TxBegin(timeout_ms=60_000), int)

    def write(value: bytes, partition: int) -> None:
        batch = peer.batch(value, flags=Flags.TRANSACTIONAL)
        head = number.to_bytes(8, "big") + publish_head("s", partition)
        peer.ask(Op.S_TX_PUBLISH, head + batch)

    write(b"a", 0)
    grow(peer, 4)
    write(b"b", 3)
    assert values(peer, 4) == [[], [], [], []]
    assert values(desk.crash().client(), 4) == [[], [], [], []]
    peer.ask(Op.S_TX_COMMIT, wire.pack(number))
    for again in (desk, desk.crash(), desk.crash().restart()):
        assert values(again.client(), 4) == [[b"a"], [], [], [b"b"]]


def test_change_events_name_new_partitions() -> None:  # SPEC I6
    desk = Desk(stream_cdc=True)
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    grow(peer, 2)
    peer.publish("s", b"b", partition=1)
    events = [row.value for row in peer.rows("$cdc")]
    assert [b'"partition":1' in (event or b"") for event in events] == [False, True]


def test_deleting_and_creating_again_starts_over(desk: Desk) -> None:  # SPEC I9
    peer = desk.client()
    peer.make("s", partitions=2)
    grow(peer, 4)
    peer.publish("s", b"a", partition=3)
    peer.ask(Op.S_DELETE, pack_str("s"))
    peer.make("s", partitions=2)
    assert values(peer, 2) == [[], []]
    assert values(desk.crash().client(), 2) == [[], []]
