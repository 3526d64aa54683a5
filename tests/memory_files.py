"""Files in memory: the file system of tests and of the guard of speed, without a disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nexo.model import Buffer
from nexo.storage.ports import File, Frozen, Settles
from tests import frozen_files


def _ignore(_changed: File | Settles) -> None:
    """The default callback: nobody listens for dirty files or unsettled journals."""


class MemoryFile:
    """A handle on bytes that outlive it, as an inode outlives its descriptor."""

    __slots__ = ("_content", "_files", "path", "synced_bytes")

    def __init__(self, files: MemoryFiles, path: Path, content: bytearray) -> None:
        self.path = path
        self.synced_bytes = 0
        self._files = files
        self._content = content

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        self._touch()
        put(self._content, position, data)
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._content[position : position + size])

    def size(self) -> int:
        return len(self._content)

    def truncate(self, size: int) -> None:
        self._touch()
        cut(self._content, size)
        self.synced_bytes = min(self.synced_bytes, size)

    def sync(self) -> None:
        """Nothing in memory survives a crash; this only records which bytes would."""
        self._files.dirty.discard(self)
        self.synced_bytes = len(self._content)

    def close(self) -> None: ...

    def _touch(self) -> None:
        if self not in self._files.dirty:
            self._files.dirty.add(self)
            self._files.on_dirty(self)


class MemoryFiles:
    """A file system that lives as long as this object."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.on_dirty: Callable[[File], None] = _ignore
        self.on_unsettled: Callable[[Settles], None] = _ignore
        self.boot_id = "memory"
        self.capacity_bytes = capacity_bytes
        self.dirty: set[MemoryFile] = set()
        self._contents: dict[Path, bytearray] = {}
        self._folders: set[Path] = set()

    def open(self, path: Path, *, create: bool = False) -> File:
        if path not in self._contents:
            if not create or path.parent not in self._folders:
                raise FileNotFoundError(f"no file {path}")
            self._contents[path] = bytearray()
        return MemoryFile(self, path, self._contents[path])

    def list(self, folder: Path) -> list[str]:
        known = (*self._contents, *self._folders)
        return sorted({path.name for path in known if path.parent == folder != path})

    def make_folder(self, folder: Path) -> None:
        self._folders |= {folder, *folder.parents}

    def remove(self, path: Path) -> None:
        for known in [known for known in self._contents if known.is_relative_to(path)]:
            del self._contents[known]
        self._folders = {known for known in self._folders if not known.is_relative_to(path)}

    def rename(self, source: Path, target: Path) -> None:
        if source not in self._contents and source not in self._folders:
            raise FileNotFoundError(f"no file {source}")
        self._contents = {moved(path, source, target): c for path, c in self._contents.items()}
        self._folders = {moved(path, source, target) for path in self._folders}

    def size(self, path: Path) -> int:
        if path not in self._contents:
            raise FileNotFoundError(f"no file {path}")
        return len(self._contents[path])

    def sync_all(self, folder: Path) -> None:
        for file in tuple(self.dirty):
            file.sync()

    def free_bytes(self, folder: Path) -> int:
        """What is left of the capacity."""
        return max(0, self.capacity_bytes - sum(map(len, self._contents.values())))

    def freeze(self, folder: Path) -> Frozen:
        return frozen_files.freeze(self, folder)


def moved(path: Path, source: Path, target: Path) -> Path:
    """Where ``path`` is once ``source`` has become ``target``."""
    return target / path.relative_to(source) if path.is_relative_to(source) else path


def put(content: bytearray, position: int, data: bytes) -> None:
    """Write like a file does: a gap before ``position`` fills with zeros."""
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def cut(content: bytearray, size: int) -> None:
    """Truncate like a file does: a longer size fills with zeros."""
    if size > len(content):
        content.extend(bytes(size - len(content)))
    del content[size:]
