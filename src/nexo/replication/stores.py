"""Object stores by URL, and one in a folder, for example on a network disk.

An object in a folder is written aside, synced, and linked to its name, which the file system
refuses if the name exists. A reader therefore never sees half an object.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from nexo.errors import ConfigError
from nexo.replication.objects import AlreadyThere, ObjectStore, StoreFailed
from nexo.storage.disk.files import sync_folder

_ASIDE = ".aside-"
SCHEMES = ("s3", "gs", "az", "file")


def open_store(url: str, key_file: Path | None = None) -> ObjectStore:
    """The store at a URL, encrypted if there is a key; `ConfigError` says what is wrong with it."""
    store = _open_plain(url)
    if key_file is None:
        return store
    try:
        from nexo.replication import encrypted  # noqa: PLC0415 - only with a key
    except ImportError:
        raise ConfigError(
            f"replicate_key_file = {key_file}: install cryptography: "
            "pip install 'nexo-broker[replication]'"
        ) from None
    return encrypted.EncryptedObjects(store, encrypted.read_key(key_file))


def _open_plain(url: str) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"replicate = {url!r}: write {'://, '.join(SCHEMES)}://")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"replicate = {url!r}: write file:///folder")
        return FolderObjects(Path(unquote(parts.path)))
    try:
        from nexo.replication import cloud  # noqa: PLC0415 - only clouds need it
    except ImportError:
        raise ConfigError(
            f"replicate = {url!r}: install obstore: pip install 'nexo-broker[replication]'"
        ) from None
    return cloud.open_store(url)


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
