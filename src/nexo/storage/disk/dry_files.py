"""Files that are read but never changed: each change is recorded instead of made."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from nexo.model import Buffer
from nexo.storage.disk.files import boot_id
from nexo.storage.ports import File, Frozen, Settles

FileVerb: TypeAlias = Literal["write", "cut", "remove", "rename"]


@dataclass(frozen=True, slots=True)
class DryChange:
    """A change that would have been made."""

    verb: FileVerb
    path: Path
    size_bytes: int = 0
    """Bytes that would have been written or cut off."""


class DryFile:
    """One file. Reads see its cuts and what was written within its length."""

    def __init__(self, files: DryFiles, path: Path, size: int) -> None:
        self.path = path
        self.synced_bytes = size
        self._files = files
        self._size = size

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        self._files.changes.append(DryChange("write", self.path, len(data)))
        if position + len(data) <= self._size:
            self._files.patches.setdefault(self.path, []).append((position, data))
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes, none of them past a simulated cut."""
        length = min(size, self._size - position)
        if length <= 0:
            return b""
        with self.path.open("rb") as file:
            file.seek(position)
            found = file.read(length)
        for at, data in self._files.patches.get(self.path, ()):
            first, end = max(at, position), min(at + len(data), position + length)
            if first < end:
                patch = data[first - at : end - at]
                found = found[: first - position] + patch + found[end - position :]
        return found

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        if size < self._size:
            self._files.changes.append(DryChange("cut", self.path, self._size - size))
            self._size = size

    def sync(self) -> None: ...

    def close(self) -> None: ...


class DryFiles:
    """The real file system, as `nexo.storage.ports.Files`, without touching it."""

    def __init__(self) -> None:
        self.on_dirty: Callable[[File], None] = lambda file: None
        self.on_unsettled: Callable[[Settles], None] = lambda journal: None
        self.boot_id = boot_id()
        self.changes: list[DryChange] = []
        self.patches: dict[Path, list[tuple[int, bytes]]] = {}
        """The bytes that would have been written within the length of each file."""
        self._made: set[Path] = set()

    def open(self, path: Path, *, create: bool = False) -> DryFile:
        """Open for reading; a created file stays empty."""
        try:
            return DryFile(self, path, path.stat().st_size)
        except FileNotFoundError:
            if not create and path not in self._made:
                raise
            self._made.add(path)
            return DryFile(self, path, 0)

    def list(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def make_folder(self, folder: Path) -> None: ...

    def remove(self, path: Path) -> None:
        if path.exists():
            self.changes.append(DryChange("remove", path))

    def rename(self, source: Path, target: Path) -> None:
        self.changes.append(DryChange("rename", target))

    def size(self, path: Path) -> int:
        return 0 if path in self._made else path.stat().st_size

    def sync_all(self, folder: Path) -> None: ...

    def free_bytes(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free

    def freeze(self, folder: Path) -> Frozen:
        raise io.UnsupportedOperation("freezing would add names to the folder")
