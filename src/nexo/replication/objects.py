"""The port to an object store, and where a broker's objects are in it.

======================  =====================================================================
key                     what it holds
======================  =====================================================================
``log/<number>``        a group of file operations, or a claim (`nexo.replication.groups`)
``base/<number>``       a manifest: the files as of all log objects below ``number``
``file/<maker>/<sha>``  the content of a file that a manifest names
``reset/<number>-…``    a manifest that a claim begins with, made before its number was known
======================  =====================================================================

Numbers have 20 digits, so that keys sort as numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

LOG = "log/"
BASE = "base/"
FILE = "file/"
RESET = "reset/"


class AlreadyThere(Exception):
    """An object of that key exists; it was not changed."""


class StoreFailed(Exception):
    """The store did not answer, or not clearly: the operation may or may not have happened."""


class ObjectStore(Protocol):
    """What replication needs of S3, GCS, Azure or a folder. All may raise `StoreFailed`."""

    def create(self, key: str, data: bytes) -> None:
        """Put an object durably if none has this key; `AlreadyThere` otherwise."""

    def get(self, key: str) -> bytes | None:
        """An object; None if there is none."""

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Keys that begin with ``prefix`` and sort after ``after``, in order."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; absent ones are fine."""


def log_key(number: int) -> str:
    """Where the log object of a number is."""
    return f"{LOG}{number:020}"


def base_key(number: int) -> str:
    """Where the manifest at a number is."""
    return f"{BASE}{number:020}"


def number_of(key: str) -> int:
    """The number that a log object's or manifest's key ends with."""
    return int(key.rpartition("/")[2])


class ObjectsBelow:
    """The objects of a store whose keys begin with ``prefix``, without it."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def create(self, key: str, data: bytes) -> None:
        """Put if absent."""
        self._store.create(self._prefix + key, data)

    def get(self, key: str) -> bytes | None:
        """An object."""
        return self._store.get(self._prefix + key)

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Keys in order."""
        found = self._store.list(self._prefix + prefix, self._prefix + after if after else "")
        return [key.removeprefix(self._prefix) for key in found]

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        self._store.delete([self._prefix + key for key in keys])
