"""Power loss where syncs come later: what the last one covered survives, the rest is a prefix.

A queue with ``file_async``, retained messages, and the saves of a store (SPEC B3, C3, E3).
Streams are in ``test_stream_offsets.py``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from nexo.brokers.store.engine import StoreEngine
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.store import snapshot
from nexo.storage.disk.flusher import Flusher
from tests.crash.test_stream_power_loss import SyncingDesk
from tests.faulty_files import FaultyFiles, PowerLoss
from tests.unit.brokers.pubsub.desk import Desk as PubSubDesk
from tests.unit.brokers.queue.desk import Desk as QueueDesk

SEEDS = range(40)
SYNCED, ALL = 5, 12
FOLDER = Path("/data/store")
NOW = 1_000_000


def value(number: int) -> bytes:
    """Longer than a sector now and then, so that it can be torn."""
    return b"\x01%d" % number + b"." * (700 if number % 3 == 0 else 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_loses_at_most_its_window(seed: int) -> None:
    files = FaultyFiles()
    desk = QueueDesk(files)
    peer = desk.client()
    peer.create("q", persistence="file_async")
    for number in range(ALL):
        peer.push_many("q", [value(number)])
        if number == SYNCED - 1:
            desk.runtime.flusher.sync()
    after = files.crash(seed)
    found = list(QueueDesk(after).client().pop("q", 1_000)[1].values())
    assert found == [value(number) for number in range(len(found))]
    assert SYNCED <= len(found) <= ALL
    again = QueueDesk(after).client()
    again.push_many("q", [b"\x01more"])
    assert list(QueueDesk(after.restart()).client().pop("q", 1_000)[1].values()) == [
        *found,
        b"\x01more",
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_new_streams_are_lost_within_their_window_only(seed: int) -> None:
    """SPEC A11, E3: created and confirmed, with their options; ``file_async`` is the default."""
    files = FaultyFiles()
    desk = SyncingDesk(files)
    peer = desk.client()
    for number in range(ALL):
        peer.make(f"s/{number}", partitions=number + 1, retention_ms=number)
        if number == SYNCED - 1:
            desk.runtime.sync()
    after = files.crash(seed)
    peer = SyncingDesk(after).client()
    found = peer.call(Op.S_LIST, wire.ListAsk(), list[str])
    assert found == sorted(f"s/{number}" for number in range(len(found)))
    assert SYNCED <= len(found) <= ALL
    for number in range(len(found)):
        info = peer.describe(f"s/{number}")
        assert len(info.partitions) == number + 1
        assert info.options["retention_ms"] == number
    peer.publish("s/0", b"more")
    assert SyncingDesk(after.restart()).client().read("s/0") == [b"more"]


def retained(desk: PubSubDesk) -> dict[str, bytes]:
    client = desk.client()
    client.subscribe("#")
    return dict(client.received)


@pytest.mark.parametrize("seed", SEEDS)
def test_retained_messages_lose_at_most_their_window(seed: int) -> None:
    files = FaultyFiles()
    desk = PubSubDesk(files)
    flusher = Flusher(files, desk.runtime.folder)
    client = desk.client()
    states: list[dict[str, bytes]] = [{}]
    for number in range(ALL):
        client.publish(f"t/{number % 4}", value(number), retain=True)
        states.append(states[-1] | {f"t/{number % 4}": value(number)})
        if number == SYNCED - 1:
            flusher.sync()
    after = files.crash(seed)
    found = retained(PubSubDesk(after))
    assert found in states[SYNCED:]
    again = PubSubDesk(after)
    again.client().publish("t/more", b"more", retain=True)
    assert retained(PubSubDesk(after.restart())) == found | {"t/more": b"more"}


def save(files: FaultyFiles, number: int) -> None:
    store = StoreEngine()
    store.mset({f"k{n}": value(number) for n in range(20)}, NOW)
    snapshot.save(files, FOLDER / snapshot.NAME, store, NOW)


def test_a_store_comes_back_as_one_of_its_saves_wherever_power_is_lost() -> None:
    counted = FaultyFiles()
    counted.make_folder(FOLDER)
    for number in range(3):
        save(counted, number)
    for call in range(1, counted.calls + 2):
        files, saved, begun = FaultyFiles(), -1, -1
        files.make_folder(FOLDER)
        files.sync_all(FOLDER)
        files.lose_power_at = call
        with contextlib.suppress(PowerLoss):
            for begun in range(3):
                save(files, begun)
                saved = begun
        for seed in range(12):
            store = StoreEngine()
            snapshot.load(files.crash(seed), FOLDER / snapshot.NAME, store, NOW)
            found = {bytes(store.get(f"k{n}", NOW) or b"") for n in range(20)}
            assert found in [{value(saved)} if saved >= 0 else {b""}, {value(begun)}]
