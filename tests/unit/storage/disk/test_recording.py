"""Recorded file operations, done again elsewhere, give the same files (DESIGN 9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.errors import Corrupt, DiskFull
from nexo.replication import log_objects
from nexo.replication.log_objects import LogObject, Mark
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.flusher import Flusher
from nexo.storage.disk.recording import (
    FileCreated,
    FileWritten,
    Operation,
    RecordingFiles,
    apply,
)
from nexo.storage.journal import Journal
from nexo.storage.ports import Files
from tests.faulty_files import FaultyFiles
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk

ROOT = Path("/data")


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def held(files: Files, names: str) -> dict[str, bytes]:
    found = {}
    for name in names:
        try:
            file = files.open(ROOT / name)
        except FileNotFoundError:
            continue
        found[name] = file.read_at(0, file.size())
    return found


names = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), names, st.integers(0, 50), st.binary(max_size=20)),
        st.tuples(st.just("cut"), names, st.integers(0, 50)),
        st.tuples(st.just("rename"), names, names),
        st.tuples(st.just("remove"), names),
    ),
    max_size=40,
)


@given(steps)
def test_any_operations_give_the_same_files(steps: list[tuple[object, ...]]) -> None:
    recording = RecordingFiles(MemoryFiles(), ROOT)
    recording.make_folder(ROOT)
    for step in steps:
        match step:
            case ("write", str(name), int(position), bytes(data)):
                recording.open(ROOT / name, create=True).write_at(position, [data[:5], data[5:]])
            case ("cut", str(name), int(size)):
                recording.open(ROOT / name, create=True).truncate(size)
            case ("rename", str(source), str(target)) if source in recording.list(ROOT):
                recording.rename(ROOT / source, ROOT / target)
            case ("remove", str(name)):
                recording.remove(ROOT / name)
    again = MemoryFiles()
    group, _ = Mark(7).take(log_objects.FORMAT.pack(LogObject(1, "a", recording.take()), 7))
    apply(group.operations, again, ROOT)
    assert held(again, "abc") == held(recording, "abc")


def test_a_journal_replayed_in_groups_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    recording = RecordingFiles(OsFiles(), here)
    flusher = Flusher(recording, here)
    journal = Journal(recording, here / "q", segment_bytes=2_000)
    replica = OsFiles()
    replica.make_folder(there)
    for turn in range(40):
        journal.append([b"%d" % turn * 30], turn, twice=turn % 7 == 0)
        if turn % 5 == 4:
            flusher.sync()
            flusher.settle()
            apply(recording.take(), replica, there)
            replica.sync_all(there)
        if turn % 13 == 12:
            journal.checkpoint(b"state %d" % turn)
    journal.finish()
    apply(recording.take(), replica, there)
    assert contents(there) == contents(here)
    assert any(name.endswith(".snap") for name in contents(here))
    again = Journal(replica, there / "q").recover()
    assert again.snapshot == b"state 38"
    assert again.losses == []


def test_a_queue_at_work_is_the_same_elsewhere() -> None:
    files = MemoryFiles()
    recording = RecordingFiles(files, Path("/data"))
    desk = Desk(recording)
    peer = desk.client()
    for number in range(3):
        peer.create(f"q/{number}")
        peer.push_many(f"q/{number}", [b"\x01%d" % n for n in range(50)])
    peer.settle("q/1", peer.pop("q/1", 20)[0])
    desk.service.close()
    elsewhere = MemoryFiles()
    apply(recording.take(), elsewhere, Path("/data"))
    assert elsewhere._contents == files._contents
    found = Desk(elsewhere).client()
    assert [len(found.pop(f"q/{number}", 100)[1]) for number in range(3)] == [50, 30, 50]


def test_what_the_disk_refused_is_not_recorded() -> None:
    files = FaultyFiles()
    recording = RecordingFiles(files, ROOT)
    recording.make_folder(ROOT)
    file = recording.open(ROOT / "a", create=True)
    recording.take()
    files.fill()
    with pytest.raises(DiskFull):
        file.write_at(0, [b"lost"])
    assert recording.take() == []


def test_opening_a_file_again_does_not_create_it_again() -> None:
    recording = RecordingFiles(MemoryFiles(), ROOT)
    recording.make_folder(ROOT)
    for _ in range(2):
        recording.open(ROOT / "a", create=True).write_at(0, [b"1"])
    created = [operation for operation in recording.take() if isinstance(operation, FileCreated)]
    assert created == [FileCreated("a")]


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b"])
def test_operations_cannot_leave_their_folder(path: str) -> None:
    outside: list[Operation] = [FileCreated(path), FileWritten(path, 0, b"x")]
    with pytest.raises(Corrupt, match="outside"):
        apply(outside, MemoryFiles(), ROOT)


def test_any_flip_in_a_packed_group_costs_nothing_and_more_is_noticed() -> None:  # SPEC Q4
    operations: list[Operation] = [FileCreated("a"), FileWritten("a", 0, b"content")]
    data = log_objects.FORMAT.pack(LogObject(1, "a", operations), 3)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert log_objects.FORMAT.unpack(flipped, 3) == LogObject(1, "a", operations)
    for at in range(len(data) - 6):
        wide = data[:at] + bytes(byte ^ 1 for byte in data[at : at + 3]) + data[at + 3 :]
        with pytest.raises(Corrupt):
            log_objects.FORMAT.unpack(wide, 3)
