"""Files that note changes instead of making them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.storage.disk.dry_files import DryChange, DryFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(b"abcdef")
    return file


def test_writes_are_noted_and_change_nothing(path: Path) -> None:
    files = DryFiles()
    file = files.open(path)
    assert file.write_at(0, [b"xy", b"z"]) == 3
    files.remove(path)
    files.rename(path, path.with_name("other"))
    assert path.read_bytes() == b"abcdef"
    assert files.changes == [
        DryChange("write", path, 3),
        DryChange("remove", path),
        DryChange("rename", path.with_name("other")),
    ]


def test_a_cut_file_seems_shorter(path: Path) -> None:
    files = DryFiles()
    file = files.open(path)
    file.truncate(4)
    assert (file.size(), file.read_at(2, 10), file.read_at(4, 1)) == (4, b"cd", b"")
    assert files.changes == [DryChange("cut", path, 2)]
    assert path.read_bytes() == b"abcdef"


def test_a_file_that_is_not_there_is_made_only_in_name(tmp_path: Path) -> None:
    files = DryFiles()
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "new")
    assert files.open(tmp_path / "new", create=True).size() == 0
    assert files.open(tmp_path / "new").read_at(0, 10) == b""
    assert files.list(tmp_path) == []
