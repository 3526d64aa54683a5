"""Freezes a folder: hard links keep its files as they are at one moment while their owner writes.

The thread that writes freezes, so the files are what a kill at that moment would leave, which
recovery handles. Logs only grow, so the length at that moment tells what belongs to it; other
files are replaced as a whole, never changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

from nexo.storage.disk.files import link_or_copy

_PREFIX = ".frozen-"
NOT_DATA = (_PREFIX, ".base-", ".backup-")
"""Prefixes of folders that hold such links; 0.1.0 made the last two."""

LeftOut: TypeAlias = Callable[["os.DirEntry[str]"], bool]


class FrozenFolder:
    """The files of a folder as they were when this was made, until `close`.

    The owner of the files is blocked meanwhile, so each costs only one link, named by its number.
    """

    def __init__(self, root: Path, left_out: LeftOut = lambda _entry: False) -> None:
        self.files: list[tuple[str, int]] = []
        """Path within the folder, and length."""
        self._folders: list[str] = []
        self._links = root / f"{_PREFIX}{uuid4().hex}"
        self._links.mkdir()
        try:
            self._keep(str(root), str(self._links), "", left_out)
        except OSError:
            self.close()
            raise

    def _keep(self, folder: str, links: str, within: str, left_out: LeftOut) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(NOT_DATA) or left_out(entry):
                    continue
                name = f"{within}{entry.name}"
                if entry.is_dir():
                    self._folders.append(name)
                    self._keep(entry.path, links, f"{name}/", left_out)
                else:
                    link_or_copy(entry.path, f"{links}/{len(self.files)}")
                    self.files.append((name, entry.stat().st_size))

    def link(self, number: int) -> Path:
        """Where the file of that number in `files` can be read; it may have grown."""
        return self._links / str(number)

    def walk(self) -> Iterator[tuple[str, Path | None]]:
        """Each folder, with None, and each file, with where it can be read."""
        for name in self._folders:
            yield name, None
        for number, (name, _) in enumerate(self.files):
            yield name, self.link(number)

    def close(self) -> None:
        """Remove the links."""
        shutil.rmtree(self._links, ignore_errors=True)


def remove_leftovers(root: Path) -> None:
    """Remove the links of processes that have ended; for the owner, before it freezes anything."""
    for prefix in NOT_DATA:
        for path in root.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)
