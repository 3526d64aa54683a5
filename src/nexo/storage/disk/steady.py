"""Files that try again what may pass, and whose errors are typed.

A call that changes nothing, or the same thing twice, is tried again at once when the operating
system refuses it for a reason that may pass: an interruption, no free descriptor, a read error.
A write is not: the log undoes it, and its caller decides. Neither is a sync: a failed one is
final (`nexo.storage.disk.flusher`). What is still refused is raised as `DiskFull` or
`DiskFailed`. `FileNotFoundError` and the like are answers, not failures: they stay as they are.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nexo.errors import DiskFailed, DiskFull, NexoError
from nexo.model import Buffer
from nexo.storage.ports import File, Files, Settles

T = TypeVar("T")

TRIES = 3
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = frozenset({errno.EINTR, errno.EAGAIN, errno.EIO, errno.EMFILE, errno.ENFILE})
_ANSWERS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def typed(error: OSError, what: str) -> NexoError:
    """The client's error for a refused call on a file."""
    reason = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        return DiskFull(f"no space left to write {what}: free some")
    return DiskFailed(f"the disk refused a call on {what} ({reason}): try again")


def _tried(call: Callable[[], T], path: Path) -> T:
    """The result of a call that may be repeated."""
    for again in range(TRIES - 1, -1, -1):
        try:
            return call()
        except _ANSWERS:
            raise
        except OSError as error:
            if not again or error.errno not in _PASSING:
                raise typed(error, path.name) from error
    raise AssertionError("the last try returns or raises")


class SteadyFile:
    """A file of `SteadyFiles`."""

    __slots__ = ("_file", "close", "path", "sync")

    def __init__(self, file: File) -> None:
        self.path = file.path
        self.sync, self.close = file.sync, file.close
        self._file = file

    @property
    def synced_bytes(self) -> int:
        return self._file.synced_bytes

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        try:
            return self._file.write_at(position, parts)
        except OSError as error:
            raise typed(error, self.path.name) from error

    def read_at(self, position: int, size: int) -> bytes:
        return _tried(partial(self._file.read_at, position, size), self.path)

    def size(self) -> int:
        return _tried(self._file.size, self.path)

    def truncate(self, size: int) -> None:
        _tried(partial(self._file.truncate, size), self.path)


def _of_files(name: str) -> Any:
    """An attribute of the files behind `SteadyFiles`."""

    def read(steady: SteadyFiles) -> Any:
        return getattr(steady._files, name)

    def write(steady: SteadyFiles, value: Any) -> None:
        setattr(steady._files, name, value)

    return property(read, write)


class SteadyFiles:
    """`Files` as the services use them, over the real ones or a test's."""

    on_dirty: Callable[[File], None] = _of_files("on_dirty")
    on_unsettled: Callable[[Settles], None] = _of_files("on_unsettled")
    boot_id: str = _of_files("boot_id")

    def __init__(self, files: Files) -> None:
        self._files = files
        self.sync_all, self.freeze = files.sync_all, files.freeze

    def open(self, path: Path, *, create: bool = False) -> File:
        return SteadyFile(_tried(partial(self._files.open, path, create=create), path))

    def list(self, folder: Path) -> list[str]:
        return _tried(partial(self._files.list, folder), folder)

    def make_folder(self, folder: Path) -> None:
        _tried(partial(self._files.make_folder, folder), folder)

    def remove(self, path: Path) -> None:
        _tried(partial(self._files.remove, path), path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically and durably. Tried again: a rename that failed changed nothing."""
        _tried(partial(self._files.rename, source, target), target)

    def size(self, path: Path) -> int:
        return _tried(partial(self._files.size, path), path)

    def free_bytes(self, folder: Path) -> int:
        return _tried(partial(self._files.free_bytes, folder), folder)
