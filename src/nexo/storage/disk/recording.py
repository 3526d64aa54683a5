"""Files that record each change, so that it can be repeated elsewhere.

`RecordingFiles` wraps any `nexo.storage.ports.Files` and keeps every successful operation
below one folder, in order. Applying the operations in that order to an empty folder gives
the same files, byte for byte. Syncs are not operations: a group of operations becomes
durable as a whole where it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from nexo.errors import Corrupt
from nexo.model import Buffer
from nexo.storage.ports import File, Files, Settles


class FileCreated(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An empty file was created."""

    path: str


class FileWritten(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Bytes of a file were written."""

    path: str
    position: int
    data: bytes


class Truncated(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A file's length was changed."""

    path: str
    size: int


class Renamed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A file or folder was renamed; a file of the new name was replaced."""

    source: str
    target: str


class Removed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A file or a whole folder was removed."""

    path: str


class FolderMade(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A folder was created, with its parents."""

    path: str


Operation: TypeAlias = FileCreated | FileWritten | Truncated | Renamed | Removed | FolderMade
"""Paths are relative to the recorded folder, with ``/`` between their parts."""


def apply(operations: Iterable[Operation], files: Files, root: Path) -> None:
    """Apply the operations to the files below ``root``. Not durable before the next sync."""
    opened: dict[str, File] = {}

    def file(path: str, *, create: bool = False) -> File:
        if path not in opened:
            opened[path] = files.open(_below(root, path), create=create)
        return opened[path]

    def close_all() -> None:
        for each in opened.values():
            each.close()
        opened.clear()

    try:
        for operation in operations:
            match operation:
                case FileCreated(path):
                    file(path, create=True)
                case FileWritten(path, position, data):
                    file(path).write_at(position, [data])
                case Truncated(path, size):
                    file(path).truncate(size)
                case Renamed(source, target):
                    close_all()
                    files.rename(_below(root, source), _below(root, target))
                case Removed(path):
                    close_all()
                    files.remove(_below(root, path))
                case FolderMade(path):
                    files.make_folder(_below(root, path))
    finally:
        close_all()


def _below(root: Path, path: str) -> Path:
    """The full path; `Corrupt` if it leads out of ``root``: operations come from elsewhere."""
    if path.startswith("/") or ".." in path.split("/"):
        raise Corrupt(f"a file operation names {path!r}, outside the data folder")
    return root / path


class RecordingFile:
    """A file whose changes are recorded."""

    __slots__ = ("_file", "_name", "_record", "close", "path", "read_at", "size", "sync")

    def __init__(self, file: File, name: str, record: Callable[[Operation], None]) -> None:
        self.path = file.path
        self.read_at, self.size = file.read_at, file.size
        self.sync, self.close = file.sync, file.close
        self._file = file
        self._name = name
        self._record = record

    @property
    def synced_bytes(self) -> int:
        return self._file.synced_bytes

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        """Write and record; a rejected write is not recorded."""
        written = self._file.write_at(position, parts)
        self._record(FileWritten(self._name, position, b"".join(parts)))
        return written

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._record(Truncated(self._name, size))


def _of_files(name: str) -> Any:
    """An attribute of the files behind `RecordingFiles`."""

    def read(recording: RecordingFiles) -> Any:
        return getattr(recording._files, name)

    def write(recording: RecordingFiles, value: Any) -> None:
        setattr(recording._files, name, value)

    return property(read, write)


class RecordingFiles:
    """`Files` that record every change below ``root``. One thread owns it, as it owns the files."""

    on_dirty: Callable[[File], None] = _of_files("on_dirty")
    on_unsettled: Callable[[Settles], None] = _of_files("on_unsettled")
    boot_id: str = _of_files("boot_id")

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self.list, self.size = files.list, files.size
        self.sync_all, self.free_bytes = files.sync_all, files.free_bytes
        self.freeze = files.freeze
        self._root = root
        self._operations: list[Operation] = []
        self._paused = False
        self.changed: set[str] = set()
        """Files that were written or got their name since this was last emptied."""
        self.recorded_bytes = 0
        """Data in operations that were not taken yet."""
        self.on_first: Callable[[], None] = lambda: None
        """Called with the first operation after a `take`, by the thread that owns the files."""

    def take(self) -> list[Operation]:
        """The operations since the last call."""
        taken, self._operations, self.recorded_bytes = self._operations, [], 0
        return taken

    def pause(self) -> None:
        """Stop recording, and drop the operations that were not taken."""
        self._paused = True
        self.take()

    @property
    def recorded(self) -> bool:
        return bool(self._operations)

    def _record(self, operation: Operation) -> None:
        if self._paused:
            return
        self._operations.append(operation)
        if len(self._operations) == 1:
            self.on_first()
        if isinstance(operation, FileWritten):
            self.recorded_bytes += len(operation.data)
            self.changed.add(operation.path)
        elif isinstance(operation, Renamed):
            self._note_renamed(operation.target)
        elif isinstance(operation, FileCreated | Truncated):
            self.changed.add(operation.path)

    def _note_renamed(self, path: str) -> None:
        """Everything under the new name counts as changed."""
        self.changed.add(path)
        for name in self._files.list(self._root / path):
            self._note_renamed(f"{path}/{name}")

    def _name(self, path: Path) -> str | None:
        """The path as recorded; None if it is outside ``root``."""
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else None

    # -- files ----------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open; creating a file that did not exist is recorded."""
        name = self._name(path)
        if name is None:
            return self._files.open(path, create=create)
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            if not create:
                raise
            file = self._files.open(path, create=True)
            self._record(FileCreated(name))
        return RecordingFile(file, name, self._record)

    def make_folder(self, folder: Path) -> None:
        self._files.make_folder(folder)
        if (name := self._name(folder)) is not None:
            self._record(FolderMade(name))

    def remove(self, path: Path) -> None:
        self._files.remove(path)
        if (name := self._name(path)) is not None:
            self._record(Removed(name))

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically and durably; either both names are below ``root`` or neither is."""
        self._files.rename(source, target)
        old, new = self._name(source), self._name(target)
        if (old is None) != (new is None):
            raise ValueError(f"{source} -> {target}: a rename must not cross {self._root}")
        if old is not None and new is not None:
            self._record(Renamed(old, new))
