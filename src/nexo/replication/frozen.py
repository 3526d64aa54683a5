"""Hard links that keep a folder's names as they are at one moment, while its owner writes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nexo.replication.bases import NOT_DATA
from nexo.storage.disk.files import link_or_copy

PREFIX = ".base-"


def freeze(root: Path) -> Path:
    """A folder below ``root`` with a link to each of its files; for the thread that writes."""
    forget(root)
    aside = root / f"{PREFIX}{os.getpid()}"
    not_data = shutil.ignore_patterns(*(f"{name}*" for name in NOT_DATA))
    shutil.copytree(root, aside, copy_function=link_or_copy, ignore=not_data)
    return aside


def forget(root: Path) -> None:
    """Remove what `freeze` made."""
    for path in root.glob(f"{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
