"""Files by their locations: written, read, synced and deleted.

PyIceberg's access to files takes several times as long for small local files, and every commit
writes three of them.
"""

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


def local_file(location: str) -> Path:
    """A file of a lake in a folder, all of whose files are on this machine."""
    path = local_path(location)
    assert path is not None, "a lake in a folder has local files only"
    return Path(path)


def read_metadata(location: str, io: FileIO | None = None) -> bytes:
    """A table's metadata; other programs may compress it. A lake in a folder needs no ``io``."""
    content = local_file(location).read_bytes() if io is None else read_file(io, location)
    if not location.endswith((".gz.metadata.json", ".metadata.json.gz")):
        return content
    import gzip  # noqa: PLC0415 - rarely needed

    return gzip.decompress(content)


def location_of(path: Path) -> str:
    """A path as tables name it: an unescaped URL, which is how PyIceberg and Spark read it."""
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


def write_file(io: FileIO, location: str, content: bytes) -> None:
    """Write a new file; no other writer may use its name."""
    path = local_path(location)
    if path is None:
        with io.new_output(location).create(overwrite=True) as stream:
            stream.write(content)
        return
    try:
        _write(path, content)
    except FileNotFoundError:
        make_folder_of(path)
        _write(path, content)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123 - three times per commit
        file.write(content)


def make_folder_of(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120


def read_file(io: FileIO, location: str) -> bytes:
    path = local_path(location)
    if path is None:
        with io.new_input(location).open() as stream:
            return bytes(stream.read())
    return Path(path).read_bytes()


def delete_files(io: FileIO, locations: Iterable[str]) -> int:
    """Delete files that are there; returns how many."""
    count = 0
    for location in locations:
        try:
            path = local_path(location)
            if path is None:
                io.delete(location)
            else:
                os.unlink(path)  # noqa: PTH108
            count += 1
        except FileNotFoundError:
            continue
    return count
