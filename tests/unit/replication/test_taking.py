"""Taking the lead of a log, and following it: over a store whose every answer goes wrong once."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from nexo.errors import Corrupt
from nexo.replication import bases, lease
from nexo.replication.log_objects import Mark
from nexo.replication.objects import AlreadyThere, StoreFailed, log_key
from nexo.replication.replay import LogReplay
from nexo.replication.shipping import Shipper
from nexo.replication.small_files import Overtaken, SmallFiles
from nexo.replication.taking import Superseded, Taking
from nexo.storage.disk.recording import RecordingFiles
from tests.memory_files import MemoryFiles
from tests.memory_objects import MemoryObjects

ROOT = Path("/data/queue")


class FailingObjects(MemoryObjects):
    """Fails the n-th call once: before it is done, or after, so that its reply is lost."""

    def __init__(self, fails_at: int = -1, *, done: bool = False) -> None:
        super().__init__()
        self._fails_at = fails_at
        self._done = done
        self.calls = 0

    def create(self, key: str, data: bytes) -> None:
        fails = self.calls == self._fails_at
        self.calls += 1
        if fails and not self._done:
            raise StoreFailed("503")
        super().create(key, data)
        if fails:
            raise StoreFailed("the reply was lost")

    def get(self, key: str) -> bytes | None:
        fails = self.calls == self._fails_at
        self.calls += 1
        if fails:
            raise StoreFailed("503")
        return super().get(key)


def taking(store: MemoryObjects, files: MemoryFiles, writer: str) -> Taking:
    times = count(1)
    return Taking(store, files, ROOT, writer, lambda: next(times), lambda: None)


def leader() -> tuple[MemoryObjects, MemoryFiles, Shipper, RecordingFiles]:
    """A store and the first server that has taken it, which records what it writes."""
    store, own = MemoryObjects(), MemoryFiles()
    own.make_folder(ROOT)
    shipper, _ = taking(store, own, "one/term/a").take(None)
    return store, own, shipper, RecordingFiles(own, ROOT)


def write(files: RecordingFiles, name: str, data: bytes) -> None:
    file = files.open(ROOT / name, create=True)
    file.write_at(file.size(), [data])
    file.close()


def ship(store: MemoryObjects, shipper: Shipper, files: RecordingFiles) -> None:
    shipper.gather(files.take())
    put = shipper.next_put(1_000)
    assert put is not None
    store.create(put.key, put.data)
    shipper.created()


def content(files: MemoryFiles, name: str) -> bytes:
    file = files.open(ROOT / name)
    return file.read_at(0, file.size())


def follow(store: MemoryObjects) -> tuple[LogReplay, MemoryFiles]:
    files = MemoryFiles()
    replay = LogReplay(store, files, ROOT)
    replay.load()
    replay.to_end()
    return replay, files


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("at", range(12))
def test_any_answer_may_fail_while_the_lead_is_taken(at: int, done: bool) -> None:
    store, own = FailingObjects(at, done=done), MemoryFiles()
    own.make_folder(ROOT)
    write(RecordingFiles(own, ROOT), "kept", b"from before replication")
    shipper, _ = taking(store, own, "one/term/a").take(None)
    recording = RecordingFiles(own, ROOT)
    write(recording, "log", b"entry")
    shipper.gather(recording.take())
    put = shipper.next_put(9)
    assert put is not None
    while True:  # as the server does
        try:
            store.create(put.key, put.data)
            break
        except AlreadyThere:
            break
        except StoreFailed:
            continue
    store._fails_at = -1
    _, files = follow(store)
    assert content(files, "kept") == b"from before replication"
    assert content(files, "log") == b"entry"


def test_a_killed_leader_claims_with_what_it_had_not_shipped() -> None:
    store, own, shipper, recording = leader()
    write(recording, "log", b"shipped")
    ship(store, shipper, recording)
    standby, files = follow(store)
    write(recording, "log", b" and not shipped")
    taking(store, own, "one/term/b").take(None)
    standby.to_end()
    assert content(files, "log") == b"shipped and not shipped"


def test_a_replaced_leader_does_not_lead_again_with_its_files() -> None:
    store, own, shipper, recording = leader()
    write(recording, "log", b"shipped")
    ship(store, shipper, recording)
    standby, files = follow(store)
    taking(store, files, "two/term/a").take(standby.mark)
    with pytest.raises(Superseded):
        taking(store, own, "one/term/b").take(None)


def test_a_folder_that_was_being_made_is_made_again_and_never_uploaded() -> None:
    """Also if the log ends with this server's own objects (SPEC Q5)."""
    store, own, shipper, recording = leader()
    write(recording, "log", b"all of it")
    ship(store, shipper, recording)
    own.open(ROOT / "log").truncate(3)  # a kill in the middle of the copy
    taking(store, own, "one/term/b").take(None, is_half=True)
    assert content(own, "log") == b"all of it"
    _, files = follow(store)
    assert content(files, "log") == b"all of it"


def test_a_folder_that_was_being_made_from_what_is_gone_is_not_served() -> None:
    own = MemoryFiles()
    own.make_folder(ROOT)
    write(RecordingFiles(own, ROOT), "log", b"half")
    with pytest.raises(Corrupt, match="neither a base nor the log's beginning"):
        taking(MemoryObjects(), own, "one/term/a").take(None, is_half=True)


@pytest.mark.parametrize("with_mark", [False, True])
def test_a_wiped_bucket_is_filled_again_past_every_number_that_was_used(with_mark: bool) -> None:
    store, own, shipper, recording = leader()
    write(recording, "log", b"kept")
    ship(store, shipper, recording)
    end = Mark(shipper.number, shipper.epoch, shipper.writer)
    store.objects.clear()
    again = taking(store, own, "one/term/b")
    taken, _ = again.take(end if with_mark else None, claimed=end)
    assert again.found_loss
    assert taken.number > shipper.number + 1_000
    assert taken.epoch == shipper.epoch + 1
    _, files = follow(store)
    assert content(files, "log") == b"kept"


def test_a_log_that_lost_its_base_is_filled_again() -> None:
    store, own, shipper, recording = leader()
    write(recording, "log", b"kept")
    ship(store, shipper, recording)
    end = Mark(shipper.number, shipper.epoch, shipper.writer)
    for key in [*store.list("base/"), *store.list("file/"), log_key(0)]:
        del store.objects[key]
    again = taking(store, own, "one/term/b")
    again.take(None, claimed=end)
    assert again.found_loss
    _, files = follow(store)
    assert content(files, "log") == b"kept"


def test_a_folder_that_was_served_empty_is_served_again_though_the_bucket_lost_its_base() -> None:
    """Nothing was written to it: there is nothing that could be missing (SPEC N4)."""
    store, own = MemoryObjects(), MemoryFiles()
    own.make_folder(ROOT)
    shipper, _ = taking(store, own, "one/term/a").take(None)
    shipper, _ = taking(store, own, "one/term/b").take(None)
    for key in [*store.list("base/"), log_key(0)]:
        store.objects.pop(key, None)
    end = Mark(shipper.number, shipper.epoch, shipper.writer)
    with pytest.raises(Corrupt):  # one that was never served may lack everything
        taking(store, MemoryFiles(), "two/term/a").take(None)
    again = taking(store, own, "one/term/c")
    again.take(None, claimed=end)
    assert again.found_loss


def test_a_claim_that_brings_all_files_is_enough_to_follow() -> None:
    """The base that is made with it may not be there yet."""
    store, own = MemoryObjects(), MemoryFiles()
    own.make_folder(ROOT)
    write(RecordingFiles(own, ROOT), "log", b"kept")
    taking(store, own, "one/term/a").take(None, claimed=Mark(7, 1, "one/term/0"))
    for key in store.list("base/"):
        del store.objects[key]
    _, files = follow(store)
    assert content(files, "log") == b"kept"


def test_who_slept_before_its_claim_does_not_lead_with_a_number_that_was_used() -> None:
    """The old leader went on meanwhile, made bases, and deleted that number."""
    own = MemoryFiles()
    own.make_folder(ROOT)

    class Sleeping(MemoryObjects):
        asleep = False

        def create(self, key: str, data: bytes) -> None:
            if self.asleep and key.startswith("log/"):
                self.asleep = False
                for _ in range(3):
                    write(recording, "log", b"and on ")
                    ship(self, shipper, recording)
                    found = bases.walk(own, ROOT)
                    stored, folders = bases.upload(self, own, found, "maker", None)
                    made = bases.Manifest(shipper.number, shipper.epoch, stored, folders)
                    bases.publish(self, made)
                bases.collect(self)
            super().create(key, data)

    store = Sleeping()
    shipper, _ = taking(store, own, "one/term/a").take(None)
    recording = RecordingFiles(own, ROOT)
    write(recording, "log", b"shipped ")
    ship(store, shipper, recording)
    standby, files = follow(store)
    store.asleep = True
    taken, _ = taking(store, files, "two/term/a").take(standby.mark, is_sure=True)
    assert taken.number - 1 == int(store.list("log/")[-1][4:]), "the claim is the log's end"
    assert content(files, "log") == b"shipped and on and on and on "


def test_a_claim_waits_while_the_lease_is_over() -> None:
    """Else a server that slept could take the log away from its next leader."""
    store, own = MemoryObjects(), MemoryFiles()
    own.make_folder(ROOT)
    pauses: list[int] = []

    def pause() -> None:
        assert not store.list("log/")
        pauses.append(1)

    late = Taking(
        store, own, ROOT, "one/term/a", lambda: 1, pause, lambda: len(pauses) == 3
    )  # fmt: skip
    late.take(None)
    assert store.list("log/") == [log_key(0)]


def test_a_mark_that_others_went_past_is_followed_before_the_claim() -> None:
    store, own = MemoryObjects(), MemoryFiles()
    own.make_folder(ROOT)
    shipper, _ = taking(store, own, "one/term/a").take(None)
    standby, files = follow(store)
    mark: Mark = standby.mark
    recording = RecordingFiles(own, ROOT)
    write(recording, "log", b"late")
    ship(store, shipper, recording)
    taking(store, files, "two/term/a").take(mark)
    assert content(files, "log") == b"late"


def test_an_empty_folder_is_loaded_instead_of_shipped() -> None:
    store, _own, shipper, recording = leader()
    write(recording, "log", b"kept")
    ship(store, shipper, recording)
    lost = MemoryFiles()
    lost.make_folder(ROOT)
    taking(store, lost, "one/term/b").take(None)
    assert content(lost, "log") == b"kept"


def test_a_base_with_newer_contents_gives_the_same_files_after_the_log() -> None:
    store, own, shipper, recording = leader()
    write(recording, "log", b"first")
    ship(store, shipper, recording)
    number = shipper.number
    write(recording, "log", b" second")  # after the names were noted, before it is read
    stored, folders = bases.upload(store, own, bases.walk(own, ROOT), "maker", None)
    ship(store, shipper, recording)
    bases.publish(store, bases.Manifest(number, shipper.epoch, stored, folders, 2_000))
    bases.collect(store)
    _, files = follow(store)
    assert content(files, "log") == b"first second"


def test_a_lease_is_one_servers_and_found_again_after_a_lost_reply() -> None:
    store = MemoryObjects()
    mine = lease.LeaderLease("mine", "one", "a:1", 3_000, 0, {})
    others = lease.LeaderLease("others", "two", "b:1", 3_000, 0, {})
    assert lease.newest(store) is None
    assert lease.create(store, 0, mine)
    assert lease.create(store, 0, mine)
    assert not lease.create(store, 0, others)
    assert lease.newest(store) == (0, mine)


def test_users_follow_the_leader_and_stop_an_old_one(tmp_path: Path) -> None:
    store = MemoryObjects()
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("[]")
    leader = SmallFiles(store, {"users": old})
    assert leader.ship_changes()
    assert not leader.ship_changes()
    successor = SmallFiles(store, {"users": new})
    assert successor.restore() == ["users"]
    assert new.read_text() == "[]"
    new.write_text('[{"name": "a"}]')
    successor.ship_changes()
    old.write_text('[{"name": "late"}]')
    with pytest.raises(Overtaken):
        leader.ship_changes()
