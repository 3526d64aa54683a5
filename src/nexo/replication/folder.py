"""An object store in a folder, for example on a network disk.

An object is written aside, synced, and linked to its name, which the file system refuses if the
name exists. A reader therefore never sees half an object.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from nexo.replication.objects import AlreadyThere, StoreFailed
from nexo.storage.disk.files import sync_folder

_ASIDE = ".aside-"


class FolderObjects:
    """A `nexo.replication.objects.ObjectStore` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, key: str, data: bytes) -> None:
        target = self._folder / key
        try:
            aside = self._write_aside(target.parent, data)
            try:
                target.hardlink_to(aside)
            except FileExistsError:
                raise AlreadyThere(key) from None
            finally:
                aside.unlink()
            self._sync_names(target.parent)
        except OSError as error:
            raise StoreFailed(f"{key}: {error}") from error

    def _write_aside(self, folder: Path, data: bytes) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"{_ASIDE}{uuid4().hex}"
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a full disk should not be filled with halves
            aside.unlink(missing_ok=True)
            raise
        return aside

    def get(self, key: str) -> bytes | None:
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"{key}: {error}") from error

    def list(self, prefix: str, after: str = "") -> list[str]:
        try:
            top = self._folder / prefix.rpartition("/")[0]
            found = [path for path in top.rglob("*") if path.is_file()]
        except OSError as error:
            raise StoreFailed(f"{prefix}: {error}") from error
        keys = (
            path.relative_to(self._folder).as_posix()
            for path in found
            if not path.name.startswith(_ASIDE)
        )
        return sorted(key for key in keys if key.startswith(prefix) and key > after)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                (self._folder / key).unlink(missing_ok=True)
            except OSError as error:
                raise StoreFailed(f"{key}: {error}") from error

    def _sync_names(self, folder: Path) -> None:
        for parent in (folder, *folder.parents):
            sync_folder(parent)
            if parent == self._folder:
                return
