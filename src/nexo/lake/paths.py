"""Locations of files: which are on this machine, synced and deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_MANY = 12
"""Files above which one sync of the whole file system is faster."""


def local_path(location: str) -> str | None:
    """The path behind a location on this machine's file system; None for object stores."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return location
    return rest.removeprefix("//") if scheme == "file" else None


def location_of(path: Path) -> str:
    """A path as tables name it: a URL, but never escaped, as PyIceberg and Spark read it."""
    plain = set("#?").isdisjoint(str(path))
    return f"file://{path}" if plain else str(path)


def sync_local(locations: Iterable[str]) -> None:
    """Sync files and their folders to disk: the broker will forget what they hold."""
    paths = [path for location in locations if (path := local_path(location))]
    if len(paths) >= _MANY:
        from nexo.storage.disk.files import OsFiles  # noqa: PLC0415 - readers sync nothing

        OsFiles().sync_all(Path(paths[0]).parent)
        return
    for path in [*paths, *{os.path.dirname(path) for path in paths}]:  # noqa: PTH120
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def delete_files(io: FileIO, locations: Iterable[str]) -> int:
    """Delete files that are there; returns how many."""
    count = 0
    for location in locations:
        try:
            io.delete(location)
            count += 1
        except FileNotFoundError:
            continue
    return count
