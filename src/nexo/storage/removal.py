"""Removes folders so that neither a crash nor a disk error leaves one half removed.

A folder is first renamed to ``<prefix><tag>``, atomically and durably: from then on it
counts as gone, whatever happens to its files. If removing them is interrupted, the next
start finishes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nexo.storage.ports import Files


class Removals:
    """Folders of one parent that are being removed."""

    def __init__(self, files: Files, parent: Path, prefix: str = ".removed-") -> None:
        """``prefix`` must not begin the name of any folder in use."""
        self._files = files
        self._parent = parent
        self._prefix = prefix

    def set_aside(self, folder: Path, tag: str) -> None:
        """Rename a folder; raises `OSError`, with nothing changed, if that fails."""
        self._files.rename(folder, self._path(tag))

    def forget(self, tag: str) -> None:
        """Remove a folder that was set aside, with its contents."""
        self._files.remove(self._path(tag))

    def set_aside_before(self) -> Iterator[str]:
        """The tags of folders that an earlier process set aside."""
        for name in self._files.list(self._parent):
            if name.startswith(self._prefix):
                yield name.removeprefix(self._prefix)

    def finish(self) -> None:
        for tag in list(self.set_aside_before()):
            self.forget(tag)

    def _path(self, tag: str) -> Path:
        return self._parent / f"{self._prefix}{tag}"
