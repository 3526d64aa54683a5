"""A stream may be created by the first record published to it, as a setting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexo.errors import DiskFull, InvalidName, NexoError, NotFound, OutcomeUnknown, Unavailable
from nexo.model import Persistence
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head
from tests.unit.brokers.stream.desk import Desk


def test_it_is_off_unless_asked_for() -> None:
    with pytest.raises(NotFound):
        Desk().client().publish("s", b"a")


def test_the_first_record_creates_the_stream_and_both_survive_a_kill() -> None:
    desk = Desk(auto_create_streams=True)
    assert desk.client().publish("s", b"a", partition=-1) == [(0, 0, 1)]
    desk.client().publish("s", b"b")
    assert Desk(desk.files).client().read("s") == [b"a", b"b"]


def test_a_bad_name_or_a_full_disk_creates_nothing() -> None:
    desk = Desk(auto_create_streams=True)
    peer = desk.client()
    with pytest.raises(InvalidName):
        peer.publish("../s", b"a")
    desk.runtime.refuses = DiskFull("full")
    with pytest.raises(DiskFull):
        peer.publish("s", b"a")
    desk.runtime.refuses = None
    with pytest.raises(NotFound):
        peer.describe("s")


def test_a_publish_pipelined_after_its_create_waits_for_the_journal() -> None:  # SPEC E3
    desk = Desk()
    peer = desk.client()
    make = wire.pack(wire.Make(stream="s", options={}))
    desk.handlers[Op.S_MAKE](peer, 1, memoryview(make))
    desk.handlers[Op.S_ADD](peer, 2, memoryview(publish_head("s", 0) + b"\0a"))
    assert peer.replies == {}
    desk.runtime.end_turn()
    assert peer.replies.keys() == {1, 2}
    assert Desk(desk.files).client().read("s") == [b"a"]


def test_reading_creates_nothing() -> None:
    with pytest.raises(NotFound):
        Desk(auto_create_streams=True).client().read("s")


def test_a_new_stream_is_shipped_before_its_first_offset_is_told() -> None:  # SPEC N2
    desk = Desk()
    desk.runtime.unique = Persistence.REPLICATED
    modes: list[Persistence] = []
    committed = desk.runtime.committed

    def noted(mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        modes.append(mode)
        committed(mode, callback)

    desk.runtime.committed = noted  # type: ignore[method-assign]
    peer = desk.client()
    peer.make("s", persistence="file_async")
    desk.runtime.slow_disk = True
    modes.clear()
    for _ in range(2):
        peer.publish("s", b"1")
    desk.runtime.sync()
    peer.publish("s", b"2")
    assert modes == [Persistence.REPLICATED, Persistence.REPLICATED, Persistence.FILE_ASYNC]


@pytest.mark.parametrize(
    ("persistence", "expected"),
    [("file_async", OutcomeUnknown), ("file_sync", OutcomeUnknown), ("replicated", Unavailable)],
)
@pytest.mark.parametrize("single", [True, False])
def test_a_first_record_that_the_store_does_not_confirm_is_not_refused(
    persistence: str, expected: type[NexoError], single: bool
) -> None:  # SPEC N2
    desk = Desk(replicate="file:///bucket")
    desk.runtime.unique = Persistence.REPLICATED
    peer = desk.client()
    peer.make("s", persistence=persistence)
    committed = desk.runtime.committed

    def unconfirmed(mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        if mode is Persistence.REPLICATED:
            callback(Unavailable("the object store does not answer"))
        else:
            committed(mode, callback)

    desk.runtime.committed = unconfirmed  # type: ignore[method-assign]
    if single:
        desk.handlers[Op.S_ADD](peer, 9, memoryview(publish_head("s", 0) + b"\0a"))
        desk.runtime.end_turn()
        assert type(peer.replies[9]) is expected
    else:
        with pytest.raises(expected) as raised:
            peer.publish("s", b"a")
        assert raised.type is expected
