"""Snapshots: a state's bytes as of one journal offset, replaced atomically.

A snapshot is a sealed file ``<offset>.snap`` (20 digits; `nexo.storage.sealed`), written
aside, synced and renamed. The previous one is kept in case the newest is damaged.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nexo.errors import Corrupt
from nexo.storage import sealed
from nexo.storage.ports import Files

MAGIC = b"NEXOSNP\0"
_SUFFIX = ".snap"
_DAMAGED = ".damaged"
_KEPT = 2

logger = logging.getLogger("nexo.storage")


class Snapshots:
    """The snapshots of one state, in one folder.

    Each has the journal offset from which changes apply to it.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    def save(self, offset: int, payload: bytes) -> None:
        """Write durably; keeps the previous snapshot and removes older ones."""
        self._files.make_folder(self._folder)
        data = sealed.pack(MAGIC, payload, offset)
        sealed.write(self._files, self._path(offset), data)
        for older in self.offsets()[:-_KEPT]:
            self._files.remove(self._path(older))

    def load(self) -> tuple[int, bytes | None, list[int]]:
        """Offset and payload of the newest valid snapshot, and the offsets of damaged newer ones.

        Without a valid one, 0 and None. A damaged one is renamed, so that it does not count as a
        fallback.
        """
        damaged: list[int] = []
        for offset in reversed(self.offsets()):
            try:
                return offset, self._read(offset), damaged
            except Corrupt as error:
                path = self._path(offset)
                logger.error("%s: %s; using the one before", path, error)
                self._files.rename(path, path.with_name(f"{path.name}{_DAMAGED}"))
                damaged.append(offset)
        return 0, None, damaged

    def offsets(self) -> list[int]:
        """The offsets of all snapshots, damaged ones included, oldest first."""
        names = self._files.list(self._folder)
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _read(self, offset: int) -> bytes:
        stored = sealed.read(self._files, self._path(offset), MAGIC)
        if stored is None or stored[1] != offset:
            raise Corrupt("snapshot does not match its file name")
        return stored[0]

    def _path(self, offset: int) -> Path:
        return self._folder / f"{offset:020}{_SUFFIX}"
