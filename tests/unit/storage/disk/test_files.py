"""The real file system: bounded descriptors, failing calls, syncs from another thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import pytest

from nexo.errors import DiskFull, ReadOnly
from nexo.model import Buffer
from nexo.storage.disk.files import OsFile, OsFiles
from nexo.storage.disk.flusher import Flusher
from nexo.storage.disk.open_files import OpenFiles
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import File
from tests.unit.storage.entries import bodies, body_of, entry, fill


def open_below(folder: Path) -> int:
    """How many descriptors of this process are files below the folder."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            count += descriptor.readlink().is_relative_to(folder)
        except FileNotFoundError:
            continue
    return count


def test_2000_logs_are_written_and_reopened_with_64_open_files(tmp_path: Path) -> None:  # SPEC E1
    files = OsFiles(max_open_files=64)
    flusher = Flusher(files, tmp_path)
    logs = [SegmentedLog(files, tmp_path / str(n)) for n in range(2_000)]
    for turn in range(2):
        for n, log in enumerate(logs):
            log.append(*entry(n + turn))
    flusher.sync()
    assert 0 < open_below(tmp_path) <= 64
    for log in logs:
        log.close()
    assert open_below(tmp_path) == 0
    for n in range(0, 2_000, 37):
        assert bodies(SegmentedLog(files, tmp_path / str(n))) == [body_of(n), body_of(n + 1)]
    assert 0 < open_below(tmp_path) <= 64


def test_a_dirty_file_is_synced_before_its_descriptor_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("nexo.storage.disk.files._syncfs", synced.append)
    files = OsFiles(max_open_files=2)
    for name in "abc":
        files.open(tmp_path / name, create=True).write_at(0, [b"1"])
    assert len(synced) == 1


def test_a_file_in_use_is_not_the_one_closed(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=3)
    busy = files.open(tmp_path / "busy", create=True)
    descriptor = busy.fileno()
    for n in range(20):
        files.open(tmp_path / str(n), create=True)
        assert busy.fileno() == descriptor


def test_no_space_is_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC I7
    log = SegmentedLog(OsFiles(), tmp_path / "log")
    fill(log, range(3))
    real = os.pwritev

    def full(fd: int, parts: Sequence[Buffer], position: int) -> int:
        real(fd, [b"".join(parts)[:20]], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(DiskFull, match="free some"):
        log.append(*entry(3))
    monkeypatch.undo()
    fill(log, range(3, 5))
    assert bodies(SegmentedLog(OsFiles(), tmp_path / "log")) == [body_of(n) for n in range(5)]


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [parts[0][:3]], at))
    file = OsFiles().open(tmp_path / "a", create=True)
    assert file.write_at(0, [b"12345", b"6789"]) == 9
    assert file.read_at(0, 99) == b"123456789"


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_failed_sync_is_final_for_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    files = OsFiles()
    one, other = (files.open(tmp_path / name, create=True) for name in "ab")
    one.write_at(0, [b"1"])
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ReadOnly, match="Input/output error"):
        one.sync()
    monkeypatch.undo()
    for sync in (one.sync, other.sync, lambda: files.sync_all(tmp_path)):
        with pytest.raises(ReadOnly):
            sync()
    with pytest.raises(ReadOnly):
        files.rename(tmp_path / "a", tmp_path / "c")


def test_a_descriptor_outlives_the_sync_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, leave = Event(), Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        inside.set()
        assert leave.wait(10)
        real(fd)

    files = OsFiles(max_open_files=1)
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1"])
    monkeypatch.setattr(os, "fdatasync", slow)
    thread = Thread(target=file.sync)
    thread.start()
    assert inside.wait(10)
    file.close()
    files.open(tmp_path / "b", create=True)
    leave.set()
    thread.join()
    files.check()
    assert file.synced_bytes == 1


def test_a_sync_of_all_passes_over_files_that_are_being_closed_or_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may sync all between a descriptor's end and the file's being forgotten."""
    files = OsFiles()
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1"])
    forget, opening = files.open_files.discard, os.open

    def sync_first(closed: OsFile) -> None:
        files.sync_all(tmp_path)
        forget(closed)

    def sync_before(path: Path, flags: int, mode: int = 0o777) -> int:
        monkeypatch.setattr(os, "open", opening)
        files.sync_all(tmp_path)
        return opening(path, flags, mode)

    monkeypatch.setattr(OpenFiles, "discard", lambda _, closed: sync_first(closed))
    file.close()
    monkeypatch.setattr(os, "open", sync_before)
    assert file.read_at(0, 9) == b"1"
    written: list[File] = []
    files.on_dirty = written.append
    file.write_at(1, [b"2"])
    assert written == [file]
    file.sync()
    assert file.synced_bytes == 2


def test_writes_during_a_sync_are_marked_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles()
    flusher = Flusher(files, tmp_path)
    flusher.sync()
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1"])
    real = os.fdatasync

    def meanwhile(fd: int) -> None:
        real(fd)
        file.write_at(1, [b"2"])

    monkeypatch.setattr(os, "fdatasync", meanwhile)
    flusher.sync()
    assert file.synced_bytes == 1
    assert flusher.dirty
    monkeypatch.undo()
    flusher.sync()
    assert file.synced_bytes == 2
    assert not flusher.dirty


def test_new_names_are_synced_up_to_the_first_known_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("nexo.storage.disk.files.sync_folder", synced.append)
    files = OsFiles()
    files.make_folder(tmp_path / "a/b")
    file: OsFile = files.open(tmp_path / "a/b/c", create=True)
    file.write_at(0, [b"1"])
    file.sync()
    file.write_at(0, [b"2"])
    file.sync()
    assert synced == [tmp_path / "a/b", tmp_path / "a", tmp_path]


class Held:
    """A system call that stops in one thread until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = Event(), Event()

    def __call__(self, _argument: object) -> None:
        self.begun.set()
        assert self.go.wait(20)


def returns_early(first: Thread, held: Held, second: Thread) -> bool:
    """Whether ``second`` returns while ``first`` is still within its system call."""
    first.start()
    assert held.begun.wait(20)
    second.start()
    second.join(0.1)
    early = not second.is_alive()
    held.go.set()
    first.join(20)
    second.join(20)
    return early


def test_a_sync_waits_for_one_of_the_same_file_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding F6."""
    file = OsFiles().open(tmp_path / "f", create=True)
    file.write_at(0, [b"1"])
    held = Held()
    monkeypatch.setattr(os, "fdatasync", held)
    assert not returns_early(Thread(target=file.sync), held, Thread(target=file.sync))


def test_a_sync_waits_for_one_of_all_files_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding F6, its neighbour."""
    files = OsFiles()
    file = files.open(tmp_path / "f", create=True)
    file.write_at(0, [b"1"])
    held = Held()
    monkeypatch.setattr("nexo.storage.disk.files._syncfs", held)
    everything = Thread(target=files.sync_all, args=(tmp_path,))
    assert not returns_early(everything, held, Thread(target=file.sync))


def test_a_rename_waits_for_a_sync_of_all_files_that_took_its_folder_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding F6, its neighbour: a rename is durable on return."""
    files = OsFiles()
    files.open(tmp_path / "f", create=True)
    held = Held()
    monkeypatch.setattr("nexo.storage.disk.files._syncfs", held)
    everything = Thread(target=files.sync_all, args=(tmp_path,))
    renaming = Thread(target=files.sync_names, args=(tmp_path,))
    assert not returns_early(everything, held, renaming)


def test_a_sync_says_nothing_of_a_file_that_was_cut_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles().open(tmp_path / "f", create=True)
    file.write_at(0, [b"1" * 100])

    def cut(_descriptor: int) -> None:
        file.truncate(10)
        file.write_at(10, [b"2" * 90])

    monkeypatch.setattr(os, "fdatasync", cut)
    file.sync()
    assert file.synced_bytes <= 10
    assert file.dirty


def test_folders_are_made_for_their_owner_only(tmp_path: Path) -> None:
    """Finding T18."""
    OsFiles().make_folder(tmp_path / "data" / "queue")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("data", "data/queue")]
    assert modes == [0o700, 0o700]
