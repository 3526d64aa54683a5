"""Saves a store to a file chunk by chunk, and loads it again (SPEC B3).

The store keeps changing between chunks. The file therefore holds each key as it was at some
moment of the save, and every key that existed throughout, but not one consistent moment. It
replaces the previous file in one step, when it is complete and durable.
`nexo.storage.snapshot` writes a whole state at once, which would take too long for a
million keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from google_crc32c import extend

from nexo.brokers.store import records
from nexo.brokers.store.engine import StoreEngine
from nexo.errors import Corrupt
from nexo.storage.header import ALIGN, SIZE, Flags, Header, find_sound, parse, verify
from nexo.storage.mending import MAX_BYTES, mended_entry
from nexo.storage.ports import File, Files

NAME = "store.snapshot"
STOPPED = "store.stopped"
"""What a planned stop keeps of a store that is not saved while it runs."""
SYNC_BYTES = 32 << 20
"""A complete save syncs after this many bytes, so that its progress is visible."""
SEARCH_BYTES = 16 << 20
"""How far the first search for a valid entry after a damaged one reaches."""


class SnapshotWriter:
    """One save in progress. Call `step` until it returns False, sync, then `finish`."""

    def __init__(self, files: Files, target: Path, store: StoreEngine) -> None:
        files.make_folder(target.parent)
        self._files = files
        self._store = store
        self._target = target
        self._aside = target.with_name(f"{target.name}.new")
        files.remove(self._aside)
        self._file = files.open(self._aside, create=True)
        self._cursor = ""
        self._keys = self.size_bytes = 0

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
        self.size_bytes += self._file.write_at(self.size_bytes, [entry])

    def sync(self) -> None:
        """Make what was written durable, synchronously."""
        self._file.sync()

    def finish(self) -> int:
        """Replace the old file with the synced one; returns the number of keys."""
        self._file.close()
        self._files.rename(self._aside, self._target)
        return self._keys

    def abandon(self) -> None:
        self._file.close()
        self._files.remove(self._aside)


def save(
    files: Files,
    target: Path,
    store: StoreEngine,
    now_ms: int,
    progress: Callable[[], None] = lambda: None,
) -> int:
    """Save everything at once; returns the number of keys. Calls ``progress`` after each chunk."""
    writer = SnapshotWriter(files, target, store)
    synced = 0
    while writer.step(now_ms):
        if writer.size_bytes - synced >= SYNC_BYTES:
            writer.sync()
            synced = writer.size_bytes
        progress()
    writer.sync()
    return writer.finish()


def load(files: Files, path: Path, store: StoreEngine, now_ms: int) -> int:
    """Load the saved keys into an empty store; returns how many rows were read.

    Raises `Corrupt` at the end if anything was damaged; the valid part has been loaded.
    """
    try:
        file = files.open(path)
    except FileNotFoundError:
        return 0
    with closing(file):
        return _load(file, store, now_ms)


def _load(file: File, store: StoreEngine, now_ms: int) -> int:
    loaded = expected = 0
    damage: list[str] = []
    for header, entry in _sound_entries(file):
        if header.base_offset != expected:
            damage.append(f"saved keys {expected} to {header.base_offset - 1} are damaged")
        if header.flags & Flags.CONTROL:
            if damage:
                raise Corrupt("; ".join(damage))
            return loaded
        expected = header.next_offset
        try:
            rows = records.decode_chunk(entry)
            for row in rows:
                records.put_row(store, row, now_ms)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            damage.append(f"saved keys after key {header.base_offset} are malformed: {error}")
        else:
            loaded += len(rows)
    raise Corrupt("; ".join([*damage, f"the saved keys end after key {expected}, without an end"]))


def _sound_entries(file: File) -> Iterator[tuple[Header, bytes]]:
    """Entries that pass their checks, with a flipped byte put right; other damage is skipped."""
    at, end, keys = 0, file.size(), 0
    while at < end:
        try:
            header = parse(file.read_at(at, SIZE))
            entry = file.read_at(at, header.length)
            verify(entry)
        except Corrupt:
            found = _mended(file, at, keys)
            if found is None:
                at = _next_sound(file, at + ALIGN, end)
                continue
            entry, header = found, parse(found)
        yield header, entry
        at, keys = at + header.length, header.next_offset


def _mended(file: File, at: int, keys: int) -> bytes | None:
    """The entry after so many keys, with a flipped byte put right."""
    try:
        length = parse(file.read_at(at, SIZE)).length
    except Corrupt:
        length = MAX_BYTES
    region = file.read_at(at, min(length, MAX_BYTES))
    return mended_entry(region, lambda header: header.base_offset == keys)


def _next_sound(file: File, at: int, end: int) -> int:
    """Where the next valid entry begins; ``end`` if there is none."""
    size = SEARCH_BYTES
    while at < end:
        data = file.read_at(at, min(size, end - at))
        if (found := find_sound(data, 0, 0)) is not None:
            return at + found[0]
        if at + size >= end:
            break
        size *= 2  # an entry may be longer than what was searched
    return end


def copy_damaged(files: Files, path: Path) -> Path:
    """Keep a copy of a damaged snapshot for inspection, named by its content.

    The file itself stays until the next save replaces it: nothing else has its valid part.
    """
    aside, crc, at = path.with_name(f"{path.name}.damaged.new"), 0, 0
    files.remove(aside)
    with (
        closing(files.open(path)) as source,
        closing(files.open(aside, create=True)) as copy,
    ):
        while at < source.size():
            data = source.read_at(at, SYNC_BYTES)
            crc = extend(crc, data)
            at += copy.write_at(at, [data])
        copy.sync()
    kept = path.with_name(f"{path.name}.{crc:08x}.damaged")
    files.rename(aside, kept)
    return kept
