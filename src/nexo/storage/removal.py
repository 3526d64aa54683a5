"""Removes folders so that neither a crash nor a disk error leaves one half removed.

A folder is first renamed, atomically and durably: from then on it counts as gone, whatever
happens to its files. If removing them is interrupted, the next start finishes it. The new name
says what else remains to be done:

==================  =============================================================
``.removed-<tag>``  nothing
``deleted.<tag>``   a journal must learn of the deletion; until then the folder,
                    emptied, marks it
==================  =============================================================

Renaming needs no room on the disk, so a deletion can be marked when a journal has none for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nexo.errors import NexoError
from nexo.storage.ports import Files

REMOVED, MARKED = ".removed-", "deleted."
"""Begin the names of no folders in use."""


class Removals:
    """Folders of one parent that are being removed; a tag names one removal of it."""

    def __init__(self, files: Files, parent: Path) -> None:
        self._files = files
        self._parent = parent

    def set_aside(self, folder: Path, tag: str) -> None:
        """Rename a folder; raises `DiskFailed`, with nothing changed, if that fails."""
        self._files.rename(folder, self._parent / f"{REMOVED}{tag}")

    def forget(self, tag: str) -> None:
        """Remove a folder that was set aside, with its contents."""
        self._files.remove(self._parent / f"{REMOVED}{tag}")

    def finish(self) -> None:
        """Remove the folders that an earlier process set aside."""
        for tag in self._tags(REMOVED):
            self.forget(tag)

    def mark(self, folder: Path, tag: str) -> None:
        """Replace a folder, which may be missing, by a mark; raises like `set_aside`."""
        self._files.make_folder(folder)
        mark = self._parent / f"{MARKED}{tag}"
        self._files.rename(folder, mark)
        self._empty(mark)

    def marks(self) -> Iterator[str]:
        """The tags of all marks, whichever process made them."""
        for tag in self._tags(MARKED):
            self._empty(self._parent / f"{MARKED}{tag}")
            yield tag

    def unmark(self, tag: str) -> None:
        """Remove a mark: the journal has the deletion."""
        self._files.remove(self._parent / f"{MARKED}{tag}")

    def _tags(self, prefix: str) -> list[str]:
        names = self._files.list(self._parent)
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _empty(self, mark: Path) -> None:
        for name in self._files.list(mark):
            with suppress(OSError, NexoError):  # it is gone all the same; `unmark` tries again
                self._files.remove(mark / name)
