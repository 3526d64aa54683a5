"""What a batch may do to the broker, to readers and to the lake is bounded where it enters."""

from __future__ import annotations

import tracemalloc
from functools import cache
from time import process_time

import pytest

from nexo.batch import Column, Compression, encode
from nexo.batch.columns import int32s, int64s
from nexo.batch.compression import compress
from nexo.errors import InvalidInput, PayloadTooLarge
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head
from nexo.storage.header import seal
from tests.unit.brokers.stream.desk import Desk, Peer, joined

NOW = 1_000_000


@pytest.fixture
def peer() -> Peer:
    peer = Desk().client()
    peer.make("s")
    return peer


def send(peer: Peer, entry: bytes, op: Op = Op.S_PUBLISH) -> None:
    peer.ask(op, publish_head("s", 0) + entry)


@cache
def zeros(size: int) -> list[bytes]:
    return compress(Compression.GZIP, bytes(size))


def bomb(count: int, size: int) -> bytes:
    """A small batch that unpacks to ``size`` bytes of ``count`` empty records."""
    body = zeros(size)
    head = seal(body, count=count, first_ms=NOW, last_ms=NOW, flags=int(Compression.GZIP))
    return bytes(head) + b"".join(body)


@pytest.mark.parametrize("op", [Op.S_PUBLISH, Op.S_PUBLISH_EACH])
@pytest.mark.parametrize("count", [1, 900_000, (80 << 20) // 4 - 2])
def test_a_batch_that_unpacks_to_too_much_is_refused_cheaply(
    peer: Peer, op: Op, count: int
) -> None:
    """G5: 261 KB took 13 s and 3.4 GB."""
    entry = bomb(count, 80 << 20)
    tracemalloc.start()
    began_s = process_time()
    with pytest.raises(PayloadTooLarge):
        send(peer, entry, op)
    assert process_time() - began_s < 1
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert peer.read("s") == []


def test_a_batch_of_too_many_records_is_refused(peer: Peer) -> None:
    with pytest.raises(PayloadTooLarge, match="records"):
        send(peer, bomb(2_000_000, 8_000_008))


@pytest.mark.parametrize("value_type", [3, 4, 255, 256, 65_535])
def test_an_unknown_type_of_value_is_refused(peer: Peer, value_type: int) -> None:
    """G13: one stopped the tiering of its stream."""
    body = [joined(encode([b"a"], 0, NOW))[64:]]
    head = seal(body, count=1, first_ms=NOW, last_ms=NOW, value_type=value_type)
    with pytest.raises(InvalidInput, match="type"):
        send(peer, bytes(head) + b"".join(body))


def test_an_unknown_type_among_several_is_refused(peer: Peer) -> None:
    with pytest.raises(InvalidInput, match="type"):
        send(peer, joined(encode([b"a", b"b"], [0, 77], NOW)))
    send(peer, joined(encode([b"a", b"b", b"c"], [0, 1, 2], NOW)))
    assert peer.read("s") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("stamps", [(NOW, 2**62), (-(2**62), NOW), (2**62, 2**62)])
def test_times_that_the_header_hides_are_brought_within_bounds(
    peer: Peer, stamps: tuple[int, int]
) -> None:
    """G13: one timestamp of 2^62 stopped the tiering of its stream."""
    body = [int64s(stamps), int32s([0, 1, 2]), bytes(4), b"ab", bytes(6)]
    head = seal(body, count=2, first_ms=NOW, last_ms=NOW, columns=int(Column.TIMESTAMPS))
    send(peer, bytes(head) + b"".join(body))
    found = peer.rows("s")
    assert [row.value for row in found] == [b"a", b"b"]
    assert all(0 <= row.timestamp_ms <= NOW + 60_000 for row in found)
