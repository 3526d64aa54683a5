"""Hard links that keep a folder's names as they are at one moment, while its owner goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nexo.replication.bases import NOT_DATA

PREFIX = ".base-"


def freeze(root: Path) -> Path:
    """A folder below ``root`` with a link to each of its files; for the thread that writes."""
    forget(root)
    aside = root / f"{PREFIX}{os.getpid()}"
    aside.mkdir()
    _link_all(root, aside)
    return aside


def forget(root: Path) -> None:
    """Remove what `freeze` made."""
    for path in root.glob(f"{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _link_all(folder: Path, aside: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(NOT_DATA):
                continue
            target = aside / entry.name
            if entry.is_dir(follow_symlinks=False):
                target.mkdir()
                _link_all(Path(entry.path), target)
            else:
                _link(entry.path, target)


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
