"""Damaged records: reported with their offset, set aside, and no others with them (SPEC E6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.errors import Corrupt
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Consumer, Desk


def damage(desk: Desk, content: bytes, stream: str = "s~1") -> None:
    """Flip a bit of a stored value."""
    folder = Path(f"/stream/streams/{stream}/0")
    name = next(n for n in desk.files.list(folder) if n.endswith(".log"))
    file = desk.files.open(folder / name)
    at = file.read_at(0, file.size()).index(content)
    file.write_at(at, [bytes([content[0] ^ 1])])


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    for value in (b"first value", b"second value", b"third value"):
        peer.publish("s", value)
    damage(desk, b"second value")
    return desk.crash()


def test_readers_get_what_lies_before_and_are_told_where_the_damage_is(desk: Desk) -> None:
    peer = desk.client()
    assert peer.read("s") == [b"first value"]
    with pytest.raises(Corrupt, match="1"):
        peer.read("s", 1)
    assert peer.read("s", 2) == [b"third value"]


def test_a_group_goes_on_and_the_damaged_record_is_parked(desk: Desk) -> None:
    peer = desk.client()
    consumer = peer.join("s", "g", options={"max_deliveries": 2})
    assert [got.value for got in consumer.take()] == [b"first value"]
    with pytest.raises(Corrupt):
        consumer.take()
    assert [got.value for got in consumer.take()] == [b"third value"]
    consumer.settle("ack", 0, 2)
    desk.after(60_000)
    assert consumer.take() == []
    assert _parked(consumer) == [(1, 2)]
    assert peer.group("s", "g").lag == 0


def test_a_damaged_batch_is_reported_to_a_group_once_however_large(desk: Desk) -> None:
    peer = desk.client()
    peer.make("t", partitions=2)
    for partition in (0, 1):
        peer.publish("t", *(b"old %d" % i for i in range(50)), partition=partition)
        peer.publish("t", *(b"value %02d" % i for i in range(50)), partition=partition)
        peer.publish("t", *(b"new %d" % i for i in range(50)), partition=partition)
    damage(desk, b"value 07", "t~2")
    consumer = desk.crash().client().join("t", "g")
    found, errors = [], 0
    for _ in range(80):
        try:
            got = consumer.take(7)
        except Corrupt:
            errors += 1
            continue
        for each in got:
            consumer.settle("ack", each.offset, partition=each.partition)
        found += [(each.partition, each.offset) for each in got]
    lost = {(0, offset) for offset in range(50, 100)}
    assert errors == 1
    assert set(found) == {(p, offset) for p in (0, 1) for offset in range(150)} - lost
    status = consumer.peer.group("t", "g")
    assert (status.lag, [each.parked for each in status.partitions]) == (0, [50, 0])


def test_parked_damage_survives_and_what_was_acked_of_it_is_not_parked(desk: Desk) -> None:
    peer = desk.client()
    peer.make("t")
    peer.publish("t", *(b"value %02d" % i for i in range(50)))
    consumer = peer.join("t", "g")
    consumer.take(10)
    consumer.settle("ack", 0, 1, 5)
    damage(desk, b"value 07", "t~2")
    desk = desk.crash()
    consumer = desk.client().join("t", "g")
    with pytest.raises(Corrupt):
        consumer.take(3)
    assert consumer.take(3) == []
    consumer = desk.crash().client().join("t", "g")
    assert consumer.take(3) == []
    assert consumer.peer.group("t", "g").partitions[0].parked == 47


def _parked(consumer: Consumer) -> list[tuple[int, int]]:
    info = consumer.peer.group("s", "g")
    assert info.partitions[0].parked == 1
    ask = wire.pack(wire.ListParked(stream="s", group="g"))
    head, _ = wire.unpack_headed(wire.ParkedList, consumer.peer.ask(Op.S_PARKED, ask))
    return [(row.first, row.end) for row in head.rows]


def test_writing_goes_on_and_survives(desk: Desk) -> None:
    assert desk.client().publish("s", b"fourth") == [(0, 3, 1)]
    assert desk.crash().client().read("s", 2) == [b"third value", b"fourth"]


def test_other_keys_are_found_and_compaction_loses_nothing() -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s", cleanup="compact")
    for key, value in ((b"a", b"first value"), (b"b", b"second value"), (b"a", b"third value")):
        peer.publish("s", value, keys=[key])
    damage(desk, b"second value")
    peer = desk.crash().client()
    assert peer.ask(Op.S_GET, wire.pack(wire.Get(stream="s", key=b"a"))) is not None
    assert peer.call(Op.S_COMPACT, wire.StreamName(stream="s"), int) == 0
    assert peer.read("s") == [b"first value"]
    with pytest.raises(Corrupt, match="1"):
        peer.read("s", 1)
    assert peer.read("s", 2) == [b"third value"]


def test_a_group_ordered_by_key_goes_on_too() -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    for value in (b"first value", b"second value", b"third value"):
        peer.publish("s", value, keys=[b"k"])
    damage(desk, b"second value")
    consumer = (
        desk.crash().client().join("s", "g", options={"ordered_by": "key", "max_deliveries": 1})
    )
    assert [got.value for got in consumer.take()] == [b"first value"]
    with pytest.raises(Corrupt, match="1"):
        consumer.take()
    consumer.settle("ack", 0)
    assert [got.value for got in consumer.take()] == [b"third value"]
    assert _parked(consumer) == [(1, 2)]
