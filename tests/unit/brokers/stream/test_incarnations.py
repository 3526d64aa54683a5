"""A stream deleted and created again is another one to whoever read the first (P1, SPEC I9)."""

from __future__ import annotations

import pytest

from nexo.errors import OffsetOutOfRange, StreamReplaced
from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Desk, Peer


def recreate(peer: Peer) -> None:
    peer.ask(Op.S_DELETE, pack_str("s"))
    peer.make("s")


def read(peer: Peer, created_ms: int) -> bytes:
    reply: bytes = peer.ask(Op.S_READ, wire.pack(wire.Read("s", 0, 0, 1000, 0, created_ms)))
    return reply


def read_many(peer: Peer, created_ms: int) -> bytes:
    ask = wire.ReadMany([("s", 0, 0)], 1000, 0, {"s": created_ms})
    reply: bytes = peer.ask(Op.S_READ_MANY, wire.pack(ask))
    return reply


def tiered(peer: Peer, created_ms: int) -> None:
    ask = wire.TieredTo(stream="s", partition=0, offset=1, created_ms=created_ms)
    peer.ask(Op.S_TIERED, wire.pack(ask))


@pytest.mark.parametrize("act", [read, read_many, tiered])
def test_what_names_the_old_incarnation_is_refused(act: type) -> None:
    peer = Desk().client()
    old = peer.make("s").created_ms
    peer.publish("s", b"old")
    act(peer, old)
    recreate(peer)
    peer.publish("s", b"new")
    with pytest.raises(StreamReplaced, match="created again"):
        act(peer, old)
    act(peer, peer.describe("s").created_ms)
    act(peer, 0)


def test_the_lake_of_the_old_incarnation_frees_nothing_of_the_new() -> None:
    peer = Desk().client()
    old = peer.make("s").created_ms
    recreate(peer)
    peer.publish("s", b"new")
    with pytest.raises(StreamReplaced):
        tiered(peer, old)
    assert peer.describe("s").partitions[0].tiered_offset == 0


def test_two_incarnations_differ_even_within_one_millisecond_and_after_restarts() -> None:
    desk = Desk()
    peer = desk.client()
    seen = {peer.make("s").created_ms}
    recreate(peer)
    seen.add(peer.describe("s").created_ms)
    peer.ask(Op.S_DELETE, pack_str("s"))
    desk.service.close()
    seen.add(Desk(desk.files, now=1_000_000).client().make("s").created_ms)
    assert len(seen) == 3


def test_an_offset_outside_is_refused_as_ever() -> None:
    peer = Desk().client()
    made = peer.make("s").created_ms
    with pytest.raises(OffsetOutOfRange):
        peer.ask(Op.S_READ, wire.pack(wire.Read("s", 0, 5, 1000, 0, made)))
