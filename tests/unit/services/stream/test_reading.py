"""What one read, and many unread ones, may take is bounded (G6)."""

from __future__ import annotations

import pytest

from nexo.batch import entries
from nexo.errors import InvalidInput
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Desk, Peer

BIG = 4_000
LIMIT = 10_000


@pytest.fixture
def peer() -> Peer:
    peer = Desk().client()
    peer.make("s", partitions=8)
    for partition in range(8):
        peer.publish("s", bytes(BIG), partition=partition)
    return peer


def read_many(
    peer: Peer, places: list[tuple[str, int, int]], limit: int = LIMIT, wait_ms: int = 0
) -> tuple[wire.ReadManyReply, list[memoryview]]:
    reply = peer.ask(Op.S_READ_MANY, wire.pack(wire.ReadMany(places, limit, wait_ms)))
    head, rest = wire.unpack_headed(wire.ReadManyReply, reply)
    return head, list(entries(rest))


def test_many_places_share_the_limit_however_large_their_batches_are(peer: Peer) -> None:
    head, batches = read_many(peer, [("s", 0, 0)] * 500)
    assert sum(map(len, batches)) <= LIMIT
    assert len(head.heads) == 500
    assert len(head.batches) == len(batches) == 2


def test_a_place_that_got_nothing_is_read_on_from_where_it_was(peer: Peer) -> None:
    head, _ = read_many(peer, [("s", partition, 0) for partition in range(8)])
    for number, (_, stable, following) in enumerate(head.heads):
        assert stable == 1
        assert following == (1 if number in head.batches else 0)


def test_all_places_get_their_turn(peer: Peer) -> None:
    at = dict.fromkeys(range(8), 0)
    for _ in range(8):
        head, _ = read_many(peer, [("s", partition, at[partition]) for partition in at])
        at = {number: row[2] for number, row in enumerate(head.heads)}
        for partition in range(2):  # two busy ones must not keep the others waiting
            peer.publish("s", bytes(BIG), partition=partition)
    assert all(offset >= 1 for offset in at.values())


def test_the_first_batch_comes_even_if_it_is_over_the_limit(peer: Peer) -> None:
    _, batches = read_many(peer, [("s", 0, 0), ("s", 1, 0)], limit=10)
    assert len(batches) == 1


def test_too_many_places_or_none_are_refused(peer: Peer) -> None:
    for places in ([], [("s", 0, 0)] * 10_001):
        with pytest.raises(InvalidInput, match="partitions to read"):
            read_many(peer, places)


def test_long_polls_of_a_client_that_does_not_read_wait_until_it_does() -> None:
    desk = Desk()
    peer, writer = desk.client(), desk.client()
    writer.make("s")
    ask = wire.pack(wire.Read("s", 0, 0, LIMIT, 60_000))
    first, *others = [peer.send(Op.S_READ, ask) for _ in range(5)]
    peer.congested = True
    desk.service.connection_congested(peer)
    writer.publish("s", bytes(BIG))
    assert first not in peer.replies
    peer.congested = False
    desk.service.connection_drained(peer)
    assert all(len(peer.replies[each]) > BIG for each in (first, *others))


def test_such_a_poll_ends_with_nothing_at_its_deadline() -> None:
    desk = Desk()
    peer, writer = desk.client(), desk.client()
    writer.make("s")
    waiting = peer.send(Op.S_READ, wire.pack(wire.Read("s", 0, 0, LIMIT, 1_000)))
    peer.congested = True
    desk.service.connection_congested(peer)
    writer.publish("s", bytes(BIG))
    desk.runtime.time.now += 1_000
    desk.service.tick(desk.runtime.time.now)
    head, rest = wire.unpack_headed(wire.ReadReply, peer.replies[waiting])
    assert (head.next_offset, bytes(rest)) == (0, b"")
