"""Change data capture: one event per visible record and stored offset, across crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nexo.errors import Forbidden, NotFound
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxBegin, publish_head
from nexo.storage.header import Flags, parse
from tests.unit.brokers.stream.desk import Desk, Peer


@pytest.fixture
def desk() -> Desk:
    return Desk(stream_cdc=True)


def events(peer: Peer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(value or b"") for value in peer.read("$cdc")]


def captured(peer: Peer) -> list[tuple[str, int]]:
    return [(event["topic"], event["offset"]) for event in events(peer)]


def test_every_record_gives_one_event(desk: Desk) -> None:  # SPEC I6
    peer = desk.client()
    peer.make("s", partitions=2)
    peer.publish("s", b"a", b"b", keys=[b"k", None], partition=1)
    assert events(peer) == [
        {
            "type": "stream.produce",
            "topic": "s",
            "partition": 1,
            "offset": offset,
            "key": key,
            "timestamp": 1_000_000,
        }
        for offset, key in ((0, "k"), (1, None))
    ]


def test_a_rolled_back_transaction_gives_none_a_committed_one_does(desk: Desk) -> None:  # SPEC I6
    peer = desk.client()
    peer.make("s")
    for op in (Op.S_TX_ABORT, Op.S_TX_COMMIT):
        number = peer.call(Op.S_TX_BEGIN, TxBegin(), int)
        batch = peer.batch(b"x", flags=Flags.TRANSACTIONAL)
        peer.ask(Op.S_TX_PUBLISH, number.to_bytes(8, "big") + publish_head("s", 0) + batch)
        assert captured(peer) == []
        peer.ask(op, wire.pack(number))
    assert captured(peer) == [("s", 1)]


def test_every_stored_offset_gives_one_event(desk: Desk) -> None:  # SPEC I6
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    commit = ordered.Commit(group="g", offsets=[("s", 0, 0, "")])
    peer.ask(Op.S_COMMIT, wire.pack(commit))
    assert events(peer)[-1] == {
        "type": "stream.commit",
        "group_id": "g",
        "topic": "s",
        "partition": 0,
        "offset": 0,
    }


def test_nothing_is_missing_or_twice_after_a_crash(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    # Killed within the turn: stored, but not captured.
    desk.handlers[Op.S_PUBLISH](peer, 99, memoryview(publish_head("s", 0) + peer.batch(b"b")))
    again = desk.crash()
    peer = again.client()
    peer.publish("s", b"c")
    assert captured(peer) == [("s", 0), ("s", 1), ("s", 2)]
    assert captured(again.restart().client()) == [("s", 0), ("s", 1), ("s", 2)]


def commit(peer: Peer, offset: int, group: str = "g") -> None:
    peer.ask(Op.S_COMMIT, wire.pack(ordered.Commit(group=group, offsets=[("s", 0, offset, "")])))


def committed(peer: Peer) -> list[tuple[str, int]]:
    found = [event for event in events(peer) if event["type"] == "stream.commit"]
    return [(event["group_id"], event["offset"]) for event in found]


def cut_last_entry(desk: Desk) -> None:
    """Take the last batch of events away, as if the broker died before it was written."""
    streams = Path("/stream/streams")
    folder = streams / next(name for name in desk.files.list(streams) if "cdc" in name) / "0"
    (name,) = (n for n in desk.files.list(folder) if n.endswith(".log"))
    file = desk.files.open(folder / name)
    at, position = 64, 64
    while position < file.size():
        at, position = position, position + parse(file.read_at(position, 64)).length
    file.truncate(at)


def test_a_commit_is_captured_once_wherever_the_broker_dies(desk: Desk) -> None:  # SPEC I6
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b", b"c")
    commit(peer, 0)
    commit(peer, 1)
    assert committed(peer) == [("g", 0), ("g", 1)]
    cut_last_entry(desk)  # killed between the journal and the event
    again = desk.crash()
    peer = again.client()
    assert committed(peer) == [("g", 0), ("g", 1)]
    commit(peer, 2, group="other")
    for desk_ in (again.crash(), again.restart()):
        assert committed(desk_.client()) == [("g", 0), ("g", 1), ("other", 2)]


def test_a_commit_that_could_not_be_journalled_gives_none(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    ask = wire.pack(ordered.Commit(group="g", offsets=[("s", 0, 0, "")]))
    # Killed within the turn: neither journalled nor captured.
    desk.handlers[Op.S_COMMIT](peer, 99, memoryview(ask))
    assert committed(desk.crash().client()) == []


def test_events_that_retention_removed_are_not_written_again(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    commit(peer, 1)
    desk.after(8 * 86_400_000)
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="$cdc")))
    peer.publish("s", b"c")
    assert [event["offset"] for event in newest(peer)] == [2]
    assert [event["offset"] for event in newest(desk.restart().client())] == [2]


def newest(peer: Peer) -> list[dict[str, Any]]:
    start = peer.describe("$cdc").partitions[0].start_offset
    return [msgspec.json.decode(value or b"") for value in peer.read("$cdc", start)]


def test_consumers_of_the_system_stream_are_woken(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("$cdc", "audit")
    poll = consumer.poll()
    peer.publish("s", b"a")
    assert len(consumer.opened(peer.replies[poll])) == 1


def test_only_the_broker_writes_to_the_system_stream(desk: Desk) -> None:
    peer = desk.client()
    with pytest.raises(Forbidden):
        peer.publish("$cdc", b"forged")
    with pytest.raises(Forbidden):
        peer.ask(Op.S_DELETE, pack_str("$cdc"))


def test_it_is_off_by_default() -> None:
    peer = Desk().client()
    peer.make("s")
    peer.publish("s", b"a")
    with pytest.raises(NotFound):
        peer.read("$cdc")
