"""Transactions: all of it becomes visible, or nothing ever does."""

from __future__ import annotations

import pytest

from nexo.brokers.stream.transactions import REMEMBERED, Transactions
from nexo.errors import InvalidInput, NotFound, OutcomeUnknown, TransactionAborted
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxAcks, TxBegin, TxInputs, TxOffsets, publish_head
from nexo.storage.header import Flags
from tests.unit.brokers.stream.desk import Consumer, Desk, Peer


@pytest.fixture
def desk() -> Desk:
    return Desk()


class Tx:
    """A transaction as a client drives it."""

    def __init__(self, peer: Peer, timeout_ms: int = 60_000) -> None:
        self.peer = peer
        self.id = peer.call(Op.S_TX_BEGIN, TxBegin(timeout_ms=timeout_ms), int)

    def publish(self, stream: str, *values: bytes) -> None:
        batch = self.peer.batch(*values, flags=Flags.TRANSACTIONAL)
        head = self.id.to_bytes(8, "big") + publish_head(stream, 0)
        self.peer.ask(Op.S_TX_PUBLISH, head + batch)

    def ack(self, consumer: Consumer, stream: str, group: str, offset: int) -> None:
        ranges = [(0, offset, offset + 1)]
        acks = [TxAcks(stream, group, consumer.name, consumer.generation, ranges)]
        self.peer.ask(Op.S_TX_INPUTS, wire.pack(TxInputs(transaction=self.id, acks=acks)))

    def commit(self) -> None:
        self.peer.ask(Op.S_TX_COMMIT, wire.pack(self.id))

    def abort(self) -> None:
        self.peer.ask(Op.S_TX_ABORT, wire.pack(self.id))


def test_nothing_is_visible_before_the_commit_and_all_after(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("a")
    peer.make("b")
    tx = Tx(peer)
    tx.publish("a", b"1")
    tx.publish("b", b"2", b"3")
    assert (peer.read("a"), peer.read("b")) == ([], [])
    tx.commit()
    assert (peer.read("a"), peer.read("b")) == ([b"1"], [b"2", b"3"])


def test_readers_wait_behind_an_open_transaction_and_skip_nothing(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    tx = Tx(peer)
    tx.publish("s", b"tx")
    peer.publish("s", b"after")
    poll = consumer.poll()
    assert poll not in peer.replies
    tx.commit()
    assert [got.value for got in consumer.opened(peer.replies[poll])] == [b"tx", b"after"]


def test_rolled_back_records_are_never_seen_and_readers_go_on(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    peer.publish("s", b"before")
    tx = Tx(peer)
    tx.publish("s", b"never")
    peer.publish("s", b"after")
    tx.abort()
    assert peer.read("s") == [b"before", b"after"]
    assert [got.value for got in consumer.take()] == [b"before", b"after"]
    consumer.settle("ack", 0, 2)
    assert peer.group("s", "g").lag == 0
    again = desk.crash().client()
    assert again.read("s") == [b"before", b"after"]
    assert [got.value for got in again.join("s", "new").take()] == [b"before", b"after"]


def test_a_crash_before_the_commit_leaves_nothing(desk: Desk) -> None:  # SPEC H1, H2
    peer = desk.client()
    peer.make("s")
    Tx(peer).publish("s", b"never")
    again = desk.crash()
    assert again.client().read("s") == []
    assert again.client().publish("s", b"next") == [(0, 1, 1)]
    assert again.restart().client().read("s") == [b"next"]


def test_a_commit_survives_crashes_and_stops(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("s")
    tx = Tx(peer)
    tx.publish("s", b"a")
    tx.publish("s", b"b")
    tx.commit()
    for again in (desk.crash(), desk.crash().restart(), desk.crash().restart().crash()):
        assert again.client().read("s") == [b"a", b"b"]


def test_outputs_and_input_acks_are_one(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("in")
    peer.make("out")
    peer.publish("in", b"x")
    consumer = peer.join("in", "g")
    consumer.take()
    tx = Tx(peer)
    tx.publish("out", b"y")
    tx.ack(consumer, "in", "g", 0)
    assert peer.group("in", "g").lag == 1
    tx.commit()
    assert (peer.group("in", "g").lag, peer.read("out")) == (0, [b"y"])
    again = desk.crash().client()
    assert (again.group("in", "g").lag, again.read("out")) == (0, [b"y"])


def test_after_a_rollback_the_input_is_delivered_again(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("in")
    peer.publish("in", b"x")
    consumer = peer.join("in", "g")
    consumer.take()
    tx = Tx(peer)
    tx.ack(consumer, "in", "g", 0)
    tx.abort()
    assert [got.value for got in consumer.take()] == [b"x"]


def test_an_input_that_was_lost_rolls_everything_back(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("in")
    peer.make("out")
    peer.publish("in", b"x")
    consumer = peer.join("in", "g")
    consumer.take()
    tx = Tx(peer)
    tx.publish("out", b"y")
    tx.ack(consumer, "in", "g", 0)
    desk.after(30_000)
    with pytest.raises(TransactionAborted, match="rolled back"):
        tx.commit()
    assert peer.read("out") == []
    assert peer.group("in", "g").lag == 1


def test_ordered_offsets_commit_with_the_transaction(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("in")
    peer.make("out")
    peer.publish("in", b"x")
    join = ordered.OrderedJoin(group="g", topics=["in"])
    me = peer.call(Op.S_ORDERED_JOIN, join, ordered.Assigned)
    tx = Tx(peer)
    tx.publish("out", b"y")
    offsets = [TxOffsets("g", me.member, me.generation, [("in", 0, 0, "")])]
    peer.ask(Op.S_TX_INPUTS, wire.pack(TxInputs(transaction=tx.id, offsets=offsets)))
    ask = ordered.CommittedAsk(group="g")
    assert peer.call(Op.S_COMMITTED, ask, list[ordered.CommittedAt]) == []
    tx.commit()
    again = desk.crash().client()
    stored = again.call(Op.S_COMMITTED, ask, list[ordered.CommittedAt])
    assert [(row.topic, row.partition, row.offset) for row in stored] == [("in", 0, 0)]
    assert again.read("out") == [b"y"]


def test_a_cut_connection_and_a_timeout_roll_back(desk: Desk) -> None:
    other, peer = desk.client(), desk.client()
    peer.make("s")
    Tx(other).publish("s", b"cut")
    other.close()
    slow = Tx(peer, timeout_ms=1_000)
    slow.publish("s", b"slow")
    desk.after(1_000)
    peer.publish("s", b"plain")
    assert peer.read("s") == [b"plain"]
    with pytest.raises(TransactionAborted):
        slow.commit()


def test_a_transaction_belongs_to_its_connection(desk: Desk) -> None:
    peer, thief = desk.client(), desk.client()
    peer.make("s")
    tx = Tx(peer)
    tx.publish("s", b"a")
    tx.peer = thief
    with pytest.raises(TransactionAborted):
        tx.commit()
    tx.peer = peer
    tx.commit()
    assert peer.read("s") == [b"a"]


def outcome(peer: Peer, tx: Tx) -> object:
    """The reply, or None while there is none."""
    return peer.replies.get(peer.send(Op.S_TX_OUTCOME, wire.pack(tx.id)))


def test_how_a_transaction_ended_can_be_asked_for_by_who_missed_the_reply(desk: Desk) -> None:
    """SPEC H1: on another connection, and after a crash or a restart of the broker, too."""
    peer = desk.client()
    peer.make("s")
    kept, dropped, undone, left = Tx(peer), Tx(peer), Tx(peer), Tx(peer)
    for tx in (kept, dropped, left):
        tx.publish("s", b"a")
    kept.commit()
    undone.commit()  # it did nothing, and is remembered all the same
    dropped.abort()
    desk = desk.crash()
    asker = desk.client()
    for _ in range(2):
        assert outcome(asker, kept) == outcome(asker, undone) == "ok"
        assert isinstance(outcome(asker, dropped), TransactionAborted)
        assert isinstance(outcome(asker, left), TransactionAborted)
        later = Tx(asker)
        later.commit()
        assert later.id not in (kept.id, dropped.id, undone.id, left.id)
        desk = desk.restart()
        asker = desk.client()


def test_who_asks_before_the_end_hears_of_it_then(desk: Desk) -> None:
    """SPEC H1."""
    peer, asker = desk.client(), desk.client()
    peer.make("s")
    desk.runtime.slow_disk = True
    tx, open_one, orphan = Tx(peer), Tx(peer), Tx(peer)
    for each in (tx, open_one, orphan):
        each.publish("s", b"a")
    peer.send(Op.S_TX_COMMIT, wire.pack(tx.id))
    asked = [asker.send(Op.S_TX_OUTCOME, wire.pack(each.id)) for each in (tx, open_one)]
    assert not asker.replies
    while desk.runtime.unsynced:
        desk.runtime.sync()
    assert asker.replies == {asked[0]: "ok"}
    peer.close()
    assert isinstance(asker.replies[asked[1]], TransactionAborted)


def test_outcomes_are_forgotten_one_day_but_never_made_up() -> None:
    """SPEC H1: a committed transaction never counts as rolled back."""
    known = Transactions()
    for number in range(0, 4 * REMEMBERED, 2):
        known.committed(number)
    assert known.outcome(4 * REMEMBERED - 2) is None
    with pytest.raises(TransactionAborted):
        known.outcome(4 * REMEMBERED - 3)
    for number in (0, 1):
        with pytest.raises(OutcomeUnknown):
            known.outcome(number)
    assert len(known.outcomes().committed) == REMEMBERED


def test_a_failure_in_the_middle_changes_nothing_else(desk: Desk) -> None:  # SPEC H1
    peer = desk.client()
    peer.make("s")
    tx = Tx(peer)
    tx.publish("s", b"a")
    with pytest.raises(NotFound):
        tx.publish("unknown", b"b")
    with pytest.raises(InvalidInput):
        peer.ask(
            Op.S_TX_PUBLISH,
            tx.id.to_bytes(8, "big") + publish_head("s", 0) + peer.batch(b"unflagged"),
        )
    tx.abort()
    assert peer.read("s") == []


def test_the_decision_is_written_after_the_records_are_synced(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    tx = Tx(peer)
    tx.publish("s", b"a")
    desk.runtime.slow_disk = True
    commit = peer.send(Op.S_TX_COMMIT, wire.pack(tx.id))
    assert desk.crash().client().read("s") == []
    desk.runtime.sync()
    assert peer.replies[commit] == "ok"
    assert peer.read("s") == [b"a"]


def test_many_rolled_back_records_hide_none_behind_them(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    tx = Tx(peer)
    for _ in range(20):
        tx.publish("s", b"x" * 50_000)
    tx.abort()
    peer.publish("s", b"visible")
    assert peer.read("s") == [b"visible"]
    assert [got.value for got in peer.join("s", "g").take()] == [b"visible"]


def test_deleting_a_stream_rolls_back_what_is_not_decided(desk: Desk) -> None:
    peer = desk.client()
    for name in ("gone", "stays"):
        peer.make(name)
    tx = Tx(peer)
    tx.publish("gone", b"x")
    tx.publish("stays", b"y")
    desk.runtime.slow_disk = True
    commit = peer.send(Op.S_TX_COMMIT, wire.pack(tx.id))
    peer.send(Op.S_DELETE, pack_str("gone"))
    desk.runtime.sync()
    desk.runtime.sync()
    assert isinstance(peer.replies[commit], TransactionAborted)
    assert peer.read("stays") == []
    assert desk.crash().client().read("stays") == []
