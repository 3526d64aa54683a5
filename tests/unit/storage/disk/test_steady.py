"""Files that try again what may pass, and whose errors are typed (SPEC Q2, Q3)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nexo.errors import DiskFailed, DiskFull, NexoError
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.steady import TRIES, SteadyFiles
from tests.failing_calls import FailingFiles, Fault, Kind
from tests.memory_files import MemoryFiles

FOLDER = Path("/data")


def prepared(calls: int, code: int, kind: Kind) -> tuple[FailingFiles, SteadyFiles]:
    """Files with one of eight bytes; the next ``calls`` of a kind fail."""
    files = FailingFiles(MemoryFiles())
    files.make_folder(FOLDER)
    files.open(FOLDER / "a", create=True).write_at(0, [b"12345678"])
    files.fault = Fault(1, 1 << 30, code=code, kinds=frozenset({kind}), times=calls)
    return files, SteadyFiles(files)


def look(files: SteadyFiles) -> object:
    file = files.open(FOLDER / "a")
    found = file.read_at(0, 8), file.size(), files.size(FOLDER / "a"), files.list(FOLDER)
    file.truncate(8)
    files.make_folder(FOLDER)
    files.remove(FOLDER / "b")
    files.rename(FOLDER / "a", FOLDER / "c")
    assert files.free_bytes(FOLDER) > 0
    return found


KINDS: list[Kind] = [
    "open", "read", "size", "list", "truncate", "make", "remove", "rename", "free",
]  # fmt: skip


@pytest.mark.parametrize("code", [errno.EINTR, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("kind", KINDS)
def test_what_may_pass_is_tried_again(kind: Kind, code: int) -> None:
    files, steady = prepared(TRIES - 1, code, kind)
    assert look(steady) == (b"12345678", 8, 8, ["a"])
    assert len(files.failed) == TRIES - 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_pass_is_typed(kind: Kind) -> None:
    files, steady = prepared(TRIES, errno.EIO, kind)
    with pytest.raises(DiskFailed, match=r"disk refused a call on \w+ \(Input/output error\)"):
        look(steady)
    assert len(files.failed) == TRIES


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.ENOSPC, DiskFull), (errno.EIO, DiskFailed), (errno.EROFS, DiskFailed)],
)
def test_a_write_is_not_repeated(code: int, error: type[NexoError]) -> None:
    files, steady = prepared(1, code, "write")
    with pytest.raises(error):
        steady.open(FOLDER / "a").write_at(0, [b"?"])
    assert len(files.failed) == 1


def test_an_absent_file_is_an_answer() -> None:
    _, steady = prepared(0, errno.EIO, "open")
    with pytest.raises(FileNotFoundError):
        steady.open(FOLDER / "b")


def test_a_process_without_free_descriptors_closes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC E1: files that nobody uses give way when the process may open no more."""
    files = OsFiles()
    opened = [files.open(tmp_path / name, create=True) for name in "abc"]
    for file in opened:
        file.write_at(0, [b"1"])
        file.sync()
    original = os.open

    def limited(path: Path, flags: int, mode: int = 0) -> int:
        if len(files.open_files) >= len(opened):
            raise OSError(errno.EMFILE, "Too many open files")
        return original(path, flags, mode)

    monkeypatch.setattr("nexo.storage.disk.files.os.open", limited)
    assert files.open(tmp_path / "d", create=True).size() == 0
    assert [file.read_at(0, 1) for file in opened] == [b"1"] * 3
