"""Power loss at every call: ``file_sync`` keeps what it acknowledged, transactions are whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from nexo.batch import BatchProducer
from nexo.errors import NexoError
from nexo.model import Persistence
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxAcks, TxBegin, TxInputs, publish_head
from nexo.storage.disk.flusher import Flusher
from nexo.storage.header import Flags
from nexo.storage.ports import Files
from tests.faulty_files import FaultyFiles, PowerLoss
from tests.unit.brokers.stream.desk import Desk, Peer, StreamRuntime

SEEDS = range(12)
ROUNDS = 3


class SyncingRuntime(StreamRuntime):
    """A `Runtime` that syncs when it is asked to."""

    def __init__(self, files: Files, **settings: Any) -> None:
        super().__init__(files, **settings)
        self.flusher = Flusher(files, self.folder)

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        if mode is Persistence.FILE_SYNC:
            self.flusher.sync()
        callback(None)

    def when_synced(self, callback: Callable[[NexoError | None], None]) -> None:
        self.unsynced.append(callback)

    def sync(self, error: NexoError | None = None) -> None:
        self.flusher.sync()
        waiting, self.unsynced = self.unsynced, []
        for callback in waiting:
            callback(error)
        self.end_turn()


class SyncingDesk(Desk):
    runtime_type = SyncingRuntime


class Acked:
    """What the outside world was told."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        """Streams, with their partitions."""
        self.plain: list[bytes] = []
        self.transactions: list[bytes] = []


def work(files: FaultyFiles, acked: Acked) -> None:
    """Plain publishes, and transactions over two streams and an input."""
    peer = SyncingDesk(files).client()
    for name, partitions in (("wide", 3), ("in", 1), ("a", 1), ("b", 1)):
        peer.make(name, persistence="file_sync", partitions=partitions)
        acked.made[name] = partitions
    consumer = peer.join("in", "g")
    for number in range(ROUNDS):
        value = b"%d" % number
        peer.publish("in", value)
        acked.plain.append(value)
        consumer.take()
        transact(peer, value, (consumer.name, consumer.generation), number)
        acked.transactions.append(value)


def transact(peer: Peer, value: bytes, who: tuple[str, int], offset: int) -> None:
    number = peer.call(Op.S_TX_BEGIN, TxBegin(), int)
    for name in ("a", "b"):
        head = number.to_bytes(8, "big") + publish_head(name, 0)
        peer.ask(Op.S_TX_PUBLISH, head + peer.batch(value, flags=Flags.TRANSACTIONAL))
    acks = [TxAcks("in", "g", *who, [(0, offset, offset + 1)])]
    peer.ask(Op.S_TX_INPUTS, wire.pack(TxInputs(transaction=number, acks=acks)))
    peer.ask(Op.S_TX_COMMIT, wire.pack(number))


def check(files: FaultyFiles, acked: Acked) -> None:
    """Recover and look; write, and recover again."""
    desk = SyncingDesk(files)
    peer = desk.client()
    for name, partitions in acked.made.items():
        assert len(peer.describe(name).partitions) == partitions
    if "in" not in desk.service.core.engine.streams:
        assert not acked.plain
        return
    stored = peer.read("in")
    assert stored[: len(acked.plain)] == acked.plain
    if not stored:
        return
    outputs = peer.read("a")
    assert outputs == peer.read("b"), "a transaction was torn"
    assert outputs[: len(acked.transactions)] == acked.transactions
    floor = peer.group("in", "g").partitions[0].floor
    assert floor == len(outputs), "outputs and the acks of their inputs differ"
    peer.publish("in", b"more")
    again = SyncingDesk(files.crash(0)).client()
    assert again.read("in") == [*stored, b"more"]
    assert again.read("a") == again.read("b") == outputs


def test_every_place_to_lose_power_at() -> None:  # SPEC E3, H1
    files = FaultyFiles()
    work(files, Acked())
    for call in range(1, files.calls + 2):
        for seed in SEEDS:
            broken, acked = FaultyFiles(), Acked()
            broken.lose_power_at = call
            with contextlib.suppress(PowerLoss):
                work(broken, acked)
            try:
                check(broken.crash(seed), acked)
            except AssertionError as error:
                pytest.fail(f"power lost at call {call}, outcome {seed}: {error}")


def loose_work(files: FaultyFiles) -> None:
    """Unsynced publishes and acks, a rolled-back transaction, and graceful stops in between."""
    desk = SyncingDesk(files)
    for number in range(ROUNDS):
        peer = desk.client()
        peer.make("s")
        peer.publish("s", b"%d" % number, producer=BatchProducer(7, 0, number))
        consumer = peer.join("s", "g")
        for got in consumer.take():
            consumer.settle("ack", got.offset)
        transaction = peer.call(Op.S_TX_BEGIN, TxBegin(), int)
        head = transaction.to_bytes(8, "big") + publish_head("s", 0)
        peer.ask(Op.S_TX_PUBLISH, head + peer.batch(b"never", flags=Flags.TRANSACTIONAL))
        peer.ask(Op.S_TX_ABORT, wire.pack(transaction))
        desk.runtime.sync()  # as a host does before it closes a service
        desk.service.close()
        desk = SyncingDesk(files)


def check_loose(files: FaultyFiles) -> None:
    """What is new after the loss is seen by readers and by the group."""
    peer = SyncingDesk(files).client()
    peer.make("s")
    stored = peer.read("s", peer.describe("s").partitions[0].start_offset)
    assert b"never" not in stored
    peer.publish("s", b"new", producer=BatchProducer(8, 0, 0))
    assert peer.read("s")[-1] == b"new"
    consumer = peer.join("s", "g")
    assert b"new" in [got.value for got in consumer.take()]


def test_what_comes_after_a_loss_of_unsynced_records_is_not_mistaken_for_them() -> None:
    files = FaultyFiles()
    loose_work(files)
    for call in range(1, files.calls + 2):
        for seed in SEEDS:
            broken = FaultyFiles()
            broken.lose_power_at = call
            with contextlib.suppress(PowerLoss):
                loose_work(broken)
            try:
                check_loose(broken.crash(seed))
            except (AssertionError, NexoError) as error:
                pytest.fail(f"power lost at call {call}, outcome {seed}: {error!r}")
