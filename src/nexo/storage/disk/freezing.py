"""Freezes a folder: hard links keep its files as they are at one moment while their owner writes.

The thread that writes freezes, so the files are what a kill at that moment would leave, which
recovery handles. Logs only grow, so the length at that moment tells what belongs to it; other
files are replaced as a whole, never changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

from nexo.storage.ports import Frozen

PREFIX = ".frozen-"
NOT_DATA = (PREFIX, ".base-", ".backup-")
"""Prefixes of folders that hold such links; 0.1.0 made the last two."""

LeftOut: TypeAlias = Callable[["os.DirEntry[str]"], bool]


def freeze(root: Path, left_out: LeftOut = lambda _entry: False) -> Frozen:
    """The files of a folder of the operating system.

    The owner of the files is blocked meanwhile, so each costs only one link, named by its number.
    """
    links = root / f"{PREFIX}{uuid4().hex}"
    frozen = Frozen([], [], links, lambda: shutil.rmtree(links, ignore_errors=True))
    links.mkdir()
    try:
        _keep(frozen, str(root), "", left_out)
    except OSError:
        frozen.close()
        raise
    return frozen


def _keep(frozen: Frozen, folder: str, within: str, left_out: LeftOut) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(NOT_DATA) or left_out(entry):
                continue
            name = f"{within}{entry.name}"
            if entry.is_dir():
                frozen.folders.append(name)
                _keep(frozen, entry.path, f"{name}/", left_out)
            else:
                link_or_copy(entry.path, f"{frozen.links}/{len(frozen.files)}")
                frozen.files.append((name, entry.stat().st_size))


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def remove_leftovers(root: Path) -> None:
    """Remove the links of processes that have ended; for the owner, before it freezes anything."""
    for prefix in NOT_DATA:
        for path in root.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)
