"""Files that tasks leave for their driver, which publishes what they hold, or forgets them.

They are below ``staging`` in the lake, which executors reach anyway, and are part of no table. Each
write has a folder of its own there; what a write that died has left is swept when it is old.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from nexo.errors import ConfigError, Conflict
from nexo.lake.paths import local_path, location_of
from nexo.lake.settings import LakeSettings, this_host

STAGING = "staging"
GRACE_S = 86_400.0
"""After this long without a change, a file is of a write that died."""
SET_IT = (
    "set .option('staging', …) to a folder or an address such as s3://bucket/staging that the "
    "driver and all executors reach, or .option('delivery', 'at-least-once')"
)


@dataclass(frozen=True, slots=True, repr=False)
class StagingPlace:
    """Where files are staged, and what it takes to get there; sent to tasks.

    It has no representation because its properties may hold credentials.
    """

    location: str
    io_properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def _folder(self) -> str | None:
        return local_path(self.location)

    def prepare(self) -> None:
        """Make the folder, on the driver's machine: tasks only use what is there."""
        if self._folder is not None:
            Path(self._folder).mkdir(mode=0o750, parents=True, exist_ok=True)

    def create(self, name: str) -> IO[bytes]:
        """A new file ``<folder>/<file>``; `ConfigError` where this machine lacks the place."""
        if self._folder is None:
            made: IO[bytes] = _store(self).open_output_stream(self._path(name))
            return made
        if not os.path.isdir(self._folder):  # noqa: PTH112
            raise ConfigError(f"{this_host()} has no folder {self._folder} to stage in: {SET_IT}")
        path = Path(self._folder, name)
        path.parent.mkdir(mode=0o750, exist_ok=True)
        return path.open("wb")

    def open(self, name: str) -> IO[bytes]:
        """A staged file; `Conflict` if it is not there."""
        try:
            if self._folder is not None:
                return Path(self._folder, name).open("rb")
            found: IO[bytes] = _store(self).open_input_stream(self._path(name))
        except FileNotFoundError:
            raise Conflict(
                f"what an executor has staged as {self.location}/{name} is not there on "
                f"{this_host()}: either executors write to a disk that this machine does not "
                f"share, or somebody deleted it; {SET_IT}"
            ) from None
        return found

    def discard(self, folder: str) -> None:
        """Delete all that one write has staged; nothing needs it."""
        if self._folder is not None:
            shutil.rmtree(Path(self._folder, folder), ignore_errors=True)
            return
        for path in self._files(folder):
            with suppress(FileNotFoundError):
                _store(self).delete_file(path)

    def sweep(self, grace_s: float = GRACE_S) -> int:
        """Delete what has not changed for that long; returns how many files."""
        before, count = time.time() - grace_s, 0
        for path, changed in list(self._aged()):
            if changed > before:
                continue
            with suppress(FileNotFoundError):
                _store(self).delete_file(path)
                count += 1
        if self._folder is not None:
            _remove_empty(Path(self._folder), before)
        return count

    def files(self) -> list[str]:
        """The paths of all that is staged."""
        return [path for path, _ in self._aged()]

    def _path(self, name: str) -> str:
        parts = urlsplit(self.location)
        return f"{self._folder or parts.netloc + parts.path}/{name}"

    def _files(self, folder: str) -> list[str]:
        return [path for path, _ in self._aged(folder)]

    def _aged(self, folder: str = "") -> Iterator[tuple[str, float]]:
        """Each file, and when it was last changed."""
        from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415 - slow to import

        where = self._path(folder).rstrip("/")
        found = FileSelector(where, recursive=True, allow_not_found=True)
        for info in _store(self).get_file_info(found):
            if info.type == FileType.File:
                yield info.path, float(info.mtime.timestamp())


def _remove_empty(root: Path, before: float) -> None:
    for folder in root.iterdir() if root.exists() else ():
        with suppress(OSError):  # it is not empty, or no folder
            if folder.stat().st_mtime <= before:
                folder.rmdir()


def _store(place: StagingPlace) -> Any:
    """PyArrow's access to a place."""
    return _opened(place.location, tuple(sorted(place.io_properties.items())))


@lru_cache(maxsize=20)
def _opened(location: str, properties: tuple[tuple[str, str], ...]) -> Any:
    if local_path(location) is not None:
        from pyarrow.fs import LocalFileSystem  # noqa: PLC0415 - slow to import

        return LocalFileSystem()
    from pyiceberg.io import load_file_io  # noqa: PLC0415 - takes half a second to import

    io: Any = load_file_io(dict(properties), location)
    parts = urlsplit(location)
    return io.fs_by_scheme(parts.scheme, parts.netloc)


# -- places ----------------------------------------------------------------------------


def staging_of(lake: LakeSettings) -> StagingPlace:
    """The place in a lake; `ConfigError` if its catalog does not say where its files are."""
    if not lake.catalog:
        return StagingPlace(location_of(lake.folder.absolute() / STAGING))
    from nexo.lake.catalog import Lake  # noqa: PLC0415 - takes half a second to import

    properties = {name: str(value) for name, value in Lake(lake).catalog.properties.items()}
    warehouse = properties.get("warehouse", "")
    if "://" not in warehouse and not warehouse.startswith("/"):
        raise ConfigError(
            f"the catalog {lake.catalog!r} does not say where its files are, so there is no place "
            f"to stage in: {SET_IT}"
        )
    return StagingPlace(f"{warehouse.rstrip('/')}/{STAGING}", properties)


def staging_at(address: str) -> StagingPlace:
    """A place that the user names: a folder, or an address with PyArrow's own credentials."""
    if "://" not in address and not address.startswith("/"):
        raise ConfigError(f"staging = {address!r}: give a whole path or address; {SET_IT}")
    plain = address.rstrip("/")
    return StagingPlace(plain if "://" in plain else location_of(Path(plain)))


def staging_here() -> StagingPlace:
    """A place on this machine, for a driver whose executors are on it, too."""
    folder = Path(tempfile.gettempdir()) / f"nexo-{STAGING}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or folder.is_symlink() or found.st_mode & 0o022:
        raise ConfigError(f"{folder} is not this user's alone: remove it, or {SET_IT}")
    return StagingPlace(location_of(folder))


def sweep_staging(lake: LakeSettings) -> int:
    """Delete what writes that died have staged in a lake; returns how many files."""
    try:
        return staging_of(lake).sweep()
    except ConfigError:
        return 0
