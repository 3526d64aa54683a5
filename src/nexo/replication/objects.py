"""The port to an object store, where a broker's objects are in it, and how objects are written.

======================  =====================================================================
key                     what it holds
======================  =====================================================================
``log/<number>``        a group of file operations, or a claim (`nexo.replication.log_objects`)
``base/<number>``       a manifest: the files as of all log objects below ``number``
``file/<maker>/<sha>``  the content of a file that a manifest names
``reset/<number>-…``    a manifest that a claim begins with, made before its number was known
======================  =====================================================================

Numbers have 20 digits, so that keys sort as numbers do. Most objects are MessagePack in a sealed
frame (`nexo.storage.sealed`) whose mark is the number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from nexo.errors import Corrupt
from nexo.storage import sealed

T = TypeVar("T")

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


def numbered(prefix: str, number: int) -> str:
    """The key of a number below a prefix."""
    return f"{prefix}{number:020}"


def log_key(number: int) -> str:
    return numbered(LOG, number)


def number_of(key: str) -> int:
    """The number that a key ends with."""
    return int(key.rpartition("/")[2])


def next_number(store: ObjectStore, prefix: str) -> int:
    """One past the highest number below a prefix; 0 if there is none."""
    keys = store.list(prefix)
    return number_of(keys[-1]) + 1 if keys else 0


def delete_below(store: ObjectStore, prefix: str, number: int) -> None:
    """Delete the objects with lower numbers."""
    oldest = numbered(prefix, number)
    store.delete([key for key in store.list(prefix) if key < oldest])


class ObjectFormat(Generic[T]):
    """How the numbered objects of one kind are written."""

    def __init__(self, magic: bytes, kind: type[T], noun: str) -> None:
        """``noun`` is what errors call the object."""
        self._magic = magic
        self._noun = noun
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def pack(self, value: T, number: int) -> bytes:
        """The bytes of the object with a number."""
        return sealed.pack(self._magic, self._encode(value), number)

    def unpack(self, data: bytes, number: int) -> T:
        """Inverse of `pack`; `Corrupt` if the object is damaged or has another number."""
        try:
            payload, mark = sealed.unpack(self._magic, data)
        except Corrupt as error:
            raise Corrupt(f"{self._noun} {number} is damaged: {error.message}") from None
        if mark != number:
            raise Corrupt(f"{self._noun} {number} says that it is {mark}")
        try:
            return self._decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{self._noun} {number} cannot be decoded: {error}") from None


class ObjectsBelow:
    """The objects of a store whose keys begin with ``prefix``, without it."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def create(self, key: str, data: bytes) -> None:
        self._store.create(self._prefix + key, data)

    def get(self, key: str) -> bytes | None:
        return self._store.get(self._prefix + key)

    def list(self, prefix: str, after: str = "") -> list[str]:
        found = self._store.list(self._prefix + prefix, self._prefix + after if after else "")
        return [key.removeprefix(self._prefix) for key in found]

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete([self._prefix + key for key in keys])
