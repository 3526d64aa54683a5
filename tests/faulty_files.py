"""A file system that fails on purpose: the n-th call, or the power.

What a process wrote is kept apart from what would survive power loss. Until a file is synced,
each of its sectors may be as old or as new as it ever was since, and its length too: writes are
lost, torn and reordered, at the end of a file and in its middle, by sectors or by pages. Until
a folder is synced (with a file in it, by ``rename``, by ``sync_all``), each change of its names
may be lost, whatever became of the others.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from nexo.errors import DiskFull, ReadOnly
from nexo.model import Buffer
from nexo.storage.ports import File, Frozen, Settles
from tests import frozen_files
from tests.memory_files import cut, moved, put

_SECTOR = 512
"""What a disk writes as a whole."""
_PAGE = 4096
"""What an operating system hands to the disk as a whole."""

Keep = Callable[[Path, int], bool]
"""Whether a sector of a file, by its number, made it to the disk; -1 stands for the length."""
_lifetimes = count(1)


class PowerLoss(BaseException):
    """Raised out of the call at which the power goes; then take `FaultyFiles.crash`."""


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes


@dataclass(slots=True)
class _Cut:
    size: int


@dataclass(eq=False, slots=True)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Cut] = field(default_factory=list)
    marked: bool = False
    syncs: int = 0

    def apply(self, change: _Write | _Cut) -> None:
        _apply(self.content, change)
        self.pending.append(change)

    def settle(self) -> None:
        self.marked = False
        self.syncs += 1
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def after_power_loss(self, random: Random) -> bytearray:
        """The durable content, with each sector and the length as some later moment had them."""
        moments = [bytearray(self.durable)]
        for change in self.pending:
            moments.append(bytearray(moments[-1]))
            _apply(moments[-1], change)
        match random.choice(("lost", "kept", "mixed", "mixed", "hole", "island")):
            case "lost":
                return moments[0]
            case "kept":
                return moments[-1]
            case "mixed":
                return _mixed(moments, random)
            case mood:
                changed = self.changed()
                odd = random.choice(changed) if changed else -1
                return self.keeping(lambda sector: (sector == odd) == (mood == "island"))

    def changed(self) -> list[int]:
        """The sectors that differ from what is durable."""
        size = max(len(self.content), len(self.durable))
        return [
            at // _SECTOR
            for at in range(0, size, _SECTOR)
            if self.content[at : at + _SECTOR] != self.durable[at : at + _SECTOR]
        ]

    def keeping(self, keep: Callable[[int], bool]) -> bytearray:
        """The durable content with some sectors as they are now, and the length if -1 is kept.

        A file that is cut short by the loss of its length loses the sectors behind it.
        """
        size = len(self.content if keep(-1) else self.durable)
        sides = (self.durable, self.content)
        return _joined(size, _SECTOR, lambda at: sides[keep(at // _SECTOR)])


def _mixed(moments: list[bytearray], random: Random) -> bytearray:
    sizes = [len(moment) for moment in moments]
    size = random.choice([*sizes, random.randint(min(sizes), max(sizes))])
    return _joined(size, random.choice((_SECTOR, _PAGE)), lambda _: random.choice(moments))


def _joined(size: int, unit: int, source: Callable[[int], bytearray]) -> bytearray:
    survivor = bytearray()
    for start in range(0, size, unit):
        survivor += source(start)[start : start + unit].ljust(unit, b"\0")
    return survivor[:size]


def _apply(content: bytearray, change: _Write | _Cut) -> None:
    match change:
        case _Write(position, data):
            put(content, position, data)
        case _Cut(size):
            cut(content, size)


@dataclass(slots=True)
class _Rename:
    """A change of names: ``inode`` becomes known as ``target`` and no longer as ``source``."""

    source: Path | None
    target: Path | None
    inode: _Inode | None

    def touches(self, folder: Path) -> bool:
        return folder in {path.parent for path in (self.source, self.target) if path}

    def apply(self, names: dict[Path, _Inode | None]) -> None:
        if self.source is not None and self.target is not None:
            for path in [path for path in names if path.is_relative_to(self.source)]:
                names[moved(path, self.source, self.target)] = names.pop(path)
        if self.source is not None:
            names.pop(self.source, None)
        if self.target is not None:
            names[self.target] = self.inode


class FaultyFile:
    """A handle of `FaultyFiles`."""

    def __init__(self, files: FaultyFiles, path: Path, inode: _Inode) -> None:
        self.path = path
        self._files = files
        self._inode = inode
        self._syncs = inode.syncs

    @property
    def synced_bytes(self) -> int:
        """0 until the first sync since it was opened."""
        inode = self._inode
        return min(len(inode.durable), len(inode.content)) if inode.syncs > self._syncs else 0

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        """Write all parts, or half of them when this call is the one that fails."""
        data = b"".join(parts)
        half = _Write(position, data[: len(data) // 2])
        self._files.step(lambda: self._inode.apply(half))
        self._inode.apply(_Write(position, data))
        self._mark()
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes."""
        return bytes(self._inode.content[position : position + size])

    def size(self) -> int:
        """The file's length."""
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._files.step()
        self._inode.apply(_Cut(size))
        self._mark()

    def sync(self) -> None:
        """Settle the file and the names on its path; if it fails, unsynced writes are gone."""
        self._files.step(self._inode.pending.clear, final=True)
        self._inode.settle()
        self._files.settle_names(self.path.parent)

    def close(self) -> None:
        """Nothing to give back."""

    def _mark(self) -> None:
        if not self._inode.marked:
            self._inode.marked = True
            self._files.on_dirty(self)


class FaultyFiles:
    """See the module. ``fail_call`` and ``lose_power_at`` count calls that change something."""

    def __init__(self) -> None:
        self.on_dirty: Callable[[File], None] = lambda _file: None
        self.on_unsettled: Callable[[Settles], None] = lambda _journal: None
        self.boot_id = str(next(_lifetimes))
        self.calls = 0
        self.fail_call: int | None = None
        self.fail_errno = errno.EIO
        self.lose_power_at: int | None = None
        self._names: dict[Path, _Inode | None] = {}
        self._durable: dict[Path, _Inode | None] = {}
        self._pending: list[_Rename] = []
        self._failed: ReadOnly | None = None

    # -- faults ---------------------------------------------------------------

    def fill(self) -> None:
        """Have the next call find the disk full."""
        self.fail_call, self.fail_errno = self.calls + 1, errno.ENOSPC

    def step(self, half_done: Callable[[], None] | None = None, *, final: bool = False) -> None:
        """Count a call; fail or lose power if this is the one. Syncs fail for good."""
        if final and self._failed is not None:
            raise self._failed
        self.calls += 1
        if self.calls not in (self.lose_power_at, self.fail_call):
            return
        if half_done is not None:
            half_done()
        if self.calls == self.lose_power_at:
            raise PowerLoss
        raise self._error(final)

    def _error(self, final: bool) -> Exception:
        if final:
            self._failed = ReadOnly("a sync to disk failed")
            return self._failed
        if self.fail_errno == errno.ENOSPC:
            return DiskFull("no space left to write: free some")
        return OSError(self.fail_errno, os.strerror(self.fail_errno))

    def unsynced(self) -> list[tuple[Path, int]]:
        """Every sector that power loss may take back, and every length (-1) that changed."""
        found: list[tuple[Path, int]] = []
        for path, inode in sorted(self._names.items()):
            if inode is not None and inode.pending:
                found += ((path, sector) for sector in inode.changed())
                if len(inode.content) != len(inode.durable):
                    found.append((path, -1))
        return found

    def crash_keeping(self, keep: Keep) -> FaultyFiles:
        """What a machine would find if exactly these sectors of all names had been written."""
        after = FaultyFiles()
        for path, inode in self._names.items():
            after.plant(path, None if inode is None else inode.keeping(partial(keep, path)))
        return after

    def crash(self, seed: int) -> FaultyFiles:
        """What a machine would find after power loss now; every seed is another outcome."""
        random = Random(seed)
        after = FaultyFiles()
        names = dict(self._durable)
        mood = random.choice(("lost", "kept", "mixed"))
        for change in self._pending:
            if mood == "kept" or (mood == "mixed" and random.random() < 0.5):
                change.apply(names)
        for path, inode in names.items():
            if all(parent in names for parent in path.parents if parent != parent.parent):
                after.plant(path, None if inode is None else inode.after_power_loss(random))
        return after

    def restart(self) -> FaultyFiles:
        """What a new process finds after kill -9: everything written, synced or not."""
        after = FaultyFiles()
        after._names, after._durable, after._pending = self._names, self._durable, self._pending
        after.boot_id = self.boot_id
        return after

    def plant(self, path: Path, content: bytes | bytearray | None) -> None:
        """Put a durable file there; a folder if ``content`` is None."""
        inode = None if content is None else _Inode(bytearray(content), bytearray(content))
        self._names[path] = self._durable[path] = inode

    def settle_names(self, folder: Path) -> None:
        """Make the names in ``folder`` and of its parents durable."""
        for parent in (folder, *folder.parents):
            for change in [change for change in self._pending if change.touches(parent)]:
                change.apply(self._durable)
                self._pending.remove(change)

    # -- files ----------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing."""
        if path not in self._names:
            if not create or path.parent not in self._names:
                raise FileNotFoundError(f"no file {path}")
            self._change(_Rename(None, path, _Inode()))
        inode = self._names[path]
        if inode is None:
            raise IsADirectoryError(f"{path} is a folder")
        return FaultyFile(self, path, inode)

    def list(self, folder: Path) -> list[str]:
        """Names in a folder, sorted."""
        return sorted(path.name for path in self._names if path.parent == folder != path)

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents."""
        for path in reversed((folder, *folder.parents)):
            if path not in self._names and path != path.parent:
                self._change(_Rename(None, path, None))

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder."""
        for known in [known for known in self._names if known.is_relative_to(path)]:
            self._change(_Rename(known, None, None))

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically and durably."""
        if source not in self._names:
            raise FileNotFoundError(f"no file {source}")
        self._change(_Rename(source, target, self._names[source]))
        self.sync_renamed(target.parent)

    def sync_renamed(self, folder: Path) -> None:
        """The folder sync that ends a rename."""
        self.step(final=True)
        self.settle_names(folder)

    def size(self, path: Path) -> int:
        """The length of a file."""
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(f"no file {path}")
        return len(inode.content)

    def sync_all(self, folder: Path) -> None:
        """Settle everything."""
        self.step(final=True)
        for inode in filter(None, self._names.values()):
            inode.settle()
        for change in self._pending:
            change.apply(self._durable)
        self._pending.clear()

    def free_bytes(self, folder: Path) -> int:
        """Plenty."""
        return 1 << 40

    def freeze(self, folder: Path) -> Frozen:
        return frozen_files.freeze(self, folder)

    def _change(self, change: _Rename) -> None:
        self.step()
        change.apply(self._names)
        self._pending.append(change)
