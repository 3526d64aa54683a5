"""Power loss takes unsynced records of ``file_async``, but no offset is told twice (SPEC E2)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from nexo.errors import Corrupt, NexoError
from nexo.model import Persistence
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxBegin, publish_head, read_places
from nexo.storage.header import Flags
from tests.crash.test_stream_power_loss import SyncingDesk, SyncingRuntime
from tests.faulty_files import FaultyFiles, PowerLoss
from tests.unit.brokers.stream.desk import Desk, Got, Peer

CHAINS = 24
LOSSES = 4
"""Power losses in a row, each while the broker recovers or works."""
LARGE = 9_000


class LateRuntime(SyncingRuntime):
    """Syncs only when the test says so; who asked for one waits until then."""

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        if mode is Persistence.FILE_SYNC:
            self.unsynced.append(callback)
        else:
            callback(None)


class LateDesk(Desk):
    runtime_type = LateRuntime


class World:
    """What producers and readers remember: whose offset it is, by the record's number."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.known: dict[int, int] = {}
        self._records = count()
        self._asked: dict[int, tuple[int, int]] = {}

    def work(self, files: FaultyFiles) -> None:
        """Publish in many ways; sync now and then; sometimes stop in good order."""
        desk = LateDesk(files)
        peer = desk.client()
        self._asked.clear()
        for _ in range(self.random.randint(1, 15)):
            match self.random.choice(("one", "one", "many", "transaction", "read", "sync", "stop")):
                case "one":
                    self.publish(peer, 1)
                case "many":
                    self.publish(peer, LARGE)
                case "transaction":
                    self.transact(peer)
                case "read":
                    self.read(peer)
                case "sync":
                    desk.runtime.sync()
                case "stop":
                    desk.runtime.sync()
                    self.listen(peer)
                    desk.service.close()
                    desk = LateDesk(files)
                    peer = desk.client()
                    self._asked.clear()
            self.listen(peer)

    def publish(self, peer: Peer, records: int, transaction: bytes = b"") -> None:
        numbers = [next(self._records) for _ in range(records)]
        flags = Flags.TRANSACTIONAL if transaction else Flags(0)
        batch = peer.batch(*(b"%d" % number for number in numbers), flags=flags)
        op = Op.S_TX_PUBLISH if transaction else Op.S_PUBLISH
        request = peer.send(op, transaction + publish_head("s", 0) + batch)
        self._asked[request] = numbers[0], records

    def transact(self, peer: Peer) -> None:
        number = peer.call(Op.S_TX_BEGIN, TxBegin(), int)
        self.publish(peer, 1, number.to_bytes(8, "big"))
        peer.send(Op.S_TX_COMMIT, wire.pack(number))

    def listen(self, peer: Peer) -> None:
        """Take in what publishers were told by now."""
        for request in [request for request in self._asked if request in peer.replies]:
            first, records = self._asked.pop(request)
            [(_, offset, _)] = read_places(peer.replies[request])
            for n in range(records):
                self.note(offset + n, first + n)

    def read(self, peer: Peer) -> None:
        consumer = peer.join("s", f"g{self.random.randint(0, 1)}")
        with contextlib.suppress(Corrupt):  # a hole in what was not synced is reported
            for got in consumer.take(10_000):
                self.note(got.offset, int(got.value or b""))

    def note(self, offset: int, record: int) -> None:
        known = self.known.setdefault(offset, record)
        assert known == record, f"offset {offset} was given to records {known} and {record}"


@pytest.mark.parametrize("seed", range(CHAINS))
def test_no_offset_is_told_twice_whenever_power_is_lost(seed: int) -> None:
    world, files = World(seed), FaultyFiles()
    desk = SyncingDesk(files)
    desk.client().make("s")
    desk.runtime.sync()  # else the stream itself may be lost, and another one be made
    for loss in range(LOSSES):
        files.lose_power_at = files.calls + world.random.randint(1, 60)
        with contextlib.suppress(PowerLoss):
            world.work(files)
        files = files.crash(100 * seed + loss)
    world.work(files)
    assert world.known


def lost(records: int = 3) -> tuple[Desk, int]:
    """A broker that lost unsynced records of a stream to a power loss, and their number."""
    files = FaultyFiles()
    desk = SyncingDesk(files)
    peer = desk.client()
    peer.make("s", cleanup="compact")
    peer.join("s", "g")
    peer.publish("s", b"kept", keys=[b"k"])
    desk.runtime.sync()
    peer.publish("s", *[b"lost"] * records)
    after = next(
        crashed
        for crashed in map(files.crash, range(100))
        if SyncingDesk(crashed.crash(0)).client().read("s") == [b"kept"]
    )
    return SyncingDesk(after), records


def test_numbering_goes_on_behind_all_that_was_told() -> None:
    desk, records = lost()
    [(_, offset, _)] = desk.client().publish("s", b"new", keys=[b"k"])
    assert offset > records
    again = desk.crash().client()
    assert again.publish("s", b"newer", keys=[b"k"]) == [(0, offset + 1, 1)], "killed, not lost"


def test_readers_groups_and_compaction_step_over_the_gap() -> None:
    desk, _ = lost()
    peer = desk.client()
    [(_, offset, _)] = peer.publish("s", b"new", keys=[b"k"])
    assert peer.read("s") == [b"kept", b"new"]
    assert peer.group("s", "g").lag == 2, "the gap is nobody's work"
    old, new = peer.join("s", "g"), peer.join("s", "fresh")
    for consumer in (old, new):
        assert consumer.take() == [Got(0, 0, b"kept", 1), Got(0, offset, b"new", 1)]
        consumer.settle("ack", 0, offset)
    assert peer.group("s", "g").lag == peer.group("s", "fresh").lag == 0
    assert peer.call(Op.S_COMPACT, wire.StreamName(stream="s"), int) > 0
    assert peer.read("s") == [b"new"]
    assert desk.crash().client().publish("s", b"newer") == [(0, offset + 1, 1)]


def test_ordered_groups_step_over_the_gap() -> None:
    desk, _ = lost()
    peer = desk.client()
    join = ordered.OrderedJoin(group="o", topics=["s"])
    me = peer.call(Op.S_ORDERED_JOIN, join, ordered.Assigned)
    commit = ordered.Commit(
        group="o", member=me.member, generation=me.generation, offsets=[("s", 0, 0, "")]
    )
    peer.ask(Op.S_COMMIT, wire.pack(commit))
    [info] = peer.call(
        Op.S_ORDERED_GROUPS, ordered.OrderedAsk(group="o"), list[ordered.OrderedInfo]
    )
    assert info.lag == 0, "the gap is nobody's work"
    peer.publish("s", b"new")
    assert peer.read("s", 1) == [b"new"]


def test_after_a_kill_or_a_good_end_numbers_are_dense() -> None:  # SPEC E2
    files = FaultyFiles()
    desk = SyncingDesk(files)
    desk.client().make("s")
    for number in range(6):
        assert desk.client().publish("s", b"x") == [(0, number, 1)]
        if number % 2:
            desk.runtime.sync()
            desk.service.close()
        desk = SyncingDesk(files.restart())


def test_a_stream_that_survives_a_loss_in_its_first_moments_repeats_nothing() -> None:
    survived = 0
    for synced_after in range(3):
        for seed in range(60):
            files = FaultyFiles()
            desk = LateDesk(files)
            peer = desk.client()
            peer.make("s")
            for number in range(3):
                if number == synced_after and seed % 2:
                    desk.service.core.journal.log.sync()  # its data may be lost all the same
                assert peer.publish("s", b"x") == [(0, number, 1)]
            again = LateDesk(files.crash(seed))
            if "s" in again.service.core.engine.streams:
                survived += 1
                [(_, offset, _)] = again.client().publish("s", b"y")
                assert offset > 2
    assert survived > 20
