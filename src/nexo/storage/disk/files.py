"""Files of the operating system: positioned writes, durable names, a bound on open files.

One thread owns an `OsFiles` and everything opened from it. `OsFile.sync` and `sync_all` may
run in another thread meanwhile: they pin descriptors and never open or close one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from uuid import uuid4

from nexo.errors import DiskFull, ReadOnly
from nexo.model import Buffer
from nexo.storage.disk import freezing
from nexo.storage.disk.open_files import OpenFiles
from nexo.storage.ports import File, Frozen, Settles

_IOV_MAX = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWNER_ONLY = 0o700
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


def _ignore(_changed: File | Settles) -> None:
    """The default callback: nobody listens for dirty files or unsettled journals."""


class OsFile:
    """A file that opens its descriptor on use and may lose it between uses."""

    __slots__ = ("_cuts", "_fd", "_files", "_length", "_syncing", "claimed", "dirty", "path",
                 "pins", "synced_bytes", "used")  # fmt: skip

    def __init__(self, files: OsFiles, path: Path) -> None:
        self.path = path
        self.synced_bytes = 0
        self.used = False
        self.dirty = False
        self.claimed = False
        """A sync of the whole file system that covers its writes is under way."""
        self.pins = 0
        self._syncing = Lock()
        self._cuts = 0
        self._files = files
        self._fd = -1
        self._length = 0
        """Kept here: asking the file system would make it record the exact time of the next write,
        which a sync must then write too."""

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        """Write all parts; `DiskFull` if the device has no room."""
        fd = self._fd if self._fd >= 0 else self.open()
        self.used = True
        size = sum(map(len, parts))
        try:
            written = os.pwritev(fd, parts, position) if len(parts) <= _IOV_MAX else 0
            if written != size:
                self._write_rest(fd, position + written, memoryview(b"".join(parts))[written:])
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise DiskFull(f"no space left to write {self.path.name}: free some") from error
            raise
        self._length = max(self._length, position + size)
        if not self.dirty:
            self._mark_dirty()
        return size

    def _mark_dirty(self) -> None:
        # Marked after the write: marked before, a sync in another thread could clear the mark in
        # between.
        self.dirty = True
        self._files.on_dirty(self)

    @staticmethod
    def _write_rest(fd: int, position: int, rest: memoryview) -> None:
        while rest:
            written = os.pwrite(fd, rest, position)
            position += written
            rest = rest[written:]

    def read_at(self, position: int, size: int) -> bytes:
        fd = self._fd if self._fd >= 0 else self.open()
        self.used = True
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        return data + self.read_at(position + len(data), size - len(data))

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fileno(), size)
        self._length = size
        self._cuts += 1
        self.synced_bytes = min(self.synced_bytes, size)
        if not self.dirty:
            self._mark_dirty()

    def sync(self) -> None:
        """Make the file and the names on its path durable. A failed sync is final for all files.

        If a sync in another thread already covers the same writes, waits for that one instead.
        """
        files = self._files
        with self._syncing:
            if self.claimed:
                files.wait_for_sync_all()
            files.check()
            with files.open_files.lock:
                fd = self._fd
                self.pins += 1
            try:
                if self.dirty:
                    self._sync_writes(fd)
                files.sync_names(self.path.parent)
            except OSError as error:
                raise files.broken(error) from error
            finally:
                with files.open_files.lock:
                    self.pins -= 1

    def _sync_writes(self, fd: int) -> None:
        reached = self.claim()
        if fd >= 0:
            os.fdatasync(fd)
        else:  # the writes were made before the descriptor was closed
            _sync_path(self.path, os.O_RDWR | os.O_CLOEXEC, os.fdatasync)
        self.reached(*reached)

    def claim(self) -> tuple[int, int]:
        """Begin a sync: later writes mark the file again.
        Returns what `reached` needs at its end.
        """
        self.dirty = False
        return self._length, self._cuts

    def reached(self, length: int, cuts: int) -> None:
        """Record a finished sync; it proves nothing about a file that was cut meanwhile."""
        if cuts == self._cuts:
            self.synced_bytes = length

    def fileno(self) -> int:
        """The descriptor, for immediate use: opening another file may close it."""
        self.used = True
        return self._fd if self._fd >= 0 else self.open()

    def open(self, flags: int = 0) -> int:
        """Open the descriptor, within the limit on open files."""
        open_files = self._files.open_files
        open_files.add(self)
        flags |= os.O_RDWR | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags, 0o640)
        except OSError as error:
            open_files.discard(self)
            if error.errno not in _NO_DESCRIPTOR or not open_files.release_idle():
                raise
            self._fd = os.open(self.path, flags, 0o640)
            open_files.add(self)
        self._length = os.fstat(self._fd).st_size
        return self._fd

    def release(self) -> None:
        """Close the descriptor; the next use opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # it is closed all the same, and what was written is synced
                os.close(fd)

    def close(self) -> None:
        """Close the descriptor; a sync running in another thread keeps it open until it ends."""
        if self._fd < 0:
            return
        with self._files.open_files.lock:
            if self.pins:
                self.used = False
                return
            self.release()
        self._files.open_files.discard(self)


class OsFiles:
    """The real file system."""

    def __init__(self, max_open_files: int = 256) -> None:
        self.on_dirty: Callable[[File], None] = _ignore
        self.on_unsettled: Callable[[Settles], None] = _ignore
        self.open_files: OpenFiles[OsFile] = OpenFiles(max_open_files, self._sync_open_files)
        self._changed_folders: set[Path] = set()
        self._names_lock = Lock()
        self._syncing_all = Lock()
        self._error: str | None = None
        self.boot_id = boot_id()

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = OsFile(self, path)
        try:
            file.open()
        except FileNotFoundError:
            if not create:
                raise
            file.open(os.O_CREAT)
            self._changed_folders.add(path.parent)
        return file

    def list(self, folder: Path) -> list[str]:
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - names are what is asked for
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(_OWNER_ONLY)
        except FileExistsError:
            return
        except FileNotFoundError:
            self.make_folder(folder.parent)
            folder.mkdir(_OWNER_ONLY, exist_ok=True)
        self._changed_folders.add(folder.parent)

    def remove(self, path: Path) -> None:
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path)
        self._changed_folders.add(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically and durably. A failed sync of the folder is final."""
        self.check()
        source.rename(target)
        self._changed_folders |= {source.parent, target.parent}
        try:
            self.sync_names(source.parent)
            self.sync_names(target.parent)
        except OSError as error:
            raise self.broken(error) from error

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def sync_all(self, folder: Path) -> None:
        """Sync the file system that ``folder`` lies on. A failure is final."""
        with self._syncing_all, self._names_lock:
            self.check()
            claimed = self._claim_dirty(folder)
            self._changed_folders -= {*filter(lies_in(folder), tuple(self._changed_folders))}
            try:
                _syncfs(folder)
            except OSError as error:
                raise self.broken(error) from error
            finally:
                for file, _ in claimed:
                    file.claimed = False
            for file, reached in claimed:
                file.reached(*reached)

    def wait_for_sync_all(self) -> None:
        """Wait for a running `sync_all` to end."""
        with self._syncing_all:
            pass

    def free_bytes(self, folder: Path) -> int:
        stat = os.statvfs(_existing(folder))
        return stat.f_bavail * stat.f_frsize

    def freeze(self, folder: Path) -> Frozen:
        return freezing.freeze(folder)

    def sync_names(self, folder: Path) -> None:
        """Make the names in ``folder``, and in its new parents, durable."""
        with self._names_lock:
            while folder in self._changed_folders:
                self._changed_folders.discard(folder)
                sync_folder(folder)
                folder = folder.parent

    def check(self) -> None:
        """Raise if an earlier sync failed: the state of the disk is unknown."""
        if self._error is not None:
            raise ReadOnly(self._error)

    def broken(self, error: OSError) -> ReadOnly:
        """Record a failed sync, permanently."""
        self._error = f"a sync to disk failed ({error.strerror}): restart after checking the disk"
        return ReadOnly(self._error)

    def _claim_dirty(self, root: Path) -> Sequence[tuple[OsFile, tuple[int, int]]]:
        """Mark the dirty files under ``root`` as clean; later writes mark them again."""
        with self.open_files.lock:
            within = lies_in(root)
            files = [file for file in self.open_files.dirty() if within(file.path)]
            for file in files:
                file.claimed = True
            return [(file, file.claim()) for file in files]

    def _sync_open_files(self) -> None:
        """Sync all open files, so that closing some cannot lose a write error."""
        folders = {file.path.parent for file in self.open_files.dirty()}
        for folder in {folder.stat().st_dev: folder for folder in folders}.values():
            self.sync_all(_mount_of(folder))


def boot_id() -> str:
    """The kernel's boot id; where it is unavailable, every process counts as a new boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid4().hex


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _mount_of(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.is_mount())


def lies_in(folder: Path) -> Callable[[Path], bool]:
    """Whether a path is within ``folder``; quicker than `Path.is_relative_to` for many."""
    within = str(folder / "_")[:-1]
    return lambda path: path == folder or str(path).startswith(within)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in ``folder`` durable."""
    _sync_path(folder, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def replace_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read, atomically and durably."""
    aside = path.with_suffix(".new")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_folder(path.parent)


def _sync_path(path: Path, flags: int, sync: Callable[[int], None]) -> None:
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:  # removed meanwhile: there is nothing left to sync
        return
    try:
        sync(fd)
    finally:
        os.close(fd)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _syncfs(folder: Path) -> None:
    if not hasattr(_LIBC, "syncfs"):
        os.sync()
        return
    fd = os.open(_existing(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBC.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
