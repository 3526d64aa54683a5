"""Files of which chosen calls fail, as an operating system fails them.

Every call is counted, whether it reads or writes. A refused write leaves what a disk may leave:
nothing, half of the bytes, or all of them. A failed sync is final, as the port says.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nexo.errors import DiskFull, ReadOnly
from nexo.model import Buffer
from nexo.storage.ports import File, Files, Frozen, Settles
from tests import frozen_files

Kind: TypeAlias = Literal[
    "open", "read", "write", "truncate", "sync", "size", "list", "make", "remove", "rename",
    "sync_all", "free",
]  # fmt: skip
Remains: TypeAlias = Literal["nothing", "half", "all"]
"""How much of a refused write is on the disk."""


@dataclass(frozen=True)
class Fault:
    """Calls ``first`` to ``last``, counted from 1, fail.

    Only those of ``kinds``, if it has any, and only on files with this ``suffix``.
    """

    first: int
    last: int
    code: int = errno.EIO
    kinds: frozenset[Kind] = frozenset()
    remains: Remains = "nothing"
    suffix: str = ""
    times: int = 1 << 30
    """How many calls may fail, those that failed before included."""

    def hits(self, call: int, kind: Kind, path: Path) -> bool:
        """Whether it makes this call fail."""
        meant = (not self.kinds or kind in self.kinds) and path.name.endswith(self.suffix)
        return meant and self.first <= call <= self.last


class FailingFile:
    """A file of `FailingFiles`."""

    def __init__(self, files: FailingFiles, file: File) -> None:
        self.path = file.path
        self._files = files
        self._file = file

    @property
    def synced_bytes(self) -> int:
        return self._file.synced_bytes

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)

        def leave(remains: Remains) -> None:
            size = {"nothing": 0, "half": len(data) // 2, "all": len(data)}[remains]
            if size:
                self._file.write_at(position, [data[:size]])

        self._files.step("write", self.path, leave)
        return self._file.write_at(position, [data])

    def read_at(self, position: int, size: int) -> bytes:
        self._files.step("read", self.path)
        return self._file.read_at(position, size)

    def size(self) -> int:
        self._files.step("size", self.path)
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._files.step("truncate", self.path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._files.step("sync", self.path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def _of_files(name: str) -> Any:
    def read(failing: FailingFiles) -> Any:
        return getattr(failing.files, name)

    def write(failing: FailingFiles, value: Any) -> None:
        setattr(failing.files, name, value)

    return property(read, write)


class FailingFiles:
    """Wraps other files; see the module."""

    on_dirty: Callable[[File], None] = _of_files("on_dirty")
    on_unsettled: Callable[[Settles], None] = _of_files("on_unsettled")
    boot_id: str = _of_files("boot_id")

    def __init__(self, files: Files, fault: Fault | None = None) -> None:
        self.files = files
        self.fault = fault
        self.calls: list[tuple[Kind, Path]] = []
        self.failed: list[tuple[Kind, Path]] = []
        self._broken: ReadOnly | None = None

    @property
    def is_broken(self) -> bool:
        """Whether a sync has failed."""
        return self._broken is not None

    def step(
        self, kind: Kind, path: Path, leave: Callable[[Remains], None] = lambda _: None
    ) -> None:
        """Count a call, and fail it if it is to fail."""
        final = kind in {"sync", "sync_all"}
        if self._broken is not None and final:
            raise self._broken
        self.calls.append((kind, path))
        fault = self.fault
        if (
            fault is None
            or len(self.failed) >= fault.times
            or not fault.hits(len(self.calls), kind, path)
        ):
            return
        self.failed.append((kind, path))
        leave(fault.remains)
        if final:
            self._broken = ReadOnly("a sync to disk failed: restart after checking the disk")
            raise self._broken
        if kind == "write" and fault.code == errno.ENOSPC:
            raise DiskFull(f"no space left to write {path.name}: free some")
        raise OSError(fault.code, os.strerror(fault.code))

    # -- files ----------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> File:
        self.step("open", path)
        return FailingFile(self, self.files.open(path, create=create))

    def list(self, folder: Path) -> list[str]:
        self.step("list", folder)
        return self.files.list(folder)

    def make_folder(self, folder: Path) -> None:
        self.step("make", folder)
        self.files.make_folder(folder)

    def remove(self, path: Path) -> None:
        self.step("remove", path)
        self.files.remove(path)

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", source)
        self.files.rename(source, target)

    def size(self, path: Path) -> int:
        self.step("size", path)
        return self.files.size(path)

    def sync_all(self, folder: Path) -> None:
        self.step("sync_all", folder)
        self.files.sync_all(folder)

    def free_bytes(self, folder: Path) -> int:
        self.step("free", folder)
        return self.files.free_bytes(folder)

    def freeze(self, folder: Path) -> Frozen:
        return frozen_files.freeze(self, folder)
