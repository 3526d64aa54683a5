"""Compaction and the newest record per key."""

from __future__ import annotations

import pytest

from nexo.batch import decode, entries
from nexo.brokers.stream import engine
from nexo.brokers.stream.cleanup import compaction
from nexo.errors import InvalidOption
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Desk, Peer


@pytest.fixture
def desk() -> Desk:
    return Desk(segment_bytes=1_024)


def put(peer: Peer, key: bytes | None, value: bytes | None) -> None:
    keys = [key]
    peer.publish("s", value, keys=keys if key is not None else None)


def get(peer: Peer, key: bytes) -> bytes | None:
    reply = peer.ask(Op.S_GET, wire.pack(wire.Get(stream="s", key=key)))
    if reply is None:
        return None
    _, rest = wire.unpack_headed(int, reply)
    return next(decode(next(entries(rest))).records()).value


def compact(peer: Peer) -> int:
    return peer.call(Op.S_COMPACT, wire.StreamName(stream="s"), int)


def rows(peer: Peer) -> list[tuple[int, bytes | None]]:
    found, at = [], 0
    while True:
        ask = wire.Read("s", 0, at, 1 << 20)
        head, rest = wire.unpack_headed(wire.ReadReply, peer.ask(Op.S_READ, wire.pack(ask)))
        found += [
            (row.offset, row.value)
            for entry in entries(rest)
            for row in decode(entry).records()
            if row.offset >= at
        ]
        if head.next_offset >= head.stable_offset:
            return found
        at = head.next_offset


def test_only_the_newest_record_of_a_key_stays_at_its_own_offset(desk: Desk) -> None:  # SPEC I1
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for i in range(20):
        put(peer, b"k%d" % (i % 3), b"v%d" % i)
    put(peer, None, b"no key")
    assert compact(peer) > 0
    expected = [(17, b"v17"), (18, b"v18"), (19, b"v19"), (20, b"no key")]
    assert rows(peer) == expected
    again = desk.crash().client()
    assert rows(again) == expected
    assert again.publish("s", b"next") == [(0, 21, 1)]


@pytest.mark.parametrize("cleanup", ["delete", "delete,compact"])
def test_only_a_stream_set_to_compact_is_compacted(desk: Desk, cleanup: str) -> None:
    """SPEC I1: with ``delete`` every record stays until age or size say otherwise."""
    peer = desk.client()
    peer.make("s", cleanup=cleanup)
    for value in (b"v1", b"v2", b"v3"):
        peer.publish("s", value, keys=[b"k"])
    if cleanup == "delete":
        with pytest.raises(InvalidOption, match="cleanup=compact"):
            compact(peer)
        assert peer.read("s") == [b"v1", b"v2", b"v3"]
    else:
        compact(peer)
        assert peer.read("s") == [b"v3"]


def test_a_stream_without_records_is_compacted_to_nothing(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", cleanup="compact")
    assert compact(peer) == 0


def test_records_of_one_batch_are_compacted_too(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", cleanup="compact")
    peer.publish("s", b"1", b"2", b"3", keys=[b"a", b"b", b"a"])
    compact(peer)
    assert rows(peer) == [(1, b"2"), (2, b"3")]
    assert compact(peer) == 0


def test_a_record_goes_even_if_that_frees_no_byte(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", cleanup="compact")
    peer.publish("s", b"0", b"1", b"2", b"3", keys=[None, None, b"a", b"a"])
    compact(peer)
    assert rows(peer) == [(0, b"0"), (1, b"1"), (3, b"3")]


def test_a_deletion_goes_at_once_when_asked_and_later_by_itself(desk: Desk) -> None:  # SPEC I1
    peer = desk.client()
    peer.make("s", cleanup="compact", min_dirty_ratio=0.1, delete_retention_ms=1_000_000)
    put(peer, b"a", b"1")
    put(peer, b"a", None)
    put(peer, b"b", b"2")
    desk.after(600_000)
    assert rows(peer) == [(1, None), (2, b"2")]
    compact(peer)
    assert rows(peer) == [(2, b"2")]


def test_compaction_waits_for_the_dirty_ratio(desk: Desk) -> None:  # SPEC I1
    peer = desk.client()
    peer.make("s", cleanup="compact", min_dirty_ratio=0.9)
    for i in range(10):
        put(peer, b"k", b"%d" % i)
    desk.after(600_000)
    assert rows(peer) == [(9, b"9")]
    put(peer, b"k", b"10")
    desk.after(600_000)
    assert len(rows(peer)) == 2


def test_a_group_steps_over_what_compaction_removed(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for i in range(10):
        put(peer, b"k%d" % (i % 2), b"%d" % i)
    peer.publish("s", b"x", b"y", b"z", keys=[b"q", b"r", b"q"])
    consumer = peer.join("s", "g")
    compact(peer)
    got = consumer.take()
    assert [(g.offset, g.value) for g in got] == [(8, b"8"), (9, b"9"), (11, b"y"), (12, b"z")]
    consumer.settle("ack", 8, 9, 11, 12)
    info = peer.group("s", "g")
    assert (info.lag, info.partitions[0].floor) == (0, 13)


def test_the_newest_record_of_a_key_is_found(desk: Desk) -> None:  # SPEC G2
    peer = desk.client()
    peer.make("s", cleanup="compact")
    put(peer, b"a", b"1")
    put(peer, b"b", b"2")
    assert get(peer, b"a") == b"1"
    put(peer, b"a", b"3")
    assert get(peer, b"a") == b"3"
    put(peer, b"a", None)
    assert get(peer, b"a") is None
    assert get(peer, b"never") is None
    compact(peer)
    assert get(peer, b"b") == b"2"
    assert get(desk.crash().client(), b"b") == b"2"


def test_the_current_state_comes_in_portions(desk: Desk) -> None:  # SPEC G2
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for i in range(50):
        put(peer, b"k%d" % (i % 10), b"%d" % i)
    put(peer, b"k0", None)
    state: dict[bytes | None, bytes | None] = {}
    at: tuple[int, int] | None = (0, 0)
    while at is not None:
        ask = wire.StateAsk(stream="s", partition=at[0], offset=at[1], max_bytes=200)
        head, rest = wire.unpack_headed(wire.StateReply, peer.ask(Op.S_STATE, wire.pack(ask)))
        state |= {r.key: r.value for entry in entries(rest) for r in decode(entry).records()}
        at = head.following
    assert state == {b"k%d" % i: b"%d" % (40 + i) for i in range(1, 10)}


def test_a_stream_that_grows_quickly_is_compacted_without_waiting_for_the_sweep(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I1
    monkeypatch.setattr(engine, "CHECKPOINT_BYTES", 4_096)
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for i in range(200):
        put(peer, b"k%d" % (i % 3), b"v%d" % i)
    for _ in range(10):
        desk.after(1)
    assert len(rows(peer)) < 100
    assert [get(peer, b"k%d" % n) for n in range(3)] == [b"v198", b"v199", b"v197"]


def test_what_is_left_of_many_segments_becomes_one(desk: Desk) -> None:
    """F13: ten keys lay in 41 files."""
    peer = desk.client()
    peer.make("s", cleanup="compact", min_dirty_ratio=0)
    for run in range(8):
        for i in range(40):
            put(peer, b"k%d" % (i % 10), b"v%d-%d" % (run, i))
        compact(peer)
    log = desk.service.core.engine.streams.get("s").partition(0).log
    assert len(log.segments()) <= 2
    expected = [(280 + i, b"v7-%d" % i) for i in range(30, 40)]
    assert rows(peer) == expected
    again = desk.crash().client()
    assert rows(again) == expected
    assert again.publish("s", b"next") == [(0, 320, 1)]


def test_segments_that_hold_much_are_not_joined(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MERGED_BYTES", 2_000)
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for i in range(60):
        put(peer, b"k%d" % i, bytes(100))
    compact(peer)
    log = desk.service.core.engine.streams.get("s").partition(0).log
    assert 4 < len(log.segments()) < 12
    assert len(rows(desk.crash().client())) == 60


def test_with_tiering_only_what_the_lake_has_is_compacted(desk: Desk) -> None:
    """P11: a quarter of a compacted stream's records never reached the lake."""
    peer = desk.client()
    peer.make("s", cleanup="compact", tiering=True, min_dirty_ratio=0)
    for i in range(40):
        put(peer, b"k", b"v%d" % i)
    compact(peer)
    desk.service.keyed.compact_if_due(desk.service.core.engine.streams.get("s"))
    desk.runtime.end_turn()
    assert [offset for offset, _ in rows(peer)] == list(range(40))
    tiered = wire.TieredTo(stream="s", partition=0, offset=20)
    peer.ask(Op.S_TIERED, wire.pack(tiered))
    compact(peer)
    left = [offset for offset, _ in rows(peer)]
    assert left[-20:] == list(range(20, 40))
    assert len(left) < 40
    peer.ask(Op.S_TIERED, wire.pack(wire.TieredTo(stream="s", partition=0, offset=40)))
    compact(peer)
    assert rows(peer) == [(39, b"v39")]
