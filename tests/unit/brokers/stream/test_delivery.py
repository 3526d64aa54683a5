"""The log's front moves into a batch: what was decided about the batch holds for its rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexo.batch import decode, entries
from nexo.protocol import xstreams
from nexo.protocol.messages import pack, unpack_headed
from nexo.protocol.ops import Op
from nexo.protocol.stream import StateAsk, StateReply, TieredTo
from nexo.protocol.stream_publishing import publish_head
from nexo.services.connection import Done
from nexo.services.stream.replay import Portion, StreamPosition
from nexo.storage.header import Flags, parse, stamp
from tests.unit.brokers.stream.cleanup.test_compaction import compact, get
from tests.unit.brokers.stream.desk import Desk, Peer
from tests.unit.brokers.stream.test_transactions import Tx
from tests.unit.services.stream.groups.test_xgroups import Client

ALWAYS = ((0, 0), (2**64 - 1, 2**64 - 1))


def drop_before(desk: Desk, offset: int) -> None:
    """What Kafka's DeleteRecords does."""
    assert desk.service.admin.drop_before(desk.client(), "s", 0, offset) == offset
    desk.runtime.end_turn()


def batch(peer: Peer, count: int, *, commit: bool, key: bytes | None = None) -> None:
    """A batch in a transaction, which ends at once."""
    tx, keys = Tx(peer), [key] * count
    payload = peer.batch(*[b"tx"] * count, keys=keys if key else None, flags=Flags.TRANSACTIONAL)
    peer.ask(Op.S_TX_PUBLISH, tx.id.to_bytes(8, "big") + publish_head("s", 0) + payload)
    (tx.commit if commit else tx.abort)()


def seen(desk: Desk) -> dict[str, list[int]]:
    """The offsets that each kind of reader gets."""
    peer, name = desk.client(), f"g{desk.client().id}"
    client = Client(desk)
    client.group()
    return {
        "read": [row.offset for row in peer.rows("s", 2)],
        "shared group": [got.offset for got in peer.join("s", name).take()],
        "xstreams range": client.range(*ALWAYS),
        "xstreams group": [offset for offset, _, _ in client.read()],
    }


def saved(desk: Desk) -> Desk:
    """Killed just after a snapshot that has no checkpoint of the log."""
    desk.service.core._save(synced=False)
    return desk.crash()


AGAIN = pytest.mark.parametrize(
    "again",
    [lambda desk: desk, Desk.crash, Desk.restart, saved],
    ids=["now", "kill", "stop", "save"],
)


@AGAIN
@pytest.mark.parametrize("commit", [False, True])
def test_the_rest_of_a_batch_shares_its_fate(again: Callable[[Desk], Desk], commit: bool) -> None:
    """SPEC H1, L4: hidden if it was rolled back, and there if it was committed."""
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    batch(peer, 4, commit=commit)
    peer.publish("s", b"after")
    drop_before(desk, 2)
    found = seen(again(desk))
    assert found == dict.fromkeys(found, [2, 3, 4] if commit else [4])


@AGAIN
def test_the_front_moves_on_within_a_batch(again: Callable[[Desk], Desk]) -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    batch(peer, 9, commit=False)
    batch(peer, 3, commit=True)
    for offset in (2, 5, 8, 10):
        drop_before(desk, offset)
        desk = again(desk)
        assert [row.offset for row in desk.client().rows("s", offset)] == [
            each for each in (9, 10, 11) if each >= offset
        ]


@AGAIN
def test_trimming_into_a_committed_batch_keeps_its_rest(again: Callable[[Desk], Desk]) -> None:
    """SPEC J2."""
    desk = Desk()
    desk.client().make("s")
    batch(desk.client(), 4, commit=True)
    desk.client().publish("s", b"after")
    assert desk.client().call(Op.S_X_TRIM, xstreams.Trim("s", 3), int) == 2
    assert Client(again(desk)).range(*ALWAYS) == [2, 3, 4]


@AGAIN
def test_the_rest_of_a_batch_has_no_newest_record(again: Callable[[Desk], Desk]) -> None:
    """SPEC I1, L4."""
    desk = Desk()
    desk.client().make("s", cleanup="compact")
    batch(desk.client(), 4, commit=False, key=b"k")
    drop_before(desk, 2)
    assert get(again(desk).client(), b"k") is None


@AGAIN
def test_dropped_records_are_not_part_of_the_current_state(again: Callable[[Desk], Desk]) -> None:
    """SPEC G2: they share a batch with some that are."""
    desk = Desk()
    desk.client().make("s", cleanup="compact")
    desk.client().publish("s", b"0", b"1", b"2", b"3", keys=[b"a", b"b", b"c", b"d"])
    drop_before(desk, 2)
    peer = again(desk).client()
    assert [get(peer, key) for key in (b"a", b"b", b"c", b"d")] == [None, None, b"2", b"3"]
    _, rest = unpack_headed(StateReply, peer.ask(Op.S_STATE, pack(StateAsk(stream="s"))))
    assert [row.key for entry in entries(rest) for row in decode(entry).records()] == [b"c", b"d"]


def test_compaction_removes_the_rest_of_a_batch() -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s", cleanup="compact")
    batch(peer, 4, commit=False)
    peer.publish("s", b"after")
    drop_before(desk, 2)
    assert compact(peer) > 0
    log = desk.service.core.engine.streams.get("s").partition(0).log
    assert [parse(entry).base_offset for entry in log.entries(2)] == [4]


class Merged:
    """A lake that holds messages in other batches than the log; it answers at once."""

    def __init__(self, *entries: bytes) -> None:
        self.entries = list(entries)
        self.next_offset = parse(entries[-1]).next_offset

    def reachable(self) -> bool:
        return True

    def read(self, place: StreamPosition, max_bytes: int, done: Done[Portion]) -> None:
        done(self)


@pytest.mark.parametrize("deleted", [4, 5, 9])
def test_a_deleted_message_hides_no_other_that_the_lake_has_beside_it(deleted: int) -> None:
    """SPEC I3, J2: the front of the log lies within what the lake returns."""
    desk = Desk(hot_ms=0, hot_messages=0)
    client = Client(desk)
    client.peer.make("s", tiering=True)
    ids = [client.add(b"x") for _ in range(10)]
    later = bytearray(client.peer.batch(*[b"x"] * 5))
    stamp(later, 5)
    desk.service.core.replay.tier = Merged(client.peer.batch(*[b"x"] * 5), bytes(later))
    client.peer.ask(Op.S_TIERED, pack(TieredTo(stream="s", partition=0, offset=10)))
    drop_before(desk, 3)
    assert client.ids(Op.S_X_DELETE, ids[deleted]) == 1
    group = client.peer.join("s", "g", start="beginning")
    found = {got.offset for _ in range(3) for got in group.take()}
    assert found == {*range(10)} - {deleted}
