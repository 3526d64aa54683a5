"""A frozen folder keeps names and files; what a killed process left is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.config import Settings
from nexo.model import Broker
from nexo.server.host import Host
from nexo.storage.disk import freezing
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.freezing import freeze, remove_leftovers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s" / "0").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "s" / "0" / "log").write_bytes(b"abc")
    (tmp_path / "state").write_bytes(b"old")
    return tmp_path


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_names_and_files_are_those_of_the_moment(folder: Path) -> None:
    frozen = freeze(folder)
    (folder / "aside").write_bytes(b"new")
    (folder / "aside").rename(folder / "state")
    (folder / "s" / "0" / "log").unlink()
    found = dict(frozen.walk())
    assert {name for name, path in found.items() if path is None} == {"s", "s/0", "empty"}
    files = {name: path.read_bytes() for name, path in found.items() if path is not None}
    assert files == {"s/0/log": b"abc", "state": b"old"}
    assert sorted(frozen.files) == [("s/0/log", 3), ("state", 3)]


def test_one_frozen_folder_is_not_in_another(folder: Path) -> None:
    first = freeze(folder)
    second = freeze(folder)
    assert sorted(second.files) == sorted(first.files)
    first.close()
    assert all(path is None or path.exists() for _, path in second.walk())


def test_what_is_left_out_is_left_out(folder: Path) -> None:
    frozen = freeze(folder, lambda entry: entry.name == "s")
    assert [name for name, _ in frozen.walk()] == ["empty", "state"]


def test_nothing_is_left_if_a_file_cannot_be_linked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(freezing, "link_or_copy", refuse)
    with pytest.raises(OSError, match="No space"):
        freeze(folder)
    assert hidden(folder) == []


@pytest.mark.parametrize("left", [".frozen-1", ".base-17", ".backup-1-9"])
def test_what_a_killed_process_left_is_removed(folder: Path, left: str) -> None:
    (folder / left / "s").mkdir(parents=True)
    (folder / left / "s" / "log").write_bytes(b"abc")
    assert sorted(freeze(folder).files) == [("s/0/log", 3), ("state", 3)]
    remove_leftovers(folder)
    assert hidden(folder) == []


async def test_a_start_removes_it(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    left = settings.folder(Broker.QUEUE) / ".backup-1-9"
    left.mkdir(parents=True)
    host = Host(settings, OsFiles, [Broker.QUEUE])
    host.open()
    assert not left.exists()
    await host.close()
