"""A machine's disk, and `Files` of one process on it.

What a process wrote is kept apart from what would survive power loss. Each call may fail once,
be slow, or be the moment at which the process is paused or killed.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nexo.errors import DiskFull, ReadOnly
from nexo.model import Buffer
from nexo.storage.disk.freezing import NOT_DATA, PREFIX
from nexo.storage.ports import File, Frozen, Settles
from tests.memory_files import cut, put
from tests.simulation.world import US

if TYPE_CHECKING:
    from tests.simulation.world import Machine, Process

ROOMY = 1 << 40
"""Bytes of a disk that is never full."""
_SECTOR = 512
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_Rename: TypeAlias = "tuple[Path | None, Path | None, Inode | None, frozenset[Path]]"
"""From, to, and which file; None for a name that is new or removed, and for a folder. And whose
sync makes it durable."""


@dataclass(eq=False, slots=True)
class Inode:
    """A file's bytes: as programs see them, and as they would survive."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    """Writes and cuts since the last sync, in order."""

    def apply(self, change: tuple[int, bytes] | int) -> None:
        _apply(self.content, change)
        self.pending.append(change)

    def settle(self, count: int) -> None:
        for change in self.pending[:count]:
            _apply(self.durable, change)
        del self.pending[:count]

    def after_power_loss(self, chance: random.Random) -> bytearray:
        """The durable bytes, with some sectors of what was not synced."""
        after = bytearray(self.durable)
        kept = chance.choice((0.0, 1.0, 0.5))
        moments: dict[int, int] = {}
        for number, change in enumerate(self.pending):
            if isinstance(change, int):
                if chance.random() < kept:
                    cut(after, change)
                continue
            position, data = change
            for start in range(position - position % _SECTOR, position + len(data), _SECTOR):
                if start not in moments:
                    moments[start] = len(self.pending) if chance.random() < kept else number
                if number < moments[start]:
                    low, high = max(start, position), min(start + _SECTOR, position + len(data))
                    put(after, low, data[low - position : high - position])
        return after


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        cut(content, change)
    else:
        put(content, *change)


@dataclass(slots=True)
class DiskFault:
    """The next call of a kind fails, once."""

    calls: tuple[str, ...]
    number: int
    name_part: str = ""
    partial: bool = True
    """A write that fails has written half."""


class Disk:
    """Names and files of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.world = machine.world
        self.machine = machine
        self.chance = self.world.random(f"disk {machine.name}")
        self.names: dict[Path, Inode | None] = {}
        self.children: dict[Path, dict[str, None]] = {}
        self.faults: list[DiskFault] = []
        self.sync_us = self.chance.choice(((50, 400), (200, 900), (900, 6_000), (50, 20_000)))
        self.capacity = ROOMY
        self.boots = 1
        self._users: list[tuple[Process | None, SimFiles]] = []
        self._durable: dict[Path, Inode | None] = {}
        self._pending: list[_Rename] = []
        """Changes of names since their folder was synced."""

    def used_by(self, process: Process | None, files: SimFiles) -> None:
        self._users.append((process, files))

    def users(self, process: Process) -> list[SimFiles]:
        """What a process made to use this disk."""
        return [files for user, files in self._users if user is process]

    def is_sound_for(self, process: Process) -> bool:
        """Whether all that a process asks will be done, as far as is known now."""
        broken = any(files.is_broken for files in self.users(process))
        return not broken and not self.faults and self.capacity == ROOMY

    @property
    def unsynced_s(self) -> float:
        """For how long a process that still runs has synced nothing, as a sync failed."""
        now_s = self.world.now_s
        failed_s = (
            files.failed_s for process, files in self._users if process is None or process.alive
        )
        return now_s - min((at_s for at_s in failed_s if at_s is not None), default=now_s)

    # -- names ---------------------------------------------------------------------

    def link(self, path: Path, inode: Inode | None) -> None:
        self._put(path, inode)
        self._pending.append(_change(None, path, inode))

    def unlink(self, path: Path) -> None:
        for known in self.below(path):
            self._drop(known)
            self._pending.append(_change(known, None, None))

    def move(self, source: Path, target: Path) -> None:
        self._pending.append(_change(source, target, self.names[source]))
        if target in self.names and self.names[source] is not None:
            self._drop(target)
        for known in self.below(source):
            inode = self.names[known]
            self._drop(known)
            self._put(target / known.relative_to(source), inode)

    def below(self, path: Path) -> list[Path]:
        """The path and all names under it, parents first."""
        if path not in self.names:
            return []
        found = [path]
        for name in self.children.get(path, ()):
            found += self.below(path / name)
        return found

    def _put(self, path: Path, inode: Inode | None) -> None:
        self.names[path] = inode
        self.children.setdefault(path.parent, {})[path.name] = None

    def _drop(self, path: Path) -> None:
        del self.names[path]
        self.children.get(path.parent, {}).pop(path.name, None)

    def settle_names(self, folder: Path) -> None:
        """Make the names in a folder, and of its parents, durable."""
        folders = {folder, *folder.parents}
        kept = []
        for change in self._pending:
            if change[3].isdisjoint(folders):
                kept.append(change)
            else:
                self._settle(change)
        self._pending = kept

    def _settle(self, change: _Rename) -> None:
        source, target, inode, _ = change
        durable = self._durable
        if source is not None and target is not None:
            for path in [path for path in durable if path.is_relative_to(source)]:
                durable[target / path.relative_to(source)] = durable.pop(path)
        if source is not None:
            durable.pop(source, None)
        if target is not None:
            durable[target] = inode

    def settle_all(self) -> None:
        self._pending.clear()
        self._durable = dict(self.names)

    # -- faults --------------------------------------------------------------------

    def lose_power(self) -> None:
        """Keep what was synced, and some of what was not."""
        self.boots += 1
        names = dict(self._durable)
        kept = self.chance.choice((0.0, 1.0, 0.5))
        self._durable = names
        for change in self._pending:
            if self.chance.random() < kept:
                self._settle(change)
        self._pending.clear()
        self.names, self.children = {}, {}
        for path in sorted(names):
            if all(parent in names for parent in path.parents if parent != parent.parent):
                inode = names[path]
                if inode is not None:
                    content = inode.after_power_loss(self.chance)
                    inode = Inode(content, bytearray(content))
                self._put(path, inode)
        self._durable = dict(self.names)

    def wipe(self) -> None:
        """Another, empty disk."""
        for kept in (self.names, self.children, self._durable):
            kept.clear()
        self._pending.clear()

    def flip(self, path: Path, bit: int) -> None:
        inode = self.names.get(path)
        if inode is not None and inode.content:
            at = bit // 8 % len(inode.content)
            inode.content[at] ^= 1 << bit % 8
            if at < len(inode.durable):
                inode.durable[at] ^= 1 << bit % 8

    def fault(self, call: str, path: Path) -> DiskFault | None:
        for fault in self.faults:
            if call in fault.calls and fault.name_part in str(path):
                self.faults.remove(fault)
                error = errno.errorcode[fault.number]
                self.world.story(f"{self.machine.name} {call} {path.name} fails: {error}")
                return fault
        return None

    @property
    def used(self) -> int:
        return sum(len(inode.content) for inode in self.names.values() if inode is not None)


def _change(source: Path | None, target: Path | None, inode: Inode | None) -> _Rename:
    folders = frozenset(path.parent for path in (source, target) if path is not None)
    return source, target, inode, folders


class SimFile:
    """A handle of `SimFiles`; see `nexo.storage.disk.files.OsFile`."""

    def __init__(self, files: SimFiles, path: Path, inode: Inode) -> None:
        self.path = path
        self.synced_bytes = 0
        self.dirty = False
        self._files = files
        self._inode = inode
        self._cuts = 0

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        files = self._files
        if (fault := files.call("write", self.path)) is not None:
            if fault.partial and len(data) > 1:
                self._change((position, data[: len(data) // 2]))
            raise _error(fault.number, self.path)
        if position + len(data) > len(self._inode.content) and files.is_full(len(data)):
            raise DiskFull(f"no space left to write {self.path.name}: free some")
        self._change((position, data))
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        self._files.check_call("read", self.path)
        return bytes(self._inode.content[position : position + size])

    def size(self) -> int:
        self._files.check_call("size", self.path)
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._files.check_call("truncate", self.path)
        self._cuts += 1
        self._change(size)
        self.synced_bytes = min(self.synced_bytes, size)

    def _change(self, change: tuple[int, bytes] | int) -> None:
        self._inode.apply(change)
        if not self.dirty:
            self.dirty = True
            self._files.on_dirty(self)

    def sync(self) -> None:
        files = self._files
        files.check()
        with files.final():
            self.dirty = False
            length, cuts, count = len(self._inode.content), self._cuts, len(self._inode.pending)
            files.slow("sync", self.path)
            self._inode.settle(count)
            files.disk.settle_names(self.path.parent)
            if cuts == self._cuts:
                self.synced_bytes = length

    def close(self) -> None:
        """Nothing to give back."""


class _Final:
    """A failure within is final for all files of the process, as a failed sync is."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise self._files.broken(error) from error


class SimFiles:
    """The file system as one process uses it."""

    def __init__(self, disk: Disk) -> None:
        self.on_dirty: Callable[[File], None] = lambda _file: None
        self.on_unsettled: Callable[[Settles], None] = lambda _journal: None
        self.boot_id = f"{disk.machine.name}-{disk.boots}"
        self.disk = disk
        self._error: str | None = None
        self.failed_s: float | None = None
        """When a sync failed first."""
        self._open: dict[SimFile, None] = {}
        disk.used_by(disk.world.current, self)

    # -- every call comes by here ------------------------------------------------------

    def call(self, name: str, path: Path) -> DiskFault | None:
        """Count it; the fault that hits it, if any."""
        disk = self.disk
        disk.world.happened(f"{name} {path.name}")
        return disk.fault(name, path) if disk.faults else None

    def check_call(self, name: str, path: Path) -> None:
        if (fault := self.call(name, path)) is not None:
            raise _error(fault.number, path)

    def slow(self, name: str, path: Path) -> None:
        """A call that waits for the device."""
        disk = self.disk
        disk.world.note(f"{name} {path.name}")
        disk.world.block(disk.chance.randint(*disk.sync_us) * US)
        if (fault := self.call(name, path)) is not None:
            raise OSError(fault.number, os.strerror(fault.number))

    def is_full(self, more: int) -> bool:
        disk = self.disk
        return disk.capacity < ROOMY and disk.used + more > disk.capacity

    @property
    def is_broken(self) -> bool:
        """A sync has failed."""
        return self._error is not None

    def check(self) -> None:
        if self._error is not None:
            raise ReadOnly(self._error)

    def broken(self, error: OSError) -> ReadOnly:
        if self.failed_s is None:
            self.failed_s = self.disk.world.now_s
        self._error = f"a sync to disk failed ({error.strerror}): restart after checking the disk"
        return ReadOnly(self._error)

    def final(self) -> _Final:
        return _Final(self)

    # -- the port ------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> File:
        self.check_call("open", path)
        disk = self.disk
        if path not in disk.names:
            if not create or path.parent not in disk.names:
                raise FileNotFoundError(errno.ENOENT, f"no file {path}")
            self.check_call("create", path)
            disk.link(path, Inode())
        inode = disk.names[path]
        if inode is None:
            raise IsADirectoryError(errno.EISDIR, f"{path} is a folder")
        file = SimFile(self, path, inode)
        self._open[file] = None
        return file

    def list(self, folder: Path) -> list[str]:
        self.check_call("list", folder)
        return sorted(self.disk.children.get(folder, ()))

    def make_folder(self, folder: Path) -> None:
        for path in reversed((folder, *folder.parents)):
            if path not in self.disk.names and path != path.parent:
                self.check_call("make_folder", path)
                self.disk.link(path, None)

    def remove(self, path: Path) -> None:
        if path in self.disk.names:
            self.check_call("remove", path)
            self.disk.unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self.check()
        self.check_call("rename", source)
        if source not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, f"no file {source}")
        self.disk.move(source, target)
        with self.final():
            self.slow("sync_names", target)
            self.disk.settle_names(source.parent)
            self.disk.settle_names(target.parent)

    def size(self, path: Path) -> int:
        self.check_call("size", path)
        inode = self.disk.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, f"no file {path}")
        return len(inode.content)

    def sync_all(self, folder: Path) -> None:
        self.check()
        with self.final():
            dirty = [file for file in self._open if file.dirty]
            reached = []
            for file in dirty:
                file.dirty = False
                reached.append((file, len(file._inode.content), file._cuts))
            counts = [(i, len(i.pending)) for i in self.disk.names.values() if i is not None]
            self.slow("sync_all", folder)
            for inode, count in counts:
                inode.settle(count)
            self.disk.settle_all()
            for file, length, cuts in reached:
                if cuts == file._cuts:
                    file.synced_bytes = length

    def free_bytes(self, folder: Path) -> int:
        self.check_call("free", folder)
        if self.disk.capacity == ROOMY:
            return ROOMY
        return max(0, self.disk.capacity - self.disk.used)

    def freeze(self, folder: Path) -> Frozen:
        """Second names, as hard links give."""
        self.check_call("freeze", folder)
        disk = self.disk
        links = folder / f"{PREFIX}{disk.chance.getrandbits(64):016x}"
        frozen = Frozen([], [], links, lambda: self.remove(links))
        for path in disk.below(folder)[1:]:
            inside = path.relative_to(folder)
            if inside.parts[0].startswith(NOT_DATA):
                continue
            inode = disk.names[path]
            if inode is None:
                frozen.folders.append(inside.as_posix())
            else:
                frozen.files.append((inside.as_posix(), len(inode.content)))
                disk.link(frozen.link(len(frozen.files) - 1), inode)
        if frozen.files:
            disk.link(links, None)
        return frozen


def _error(number: int, path: Path) -> Exception:
    if number in _NO_SPACE:
        return DiskFull(f"no space left to write {path.name}: free some")
    return OSError(number, os.strerror(number))
