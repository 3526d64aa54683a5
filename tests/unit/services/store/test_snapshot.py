"""A saved store comes back whole, or says what is damaged (SPEC B3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.brokers.store import records
from nexo.brokers.store.engine import StoreEngine
from nexo.errors import Corrupt
from nexo.services.store import snapshot
from nexo.services.store.snapshot import NAME, SnapshotWriter
from tests.memory_files import MemoryFiles

NOW = 1_000_000
FOLDER = Path("/data/store")
TARGET = FOLDER / NAME
A, B = b"\x01a", b"\x01b"


def filled() -> StoreEngine:
    store = StoreEngine()
    store.put("plain 🙂", A)
    store.set("short", A, NOW, ttl_ms=100)
    store.set("long", B, NOW, ttl_ms=10_000)
    store.maps.set("map", {"x": A, "y": B}, NOW)
    store.lists.push("list", [B, A, B], NOW)
    store.sets.add("set", [A, B], NOW)
    store.expire("list", 5_000, NOW)
    return store


def loaded(files: MemoryFiles, now_ms: int = NOW) -> StoreEngine:
    store = StoreEngine()
    snapshot.load(files, TARGET, store, now_ms)
    return store


def test_everything_comes_back_with_its_absolute_due_time() -> None:
    files = MemoryFiles()
    before = filled()
    assert snapshot.save(files, TARGET, before, NOW) == 6
    after = loaded(files, NOW + 100)
    assert after.scan(NOW + 100).keys == ["list", "long", "map", "plain 🙂", "set"]
    assert after.get("short", NOW) is None
    assert after.inspect("long", NOW + 100).ttl_ms == 9_900  # type: ignore[union-attr]
    assert after.maps.all("map", NOW) == {"x": A, "y": B}
    assert after.lists.range("list", 0, None, NOW) == [B, A, B]
    assert set(after.sets.members("set", NOW)) == {A, B}
    before.delete(["short"], NOW)
    assert after.keyspace.used_bytes == before.keyspace.used_bytes


def test_no_snapshot_is_an_empty_store() -> None:
    assert len(loaded(MemoryFiles()).keyspace) == 0


def test_a_save_takes_many_small_steps_while_the_store_changes() -> None:
    files = MemoryFiles()
    store = StoreEngine()
    store.mset({f"k{n:05}": A for n in range(5_000)}, NOW)
    writer = SnapshotWriter(files, TARGET, store)
    steps = 0
    while writer.step(NOW):
        steps += 1
        store.put(f"a{steps}", B)  # before the cursor: not in this save
        store.put(f"z{steps}", B)  # behind it: in this save
        store.delete([f"k{n:05}" for n in range(steps, 5_000, 500)], NOW)
        assert len(loaded(files).keyspace) == 0  # nothing in place before it is whole
    assert steps > 5_000 // records.CHUNK_KEYS - 1
    writer.sync()
    writer.finish()
    found = set(loaded(files).scan(NOW, limit=100_000).keys)
    assert set(store.scan(NOW, prefix="k", limit=10_000).keys) <= found
    assert "z1" in found


def test_large_values_end_a_chunk_early() -> None:
    store = StoreEngine()
    store.mset({str(n): b"\x00" * 400_000 for n in range(9)}, NOW)
    assert len(records.take_rows(store, "")) == 3


def test_an_abandoned_save_leaves_the_old_snapshot() -> None:
    files = MemoryFiles()
    store = filled()
    snapshot.save(files, TARGET, store, NOW)
    store.clear()
    store.put("new", A)
    writer = SnapshotWriter(files, TARGET, store)
    writer.step(NOW)
    writer.abandon()
    assert files.list(FOLDER) == [NAME]
    assert loaded(files).get("long", NOW) == B


def test_a_file_cut_anywhere_is_reported() -> None:
    files = MemoryFiles()
    snapshot.save(files, TARGET, filled(), NOW)
    whole = files.open(TARGET).read_at(0, 1 << 20)
    for size in range(len(whole)):
        file = files.open(TARGET)
        file.truncate(size)
        with pytest.raises(Corrupt):
            loaded(files)
        file.write_at(0, [whole])
    assert len(loaded(files).keyspace) == 6


def test_a_flipped_bit_anywhere_costs_nothing_and_more_is_reported() -> None:  # SPEC Q4
    files = MemoryFiles()
    snapshot.save(files, TARGET, filled(), NOW)
    file = files.open(TARGET)
    whole = file.read_at(0, 1 << 20)
    for at in range(len(whole)):
        file.write_at(at, [bytes([whole[at] ^ 0x10])])
        assert len(loaded(files).keyspace) == 6
        file.write_at(at, [whole[at : at + 1]])
    for at in range(64, 120):
        file.write_at(at, [bytes(byte ^ 0x41 for byte in whole[at : at + 3])])
        with pytest.raises(Corrupt):
            loaded(files)
        file.write_at(at, [whole[at : at + 3]])


def test_a_damaged_file_is_copied_under_a_name_of_its_content() -> None:
    files = MemoryFiles()
    snapshot.save(files, TARGET, filled(), NOW)
    first = snapshot.copy_damaged(files, TARGET)
    assert snapshot.copy_damaged(files, TARGET) == first
    files.open(TARGET).write_at(70, [b"?"])
    second = snapshot.copy_damaged(files, TARGET)
    assert sorted(files.list(FOLDER)) == sorted([NAME, first.name, second.name])
    copied = files.open(second)
    assert copied.read_at(0, copied.size()) == files.open(TARGET).read_at(0, copied.size())
