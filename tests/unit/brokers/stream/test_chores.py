"""Long work is done in slices, and requests are answered in between (SPEC G2, I1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nexo.batch import decode, entries
from nexo.brokers.stream.cleanup import compaction
from nexo.errors import NotFound, ReadOnly
from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import KeyAt, TxBegin, TxInputs
from tests.manual_runtime import ManualClock
from tests.unit.brokers.stream.desk import Desk, Peer

FOLDER = Path("/stream/streams/s~1/0")
KEYS = 40
ROUNDS = 60


class TickingClock(ManualClock):
    """A clock on which every look takes a millisecond."""

    def now_ms(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def desk() -> Desk:
    """A stream with old values of many keys in several segments, on a slow machine."""
    desk = Desk(segment_bytes=32 * 1024)
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for number in range(ROUNDS):
        peer.publish("s", *[b"%d" % number] * KEYS, keys=[b"k%d" % n for n in range(KEYS)])
    again = desk.crash()
    again.runtime.time = again.runtime.clock = TickingClock(desk.runtime.time.now)
    return again


def value(reply: Any) -> bytes | None:
    _, rest = wire.unpack_headed(int, reply)
    return next(decode(next(entries(rest))).records()).value


def ticks_until(desk: Desk, peer: Peer, request: int) -> int:
    for tick in range(10_000):
        if request in peer.replies:
            return tick
        desk.after(1)
    pytest.fail("no answer came")


def get(peer: Peer, key: bytes) -> int:
    return peer.send(Op.S_GET, wire.pack(wire.Get(stream="s", key=key)))


def test_the_first_get_of_a_long_log_lets_others_through(desk: Desk) -> None:
    peer = desk.client()
    first, second = get(peer, b"k1"), get(peer, b"k2")
    assert peer.read("s", KEYS * (ROUNDS - 1))[0] == b"%d" % (ROUNDS - 1)
    assert not {first, second} & peer.replies.keys()
    peer.publish("s", b"newer", keys=[b"k1"])
    assert ticks_until(desk, peer, first) > 2
    ticks_until(desk, peer, second)
    assert value(peer.replies[first]) == b"newer"
    assert value(peer.replies[second]) == b"%d" % (ROUNDS - 1)
    assert get(peer, b"k3") in peer.replies, "the index is there now"


def test_records_come_in_while_a_stream_is_compacted(desk: Desk) -> None:  # SPEC I1
    peer = desk.client()
    request = peer.send(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    again = peer.send(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    assert request not in peer.replies
    for number in range(5):
        peer.publish("s", b"late %d" % number, keys=[b"k0"])
        desk.after(1)
    assert ticks_until(desk, peer, request) > 2
    ticks_until(desk, peer, again)
    assert wire.unpack(int, peer.replies[request]) > 0
    kept = [b"%d" % (ROUNDS - 1)] * (KEYS - 1) + [b"late 4"]
    assert read_on(peer) == kept
    assert read_on(desk.crash().client()) == kept


def read_on(peer: Peer) -> list[bytes | None]:
    return peer.read("s", peer.describe("s").partitions[0].start_offset)


def test_retention_may_take_what_is_being_compacted(desk: Desk) -> None:
    peer = desk.client()
    request = peer.send(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    desk.after(1)
    options = {"cleanup": "delete,compact", "retention_ms": 1}
    peer.call(Op.S_UPDATE, wire.Make(stream="s", options=options), wire.StreamInfo)
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
    ticks_until(desk, peer, request)
    assert read_on(peer) == []
    assert peer.publish("s", b"next") == [(0, KEYS * ROUNDS, 1)]


def test_a_deleted_stream_ends_its_long_work(desk: Desk) -> None:
    peer = desk.client()
    requests = get(peer, b"k1"), peer.send(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    peer.ask(Op.S_DELETE, pack_str("s"))
    for request in requests:
        ticks_until(desk, peer, request)
        assert isinstance(peer.replies[request], NotFound)


@pytest.mark.parametrize(
    ("offset", "outcome"), [(KEYS * (ROUNDS - 1) + 3, "ok"), (3, "TX_ABORTED")]
)
def test_a_commit_that_relies_on_a_key_of_a_long_log_lets_others_through(
    desk: Desk, offset: int, outcome: str
) -> None:
    peer = desk.client()
    number = peer.call(Op.S_TX_BEGIN, TxBegin(timeout_ms=600_000), int)
    relied = [KeyAt("s", b"k3", offset)]
    peer.ask(Op.S_TX_INPUTS, wire.pack(TxInputs(transaction=number, unchanged=relied)))
    commit = peer.send(Op.S_TX_COMMIT, wire.pack(number))
    assert commit not in peer.replies, "it was done in one go"
    assert peer.publish("s", b"meanwhile", keys=[b"other"])
    assert ticks_until(desk, peer, commit) > 1
    reply = peer.replies[commit]
    assert (reply if reply == "ok" else reply.code) == outcome


def test_a_new_segment_is_synced_in_portions_that_nobody_waits_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I1
    monkeypatch.setattr(compaction, "PORTION_BYTES", 1)
    peer = desk.client()
    desk.runtime.slow_disk = True
    request = peer.send(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    syncs = 0
    for _ in range(10_000):
        if request in peer.replies:
            break
        desk.after(1)
        if desk.runtime.unsynced:
            assert peer.read("s", KEYS * (ROUNDS - 1))[0] == b"%d" % (ROUNDS - 1)
            syncs += 1
            desk.runtime.sync()
    assert syncs > 1
    assert wire.unpack(int, peer.replies[request]) > 0
    assert read_on(peer) == [b"%d" % (ROUNDS - 1)] * KEYS


def test_a_failed_sync_ends_the_compaction_and_loses_nothing(desk: Desk) -> None:
    peer = desk.client()
    newest: list[bytes | None] = [b"%d" % (ROUNDS - 1)] * KEYS
    desk.runtime.slow_disk = True
    request = peer.send(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    while not desk.runtime.unsynced:
        desk.after(1)
    desk.runtime.sync(ReadOnly("a sync to disk failed"))
    assert isinstance(peer.replies[request], ReadOnly)
    assert read_on(peer)[-KEYS:] == newest
    assert not [name for name in desk.files.list(FOLDER) if name.endswith(".new")]
    assert read_on(desk.crash().client())[-KEYS:] == newest
