"""Bases restore the files as of a number, and what they make needless is deleted (DESIGN 9)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from hashlib import sha256
from pathlib import Path

import pytest

from nexo.errors import ConfigError, Corrupt
from nexo.replication import bases, log_objects, replay, stores
from nexo.replication.cloud import open_store
from nexo.replication.encrypted import KEY_BYTES, EncryptedObjects
from nexo.replication.log_objects import LogObject
from nexo.replication.objects import (
    BASE,
    AlreadyThere,
    ObjectStore,
    StoreFailed,
    log_key,
    numbered,
)
from nexo.replication.stores import FolderObjects
from nexo.storage.disk.files import OsFiles
from tests.memory_objects import MemoryObjects
from tests.unit.storage.disk.test_recording import contents

KEY = bytes(range(KEY_BYTES))


@pytest.fixture(params=["memory", "folder", "cloud memory", "cloud folder", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    match request.param:
        case "memory":
            return MemoryObjects()
        case "folder":
            return FolderObjects(bucket)
        case "cloud memory":
            return open_store("memory:///")
        case "encrypted":
            return EncryptedObjects(MemoryObjects(), KEY)
        case _:
            return open_store(bucket.as_uri())


def fill(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make(store: ObjectStore, root: Path, number: int, maker: str = "m") -> bases.Manifest:
    """A base of the files below ``root``."""
    files, before = OsFiles(), bases.newest(store)
    stored, folders = bases.upload(store, files, bases.walk(files, root), maker, before)
    return bases.publish(store, bases.Manifest(number, 1, stored, folders))


# -- the port -----------------------------------------------------------------


def test_an_object_is_created_once(store: ObjectStore) -> None:
    store.create("log/1", b"first")
    with pytest.raises(AlreadyThere):
        store.create("log/1", b"second")
    assert store.get("log/1") == b"first"
    assert store.get("log/2") is None


def test_keys_are_listed_in_order_and_deleted(store: ObjectStore) -> None:
    for number in (10, 2, 1):
        store.create(log_key(number), b"x")
    store.create("base/1", b"x")
    assert store.list("log/") == [log_key(1), log_key(2), log_key(10)]
    assert store.list("log/", after=log_key(2)) == [log_key(10)]
    store.delete([log_key(2), log_key(3)])
    assert store.list("log/") == [log_key(1), log_key(10)]


def test_only_those_with_the_key_read_an_encrypted_object() -> None:
    inner = MemoryObjects()
    store = EncryptedObjects(inner, KEY)
    store.create("log/1", b"a secret")
    store.create("log/2", b"a secret")
    assert not any(b"secret" in data for data in inner.objects.values())
    with pytest.raises(Corrupt, match="the key differs"):
        EncryptedObjects(inner, bytes(KEY_BYTES)).get("log/1")
    inner.objects["log/2"] = inner.objects["log/1"]
    with pytest.raises(Corrupt, match="cannot be decrypted"):
        store.get("log/2")
    inner.create("log/3", b"plain")
    with pytest.raises(Corrupt, match="is not encrypted"):
        store.get("log/3")


@pytest.mark.parametrize("text", ["", "no base64!", "AAAA"])
def test_a_key_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(ConfigError, match="replicate_key_file"):
        stores.open_store(tmp_path.as_uri(), path)


def test_a_folder_that_cannot_be_written_is_a_failure_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a folder")
    with pytest.raises(StoreFailed):
        FolderObjects(tmp_path).create("log/1", b"x")


def test_a_full_disk_is_not_filled_with_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    store = FolderObjects(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFailed, match="No space"):
        store.create("log/1", b"x")
    monkeypatch.undo()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    store.create("log/1", b"x")
    assert store.list("log/") == ["log/1"]


def test_objects_that_are_known_to_be_there_are_asked_for_together() -> None:
    """With 20 ms per request, a standby that asks one by one never catches up."""

    class Together(MemoryObjects):
        barrier = threading.Barrier(replay.AHEAD, timeout=30)

        def get(self, key: str) -> bytes | None:
            if key < log_key(replay.AHEAD):
                self.barrier.wait()
            return super().get(key)

    store = Together()
    for number in range(replay.AHEAD + 2):
        store.create(log_key(number), str(number).encode())
    with ThreadPoolExecutor(2 * replay.AHEAD) as readers:
        ahead = replay.ReadAhead(store, readers)
        found = [ahead.get(number, replay.AHEAD) for number in range(replay.AHEAD + 3)]
    assert found == [*(str(number).encode() for number in range(replay.AHEAD + 2)), None]


# -- bases --------------------------------------------------------------------


def test_a_base_gives_the_files_back(store: ObjectStore, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    fill(here, a="1", b__c="2", b__d__e="", f="1")
    (here / "empty").mkdir()
    made = make(store, here, 5)
    assert bases.newest(store) == made
    bases.restore(store, made, OsFiles(), there)
    assert contents(there) == contents(here)


def test_a_file_that_did_not_change_is_uploaded_once(tmp_path: Path) -> None:
    store, here = MemoryObjects(), tmp_path / "here"
    fill(here, sealed="segment", growing="1")
    make(store, here, 5)
    fill(here, growing="12")
    make(store, here, 9, "n")
    assert len(store.list("file/")) == 3


def test_what_no_kept_base_needs_is_deleted(store: ObjectStore, tmp_path: Path) -> None:
    here = tmp_path / "here"
    for number in range(0, 40, 10):
        for each in range(number, number + 10):
            store.create(log_key(each), log_objects.FORMAT.pack(LogObject(1, "a", []), each))
        fill(here, sealed="segment", growing="1" * number)
        make(store, here, number + 10)
    assert bases.collect(store) > 0
    assert store.list("base/") == [numbered(BASE, 30), numbered(BASE, 40)]
    assert store.list("log/")[:2] == [log_key(0), log_key(30)], "what fences is kept"
    assert len(store.list("file/")) == 3
    for number in (30, 40):
        bases.restore(store, bases.load(store, number), OsFiles(), tmp_path / str(number))
    assert contents(tmp_path / "40") == contents(here)
    assert bases.collect(store) == 0


def test_a_damaged_base_is_passed_over_and_nothing_it_replaces_is_deleted(tmp_path: Path) -> None:
    store, here = MemoryObjects(), tmp_path / "here"
    for number in (10, 20, 30):
        fill(here, growing="1" * number)
        make(store, here, number)
    data = store.objects[numbered(BASE, 30)]
    store.objects[numbered(BASE, 30)] = data[:-9] + b"?" * 9
    found = bases.newest(store)
    assert found is not None
    assert found.number == 20
    bases.collect(store)
    assert set(store.list("base/")) >= {numbered(BASE, 10), numbered(BASE, 20)}


@pytest.mark.parametrize("found", [None, b"22"])
def test_content_that_is_missing_or_of_another_length_is_noticed(
    tmp_path: Path, found: bytes | None
) -> None:
    store, here = MemoryObjects(), tmp_path / "here"
    fill(here, a="1")
    made = make(store, here, 1)
    store.objects.pop(made.files[0].key)
    if found is not None:
        store.objects[made.files[0].key] = found
    with pytest.raises(Corrupt, match=r"^a of the base at 1 is (missing|2 bytes long, not 1)$"):
        bases.restore(store, made, OsFiles(), tmp_path / "there")


def test_damage_in_content_is_said_and_left_to_the_checks_of_what_it_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC Q4
    store, here = MemoryObjects(), tmp_path / "here"
    fill(here, a="1", b="2")
    made = make(store, here, 1)
    store.objects[made.files[0].key] = b"?"
    bases.restore(store, made, OsFiles(), tmp_path / "there")
    assert contents(tmp_path / "there") == {"a": b"?", "b": b"2"}
    assert f"a: the object {made.files[0].key} is damaged" in caplog.text


def test_a_flipped_bit_of_an_encrypted_object_costs_nothing() -> None:  # SPEC Q4
    inner = MemoryObjects()
    store = EncryptedObjects(inner, KEY)
    store.create("log/1", b"content" * 9)
    whole = inner.objects["log/1"]
    for at in range(len(whole)):
        inner.objects["log/1"] = whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :]
        assert store.get("log/1") == b"content" * 9
    for at in range(8, len(whole) - 6):
        wide = bytes(byte ^ 1 for byte in whole[at : at + 3])
        inner.objects["log/1"] = whole[:at] + wide + whole[at + 3 :]
        with pytest.raises(Corrupt):
            store.get("log/1")


def test_encrypted_objects_of_earlier_versions_are_read() -> None:
    inner = MemoryObjects()
    store = EncryptedObjects(inner, KEY)
    store.create("log/1", b"content")
    inner.objects["log/1"] = b"NEXOENC\0" + inner.objects["log/1"][8:-4]
    assert store.get("log/1") == b"content"


def test_a_maker_that_slept_through_a_takeover_deletes_nothing_its_successor_uses(
    tmp_path: Path,
) -> None:
    """It decided what to delete before it slept; the successor makes a base meanwhile."""
    here = tmp_path / "here"
    fill(here, a="old", b="shared")

    class Sleeping(MemoryObjects):
        asleep = True

        def delete(self, keys: Iterable[str]) -> None:
            if self.asleep:
                self.asleep = False
                fill(here, a="leftover", b="shared")
                make(self, here, 40, "successor")
            super().delete(keys)

    store = Sleeping()
    store.create("file/first/" + sha256(b"leftover").hexdigest(), b"leftover")
    for number in (10, 20, 30):
        fill(here, a="1" * number)
        make(store, here, number, "first")
    bases.collect(store)
    newest = bases.newest(store)
    assert newest is not None
    assert newest.number == 40
    bases.restore(store, newest, OsFiles(), tmp_path / "there")
    assert contents(tmp_path / "there") == contents(here)
