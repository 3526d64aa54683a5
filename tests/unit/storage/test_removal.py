"""A removed folder is gone at once, and a mark stays until its owner has recorded the deletion."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nexo.errors import ReadOnly
from nexo.storage.removal import Removals
from tests.faulty_files import FaultyFiles
from tests.memory_files import MemoryFiles

PARENT = Path("/data")


def filled(files: MemoryFiles | FaultyFiles) -> Path:
    folder = PARENT / "s~2a"
    for part in ("0", "1"):
        files.make_folder(folder / part)
        files.open(folder / part / "log", create=True).close()
    return folder


def test_the_next_start_removes_what_was_set_aside() -> None:
    files = MemoryFiles()
    Removals(files, PARENT).set_aside(filled(files), "2a")
    assert files.list(PARENT) == [".removed-2a"]
    Removals(files, PARENT).finish()
    assert files.list(PARENT) == []


def test_a_mark_is_empty_and_stays_until_it_is_removed() -> None:
    files = MemoryFiles()
    Removals(files, PARENT).mark(filled(files), "2a")
    again = Removals(files, PARENT)
    again.finish()
    assert list(again.marks()) == ["2a"]
    assert files.list(PARENT) == ["deleted.2a"]
    assert files.list(PARENT / "deleted.2a") == []
    again.unmark("2a")
    assert list(again.marks()) == []


def test_a_mark_that_a_crash_left_full_is_emptied() -> None:
    files = MemoryFiles()
    files.rename(filled(files), PARENT / "deleted.2a")
    assert list(Removals(files, PARENT).marks()) == ["2a"]
    assert files.list(PARENT / "deleted.2a") == []


def test_a_folder_that_was_never_made_can_be_marked() -> None:
    files = MemoryFiles()
    Removals(files, PARENT).mark(PARENT / "s~1", "1")
    assert list(Removals(files, PARENT).marks()) == ["1"]


def test_a_disk_error_leaves_the_folder_or_its_mark() -> None:
    for call in range(1, 6):
        files = FaultyFiles()
        folder = filled(files)
        files.fail_call, files.fail_errno = files.calls + call, errno.EIO
        removals = Removals(files, PARENT)
        try:
            removals.mark(folder, "2a")
        except OSError:
            assert files.list(PARENT) == ["s~2a"]
            continue
        except ReadOnly:  # the rename may not be durable, and nothing is acknowledged any more
            assert files.list(PARENT) == ["deleted.2a"]
            continue
        assert list(removals.marks()) == ["2a"]
        assert files.list(PARENT / "deleted.2a") == []


@pytest.mark.parametrize("name", ["s~2a", "deleted", ".removed"])
def test_other_folders_are_left_alone(name: str) -> None:
    files = MemoryFiles()
    files.make_folder(PARENT / name)
    removals = Removals(files, PARENT)
    removals.finish()
    assert list(removals.marks()) == []
    assert files.list(PARENT) == [name]
