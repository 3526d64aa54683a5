"""Single records of one turn: one batch per partition, one answer each (SPEC A3, E2, E7)."""

from __future__ import annotations

import errno

import pytest

from nexo.batch import decode
from nexo.errors import DiskFull, InvalidInput, NexoError, NotFound, PayloadTooLarge
from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head, read_places
from nexo.services.stream import gathering
from tests.faulty_files import FaultyFiles
from tests.unit.brokers.stream.desk import Desk, Peer

START = 1_000_000


def add(peer: Peer, number: int, value: bytes, stream: str = "s", partition: int = -1) -> None:
    """Publish one record within the current turn, as request ``number``."""
    payload = memoryview(publish_head(stream, partition) + b"\0" + value)
    try:
        peer._desk.handlers[Op.S_ADD](peer, number, payload)
    except NexoError as error:
        peer.replies[number] = error


def places(peer: Peer, *numbers: int) -> list[tuple[int, int, int]]:
    return [place for number in numbers for place in read_places(peer.replies[number])]


def sizes(desk: Desk, partition: int = 0) -> list[int]:
    """How many records each entry of the log has."""
    log = desk.service.core.engine.streams.get("s").partition(partition).log
    return [len(decode(entry)) for entry in log.entries()]


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.client().make("s")
    return made


def test_records_of_all_connections_are_one_batch_in_the_order_they_came(desk: Desk) -> None:
    a, b = desk.client(), desk.client()
    add(a, 1, b"a1")
    add(b, 1, b"b1")
    add(a, 2, b"a2")
    assert not a.replies
    assert sizes(desk) == []
    desk.runtime.end_turn()
    assert places(a, 1, 2) == [(0, 0, 1), (0, 2, 1)]
    assert places(b, 1) == [(0, 1, 1)]
    assert sizes(desk) == [3]
    assert a.read("s") == [b"a1", b"b1", b"a2"]


def test_a_request_comes_after_the_records_that_its_connection_published_before(
    desk: Desk,
) -> None:
    peer = desk.client()
    add(peer, 100, b"single")
    assert peer.publish("s", b"batch") == [(0, 1, 1)]
    add(peer, 101, b"again")
    assert peer.read("s") == [b"single", b"batch", b"again"]


def test_the_existing_client_is_answered_alike(desk: Desk) -> None:
    classic = desk.client(coded=False)
    for number in (1, 2):
        payload = memoryview(pack_str("s") + b"\x02{}")
        desk.handlers[Op.S_PUB](classic, number, payload)
    desk.runtime.end_turn()
    assert [classic.replies[number] for number in (1, 2)] == [
        (1).to_bytes(8, "big"),
        (2).to_bytes(8, "big"),
    ]


def test_a_record_that_is_refused_leaves_the_others(desk: Desk) -> None:
    peer = desk.client()
    peer.make("small", max_message_bytes=10)
    add(peer, 100, b"x", "small")
    add(peer, 101, b"x" * 11, "small")
    add(peer, 102, b"y", "small", partition=7)
    add(peer, 103, b"z", "small")
    desk.runtime.end_turn()
    assert places(peer, 100, 103) == [(0, 0, 1), (0, 1, 1)]
    assert isinstance(peer.replies[101], PayloadTooLarge)
    assert isinstance(peer.replies[102], InvalidInput)


def test_each_partition_has_its_batch_and_types_may_differ() -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s", partitions=2)
    for number in range(4):
        add(peer, 100 + number, b"%d" % number)
    payload = memoryview(publish_head("s", 0) + b"\x01text")
    desk.handlers[Op.S_ADD](peer, 110, payload)
    desk.runtime.end_turn()
    assert sorted(sizes(desk, 0) + sizes(desk, 1)) == [2, 3]
    found = {row.value: row.value_type for part in (0, 1) for row in peer.rows("s", 0, part)}
    assert found == {b"0": 0, b"1": 0, b"2": 0, b"3": 0, b"text": 1}


def test_a_disk_that_refuses_the_batch_is_reported_to_each_publisher() -> None:
    files = FaultyFiles()
    desk = Desk(files)
    a, b = desk.client(), desk.client()
    a.make("s")
    add(a, 100, b"first")
    desk.runtime.end_turn()
    add(a, 101, b"lost")
    add(b, 101, b"lost too")
    files.fail_call, files.fail_errno = files.calls + 1, errno.ENOSPC
    desk.runtime.end_turn()
    assert isinstance(a.replies[101], DiskFull)
    assert isinstance(b.replies[101], DiskFull)
    add(b, 102, b"second")
    desk.runtime.end_turn()
    assert places(b, 102) == [(0, 1, 1)]
    assert a.read("s") == [b"first", b"second"]


def test_a_stream_that_is_deleted_within_the_turn_takes_no_records(desk: Desk) -> None:
    peer = desk.client()
    add(peer, 100, b"x")
    desk.service.core.delete("s", lambda _: None)
    desk.runtime.end_turn()
    assert isinstance(peer.replies[100], NotFound)


def test_records_are_durable_before_they_are_answered_and_seen() -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s", persistence="file_sync")
    desk.runtime.slow_disk = True
    for number in (100, 101):
        add(peer, number, b"x")
    desk.runtime.end_turn()
    assert 100 not in peer.replies
    assert peer.read("s") == []
    assert len(desk.runtime.unsynced) <= 2  # one for both, one for the grant of offsets
    desk.runtime.sync()
    assert places(peer, 100, 101) == [(0, 0, 1), (0, 1, 1)]
    assert desk.crash().client().read("s") == [b"x", b"x"]


def test_a_batch_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_RECORDS", 3)
    peer = desk.client()
    for number in range(7):
        add(peer, 100 + number, b"x")
    assert sizes(desk) == [3, 3]
    desk.runtime.end_turn()
    assert sizes(desk) == [3, 3, 1]
    assert places(peer, *range(100, 107)) == [(0, offset, 1) for offset in range(7)]


def test_a_consumer_that_waits_is_woken_by_the_batch(desk: Desk) -> None:
    peer = desk.client()
    consumer = desk.client().join("s", "g")
    waits = consumer.poll()
    add(peer, 100, b"x")
    desk.runtime.end_turn()
    assert [got.value for got in consumer.opened(consumer.peer.replies[waits])] == [b"x"]


def test_what_comes_from_an_engine_that_fails_unexpectedly_is_answered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake in the code")

    monkeypatch.setattr(type(desk.service.core.engine), "publish_plain", broken)
    peer = desk.client()
    add(peer, 100, b"x")
    desk.runtime.end_turn()
    assert isinstance(peer.replies[100], NexoError)
    monkeypatch.undo()
    assert peer.call(Op.S_DESCRIBE, wire.StreamName(stream="s"), wire.StreamInfo)
