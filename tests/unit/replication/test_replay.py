"""A log with something missing or damaged is followed up to there, and says what it is (Q4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.errors import Corrupt
from nexo.replication import bases
from nexo.replication.log_objects import Mark
from nexo.replication.objects import BASE, ObjectStore, log_key, numbered
from nexo.replication.replay import LogReplay
from nexo.replication.shipping import Shipper
from nexo.storage.disk.recording import FileCreated, FileWritten, RecordingFiles
from tests.memory_files import MemoryFiles
from tests.memory_objects import MemoryObjects

ROOT = Path("/data/queue")


class Leader:
    """Ships one byte after the other to a file, and makes bases."""

    def __init__(self, store: ObjectStore) -> None:
        self.files = MemoryFiles()
        self.files.make_folder(ROOT)
        self._recording = RecordingFiles(self.files, ROOT)
        self._store = store
        self.shipper = Shipper("one/term/a", Mark())
        self._put()

    def _put(self) -> None:
        put = self.shipper.next_put(0)
        assert put is not None
        self._store.create(put.key, put.data)
        self.shipper.created()

    def ship(self, text: bytes) -> None:
        for byte in text:
            file = self._recording.open(ROOT / "log", create=True)
            file.write_at(file.size(), [bytes([byte])])
            self.shipper.gather(self._recording.take())
            self._put()

    def make_base(self) -> None:
        before = bases.newest(self._store)
        found = bases.walk(self.files, ROOT)
        stored, folders = bases.upload(self._store, self.files, found, "maker", before)
        number = self.shipper.number
        bases.publish(self._store, bases.Manifest(number, 1, stored, folders))


@pytest.fixture
def store() -> MemoryObjects:
    return MemoryObjects()


def follower(store: MemoryObjects) -> tuple[LogReplay, MemoryFiles]:
    files = MemoryFiles()
    return LogReplay(store, files, ROOT), files


def content(files: MemoryFiles) -> bytes:
    return files.open(ROOT / "log").read_at(0, 100)


def flip(store: MemoryObjects, key: str) -> None:
    """Change more than is put right."""
    data = bytearray(store.objects[key])
    for at in (len(data) // 2, len(data) - 2):
        data[at] ^= 1
    store.objects[key] = bytes(data)


def cut(store: MemoryObjects, key: str) -> None:
    """Lose the end of a base's content; one that is only changed is used, as it has checks."""
    store.objects[key] = store.objects[key][:-1]


@pytest.mark.parametrize("damage", [flip, lambda store, key: store.objects.pop(key)])
def test_a_log_is_followed_up_to_what_is_damaged_or_missing(
    store: MemoryObjects, damage: object
) -> None:
    leader = Leader(store)
    leader.ship(b"abcdef")
    assert callable(damage)
    damage(store, log_key(4))
    replay, files = follower(store)
    for _ in range(2):  # each try ends, and says the same
        replay.load()
        with pytest.raises(Corrupt, match="4"):
            replay.to_end()
        assert content(files) == b"abc"
        assert replay.mark.number == 4


@pytest.mark.parametrize("damage", [flip, lambda store, key: store.objects.pop(key)])
def test_a_base_past_the_damage_mends_it(store: MemoryObjects, damage: object) -> None:
    leader = Leader(store)
    leader.ship(b"abc")
    replay, files = follower(store)
    replay.load()
    replay.to_end()
    leader.ship(b"def")
    assert callable(damage)
    damage(store, log_key(5))
    with pytest.raises(Corrupt):
        replay.to_end()
    leader.make_base()
    leader.ship(b"g")
    replay.to_end()
    assert content(files) == b"abcdefg"
    assert files.list(ROOT.with_name("queue.superseded")) == []


@pytest.mark.parametrize("what", ["manifest", "content", "content gone"])
def test_a_damaged_base_is_passed_over(store: MemoryObjects, what: str) -> None:
    leader = Leader(store)
    leader.ship(b"ab")
    leader.make_base()
    leader.ship(b"cd")
    leader.make_base()
    leader.ship(b"e")
    newest = bases.newest(store)
    assert newest is not None
    match what:
        case "manifest":
            flip(store, numbered(BASE, newest.number))
        case "content":
            cut(store, newest.files[0].key)
        case _:
            del store.objects[newest.files[0].key]
    replay, files = follower(store)
    replay.load()
    replay.to_end()
    assert content(files) == b"abcde"


def test_without_any_sound_base_the_damage_is_named(store: MemoryObjects) -> None:
    leader = Leader(store)
    for _ in range(3):
        leader.ship(b"ab")
        leader.make_base()
    bases.collect(store)
    for key in store.list("file/"):
        cut(store, key)
    replay, _ = follower(store)
    with pytest.raises(Corrupt, match="log of the base at 7 is 5 bytes long, not 6"):
        replay.load()


def test_what_was_there_before_a_load_is_kept_through_all_its_tries(store: MemoryObjects) -> None:
    leader = Leader(store)
    leader.ship(b"new")
    files = MemoryFiles()
    recording = RecordingFiles(files, ROOT)
    files.make_folder(ROOT)
    for name in ("log", "other"):
        recording.open(ROOT / name, create=True).write_at(0, [b"mine"])
    replay = LogReplay(store, files, ROOT)
    for _ in range(3):
        replay.load(keep=True)
        replay.to_end()
    assert content(files) == b"new"
    for name in ("log", "other"):
        assert files.open(replay.aside / name).read_at(0, 100) == b"mine"


def test_a_restore_to_a_time_says_what_is_missing(store: MemoryObjects) -> None:
    shipper = Shipper("one/term/a", Mark())
    for time_ms in (0, 1_000, 2_000, 3_000):
        if shipper.leads:
            shipper.gather([FileCreated("log"), FileWritten("log", 0, str(time_ms).encode())])
        put = shipper.next_put(time_ms)
        assert put is not None
        store.create(put.key, put.data)
        shipper.created()
    del store.objects[log_key(2)]
    replay, _ = follower(store)
    replay.load(1_500)
    with pytest.raises(Corrupt, match="log/00000000000000000002 is missing"):
        replay.to_end(1_500)
