"""Removes folders so that a crash, or a disk that refuses, never leaves half of one in place.

A folder is first renamed to ``<prefix><tag>``, atomically and durably: from then on it is gone,
whatever happens to its files. Their removal is finished on the next start if it was cut short.
The empty renamed folder can be kept as a mark, until something else remembers the deletion.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nexo.storage.ports import Files


class Removals:
    """Folders of one parent that are being removed."""

    def __init__(self, files: Files, parent: Path, prefix: str = ".removed-") -> None:
        """No name of a folder in use may begin with ``prefix``."""
        self._files = files
        self._parent = parent
        self._prefix = prefix

    def set_aside(self, folder: Path, tag: str) -> None:
        """Rename a folder; raises `OSError`, with nothing changed, if the disk refuses."""
        self._files.rename(folder, self._path(tag))

    def empty(self, tag: str) -> None:
        """Remove what a folder that was set aside holds; the folder stays as a mark."""
        path = self._path(tag)
        for name in self._files.list(path):
            self._files.remove(path / name)

    def forget(self, tag: str) -> None:
        """Remove a folder that was set aside, with all it holds."""
        self._files.remove(self._path(tag))

    def set_aside_before(self) -> Iterator[str]:
        """The tags of folders that an earlier process set aside."""
        for name in self._files.list(self._parent):
            if name.startswith(self._prefix):
                yield name.removeprefix(self._prefix)

    def finish(self) -> None:
        """Remove everything that was set aside."""
        for tag in list(self.set_aside_before()):
            self.forget(tag)

    def _path(self, tag: str) -> Path:
        return self._parent / f"{self._prefix}{tag}"
