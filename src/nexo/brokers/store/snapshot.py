"""Saves a store to a file chunk by chunk, and loads it again (SPEC B3).

The store goes on changing between two chunks. The file therefore holds every key as it was
at one moment of the save, and every key that existed all through it, but not all keys of
one and the same moment. It replaces the one before in one step, when it is whole and safe.
`nexo.storage.snapshot` writes a whole state at once, which a million keys would make too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from nexo.brokers.store import records
from nexo.brokers.store.engine import Store
from nexo.errors import Corrupt
from nexo.storage.header import SIZE, Flags, parse
from nexo.storage.ports import File, Files

NAME = "store.snapshot"


class SnapshotWriter:
    """One save under way. `step` until it says False, sync, then `finish`."""

    def __init__(self, files: Files, folder: Path, store: Store) -> None:
        files.make_folder(folder)
        self._files = files
        self._store = store
        self._target = folder / NAME
        self._aside = folder / f"{NAME}.new"
        files.remove(self._aside)
        self._file = files.open(self._aside, create=True)
        self._cursor = ""
        self._keys = self._bytes = 0

    def step(self, now_ms: int) -> bool:
        """Write the next chunk; False if that was the end. Not durable until the next sync."""
        rows = records.take_rows(self._store, self._cursor)
        if not rows:
            self._write(records.encode_end(self._keys, now_ms))
            return False
        self._write(records.encode_chunk(rows, self._keys, now_ms))
        self._keys += len(rows)
        self._cursor = rows[-1].key
        return True

    def _write(self, entry: bytes) -> None:
        self._bytes += self._file.write_at(self._bytes, [entry])

    def sync(self) -> None:
        """Make what was written durable, here and now."""
        self._file.sync()

    def finish(self) -> int:
        """Put the synced file in place of the old one; returns the number of keys."""
        self._file.close()
        self._files.rename(self._aside, self._target)
        return self._keys

    def abandon(self) -> None:
        """Leave the old snapshot as it is."""
        self._file.close()
        self._files.remove(self._aside)


def save(files: Files, folder: Path, store: Store, now_ms: int) -> int:
    """Save everything at once; returns the number of keys."""
    writer = SnapshotWriter(files, folder, store)
    while writer.step(now_ms):
        pass
    writer.sync()
    return writer.finish()


def load(files: Files, folder: Path, store: Store, now_ms: int) -> int:
    """Load the saved keys into an empty store; returns how many rows were read.

    Raises `Corrupt` at the first damaged place; what lies before it has been loaded.
    """
    try:
        file = files.open(folder / NAME)
    except FileNotFoundError:
        return 0
    try:
        return _load(file, store, now_ms)
    finally:
        file.close()


def _load(file: File, store: Store, now_ms: int) -> int:
    total = 0
    for entry in _entries(file):
        try:
            header, rows = records.decode_chunk(entry)
            if header.base_offset != total:
                raise Corrupt(f"saved keys after key {total} are missing")
            for row in rows:
                records.put_row(store, row, now_ms)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"saved keys after key {total} make no sense: {error}") from None
        if header.flags & Flags.CONTROL:
            return total
        total += len(rows)
    raise Corrupt(f"the saved keys end after key {total} without an end mark")


def _entries(file: File) -> Iterator[bytes]:
    at, end = 0, file.size()
    while at < end:
        header = parse(file.read_at(at, SIZE))
        yield file.read_at(at, header.length)
        at += header.length


def set_aside(files: Files, folder: Path) -> Path:
    """Keep a damaged snapshot for inspection, out of the way of the next one."""
    kept = folder / f"{NAME}.damaged"
    files.rename(folder / NAME, kept)
    return kept
