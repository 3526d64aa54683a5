"""Removes folders so that neither a crash nor a disk error leaves one half removed.

A folder is first renamed to ``.removed-<tag>``, atomically and durably: from then on it
counts as gone, whatever happens to its files. If removing them is interrupted, the next
start finishes it.
"""

from __future__ import annotations

from pathlib import Path

from nexo.storage.ports import Files

_PREFIX = ".removed-"
"""Begins the name of no folder in use."""


class Removals:
    """Folders of one parent that are being removed."""

    def __init__(self, files: Files, parent: Path) -> None:
        self._files = files
        self._parent = parent

    def set_aside(self, folder: Path, tag: str) -> None:
        """Rename a folder; raises `OSError`, with nothing changed, if that fails."""
        self._files.rename(folder, self._path(tag))

    def forget(self, tag: str) -> None:
        """Remove a folder that was set aside, with its contents."""
        self._files.remove(self._path(tag))

    def finish(self) -> None:
        """Remove the folders that an earlier process set aside."""
        for name in self._files.list(self._parent):
            if name.startswith(_PREFIX):
                self._files.remove(self._parent / name)

    def _path(self, tag: str) -> Path:
        return self._parent / f"{_PREFIX}{tag}"
