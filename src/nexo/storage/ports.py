"""The calls that storage needs from the file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nexo.model import Buffer


class File(Protocol):
    """One open file. Positions are explicit; there is no cursor."""

    path: Path

    @property
    def synced_bytes(self) -> int:
        """Length up to which the file is known to survive power loss; 0 until its first sync."""

    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        """Write all parts one after another; returns the bytes written (all, or it raises)."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file."""

    def sync(self) -> None:
        """Make everything written to this file, and the names on its path, survive power loss.

        The only call that another thread may make while the owner uses the file.
        """

    def close(self) -> None: ...


class Settles(Protocol):
    """A journal that wants to record durably, once it is idle, that all of it is synced."""

    def settle(self) -> bool:
        """Record it if it is true; returns whether nothing is left to do."""


@dataclass(frozen=True)
class Frozen:
    """The files of a folder as they were at one moment, under other names until `close`."""

    files: list[tuple[str, int]]
    """Path within the folder, and length then."""
    folders: list[str]
    links: Path
    """The folder of the other names."""
    close: Callable[[], None]

    def link(self, number: int) -> Path:
        """Where the file of that number in `files` can be read; it may have grown."""
        return self.links / str(number)

    def walk(self) -> Iterator[tuple[str, Path | None]]:
        """Each folder, with None, and each file, with where it can be read."""
        for name in self.folders:
            yield name, None
        for number, (name, _) in enumerate(self.files):
            yield name, self.link(number)


class Files(Protocol):
    """The file system: real, in memory, or faulty on purpose.

    Created, renamed and removed names are durable after the next ``sync`` of a file in the
    same folder, or after ``rename`` or ``sync_all``.
    """

    on_dirty: Callable[[File], None]
    """Called with a file when it is written to for the first time since its last sync."""
    on_unsettled: Callable[[Settles], None]
    """Called with a journal that was written to after it had settled."""
    boot_id: str
    """Identifies the boot (or process): while it is unchanged, no unsynced write was lost."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; `FileNotFoundError` if absent and not created."""

    def list(self, folder: Path) -> list[str]:
        """Names in a folder, sorted; empty if it does not exist."""

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents."""

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder; absent is fine."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file (replacing the target) or a folder, atomically and durably."""

    def size(self, path: Path) -> int:
        """The length of a file that need not be open."""

    def sync_all(self, folder: Path) -> None:
        """Make everything on the folder's file system survive power loss (``syncfs``)."""

    def free_bytes(self, folder: Path) -> int:
        """Space left for writing."""

    def freeze(self, folder: Path) -> Frozen:
        """Keep the files below a folder as they are now, while their owner goes on to write."""
