"""One suite for every `Files`: the real file system, memory, and the faulty one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nexo.storage.disk.files import OsFiles
from nexo.storage.ports import File, Files
from tests.faulty_files import FaultyFiles
from tests.memory_files import MemoryFiles

MAKERS: dict[str, Callable[[], Files]] = {
    "os": OsFiles,
    "os, few open": lambda: OsFiles(max_open_files=2),
    "memory": MemoryFiles,
    "faulty": FaultyFiles,
}


@pytest.fixture(params=MAKERS.values(), ids=list(MAKERS))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    made: Files = request.param()
    made.make_folder(tmp_path)
    return made


def test_what_is_written_is_read_back_from_any_position(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    assert file.write_at(0, [b"hello ", bytearray(b"wide "), memoryview(b"world")]) == 16
    file.write_at(6, [b"WIDE"])
    assert file.read_at(0, 100) == b"hello WIDE world"
    assert file.read_at(11, 5) == b"world"
    assert file.read_at(16, 5) == b""
    assert file.size() == files.size(tmp_path / "a") == 16


def test_more_parts_than_one_system_call_takes_are_all_written(
    files: Files, tmp_path: Path
) -> None:
    file = files.open(tmp_path / "a", create=True)
    assert file.write_at(0, [b"ab"] * 3_000) == 6_000
    assert file.read_at(0, 10_000) == b"ab" * 3_000


def test_a_gap_before_a_write_reads_as_zeros(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write_at(4, [b"x"])
    assert file.read_at(0, 9) == b"\0\0\0\0x"


def test_truncate_cuts(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"abcdef"])
    file.truncate(2)
    assert file.read_at(0, 9) == b"ab"


def test_an_absent_file_is_an_error_unless_created(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.size(tmp_path / "a")
    files.open(tmp_path / "a", create=True)
    assert files.open(tmp_path / "a").size() == 0


def test_folders_are_made_with_their_parents_and_listed_sorted(
    files: Files, tmp_path: Path
) -> None:
    files.make_folder(tmp_path / "b/c")
    files.make_folder(tmp_path / "b/c")
    files.open(tmp_path / "a", create=True)
    assert files.list(tmp_path) == ["a", "b"]
    assert files.list(tmp_path / "b") == ["c"]
    assert files.list(tmp_path / "none") == []


def test_remove_takes_files_and_whole_folders_and_forgives_absence(
    files: Files, tmp_path: Path
) -> None:
    files.make_folder(tmp_path / "b/c")
    files.open(tmp_path / "b/c/x", create=True).close()
    files.open(tmp_path / "a", create=True).close()
    for name in ("a", "b", "none"):
        files.remove(tmp_path / name)
    assert files.list(tmp_path) == []


def test_rename_replaces_the_target(files: Files, tmp_path: Path) -> None:
    for name in ("old", "new"):
        files.open(tmp_path / name, create=True).write_at(0, [name.encode()])
    files.rename(tmp_path / "new", tmp_path / "old")
    assert files.open(tmp_path / "old").read_at(0, 9) == b"new"
    assert files.list(tmp_path) == ["old"]


def test_rename_moves_a_folder_with_all_in_it(files: Files, tmp_path: Path) -> None:
    files.make_folder(tmp_path / "old/deep")
    files.open(tmp_path / "old/deep/a", create=True).write_at(0, [b"1"])
    files.rename(tmp_path / "old", tmp_path / "new")
    assert files.list(tmp_path) == ["new"]
    assert files.open(tmp_path / "new/deep/a").read_at(0, 9) == b"1"
    with pytest.raises(FileNotFoundError):
        files.rename(tmp_path / "old", tmp_path / "other")


def test_a_file_reports_the_first_write_after_each_sync(files: Files, tmp_path: Path) -> None:
    marked: list[File] = []
    files.on_dirty = marked.append
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1"])
    file.write_at(1, [b"2"])
    assert marked == [file]
    file.sync()
    file.write_at(2, [b"3"])
    files.sync_all(tmp_path)
    file.write_at(3, [b"4"])
    assert marked == [file, file, file]


def test_a_sync_says_how_much_of_the_file_is_durable(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1234"])
    assert file.synced_bytes == 0
    file.sync()
    file.write_at(4, [b"5"])
    assert file.synced_bytes == 4
    file.truncate(3)
    assert file.synced_bytes == 3


def test_a_closed_file_serves_again_and_can_still_be_synced(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1234"])
    file.close()
    file.sync()
    assert file.read_at(0, 4) == b"1234"
    file.close()
    files.remove(tmp_path / "a")


def test_syncing_a_removed_file_is_no_error(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write_at(0, [b"1234"])
    file.close()
    files.remove(tmp_path / "a")
    file.sync()


def test_there_is_free_space(files: Files, tmp_path: Path) -> None:
    assert files.free_bytes(tmp_path / "not yet made") > 0
