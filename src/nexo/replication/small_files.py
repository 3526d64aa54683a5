"""Users and the lake's catalog: small files that are shipped whole whenever one has changed.

``server/<number>`` is created only if absent and holds all of them; the newest counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from nexo.replication.objects import (
    AlreadyThere,
    ObjectFormat,
    ObjectStore,
    delete_below,
    next_number,
    numbered,
)
from nexo.storage.disk.files import replace_private

SERVER = "server/"
KEPT = 5
_SQLITE = b"SQLite format 3\0"
_FORMAT = ObjectFormat(b"NEXOSRV\0", dict[str, bytes], "server object")


class Overtaken(Exception):
    """Another server has shipped its files: it leads."""


class SmallFiles:
    """Ships the files of a leader, and puts those of the newest object in their places."""

    def __init__(self, store: ObjectStore, paths: Mapping[str, Path]) -> None:
        self._store = store
        self._paths = paths
        self._number = -1
        self._stats: dict[str, tuple[int, int]] | None = None
        self._last: dict[str, bytes] | None = None

    def restore(self) -> list[str]:
        """Write the newest files where they belong; returns which there were."""
        files = self._newest()
        for name, content in (files or {}).items():
            if name in self._paths:
                self._paths[name].parent.mkdir(parents=True, exist_ok=True)
                replace_private(self._paths[name], content)
        return sorted(files or {})

    def ship_changes(self) -> bool:
        """Put the files if one has changed; raises `Overtaken`. Returns whether one had."""
        stats = {name: stat for name, path in self._paths.items() if (stat := _stat(path))}
        if stats == self._stats:
            return False
        files = {name: _content(self._paths[name]) for name in stats}
        if self._last is None:
            self._last = self._newest()
        if files != (self._last or {}):
            self._put(files)
        self._stats, self._last = stats, files
        return True

    def _newest(self) -> dict[str, bytes] | None:
        self._number = next_number(self._store, SERVER) - 1
        if self._number < 0:
            return None
        data = self._store.get(numbered(SERVER, self._number))
        return None if data is None else _FORMAT.unpack(data, self._number)

    def _put(self, files: dict[str, bytes]) -> None:
        number = self._number + 1
        key, data = numbered(SERVER, number), _FORMAT.pack(files, number)
        try:
            self._store.create(key, data)
        except AlreadyThere:
            if self._store.get(key) != data:
                raise Overtaken("another server has shipped its users") from None
        self._number = number
        delete_below(self._store, SERVER, max(0, number - KEPT))


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _content(path: Path) -> bytes:
    """The file's bytes; those of a database as its last transaction left them."""
    data = path.read_bytes()
    if not data.startswith(_SQLITE):
        return data
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as source:
        return source.serialize()
