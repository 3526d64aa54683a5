"""A message deleted by itself stays deleted (F4, SPEC J2)."""

from __future__ import annotations

import pytest

from nexo.errors import InvalidInput
from nexo.protocol import xstreams as wire
from nexo.protocol.messages import pack, pack_headed, unpack
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Desk, Peer


def add(peer: Peer, value: bytes) -> tuple[int, int]:
    request = pack_headed(wire.Add(stream="s", max_length=100)) + b"\x00" + value
    return unpack(tuple[int, int], peer.ask(Op.S_X_ADD, request))


def delete(peer: Peer, *ids: tuple[int, int]) -> int:
    return unpack(int, peer.ask(Op.S_X_DELETE, pack(wire.Ids(stream="s", group="", ids=list(ids)))))


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    peer = desk.client()
    ids = [add(peer, value) for value in (b"a", b"b", b"c", b"d")]
    desk.runtime.slow_disk = True
    assert delete(peer, ids[1], ids[2]) == 2
    return desk


def test_after_kill_9(desk: Desk) -> None:
    assert desk.client().read("s") == [b"a", b"d"]
    again = Desk(desk.files)
    assert again.client().read("s") == [b"a", b"d"]
    assert again.client().publish("s", b"e") == [(0, 4, 1)]
    assert Desk(desk.files).client().read("s") == [b"a", b"d", b"e"]


def test_after_a_snapshot_without_a_checkpoint_of_the_log(desk: Desk) -> None:
    desk.service.core._save(synced=False)
    again = Desk(desk.files)
    again.service.core._save(synced=False)  # of a stream that was not used since the start
    assert Desk(desk.files).client().read("s") == [b"a", b"d"]


def test_after_a_stop(desk: Desk) -> None:
    desk.service.close()
    assert Desk(desk.files).client().read("s") == [b"a", b"d"]


def test_what_was_published_together_cannot_be_deleted_singly() -> None:
    peer = Desk().client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    with pytest.raises(InvalidInput, match="together"):
        delete(peer, (1_000_000, 1))
    assert peer.read("s") == [b"a", b"b"]
