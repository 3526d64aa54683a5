"""Deletions of streams that the journal has no room for yet (SPEC I7).

A stream whose folder was renamed to a grave is deleted, whatever the journal says: renaming
takes no disk space, and removing the grave's files frees some. The empty grave stays until
the deletion is in the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from nexo.brokers.stream.registry import OpenStream
from nexo.storage.ports import Files

log = logging.getLogger("nexo.stream")

_PREFIX = "deleted."
"""Distinct from folders of streams, which have ``~`` in their names."""


class PendingDeletions:
    """The graves in the folder that holds the streams' folders."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    def bury(self, stream: OpenStream) -> bool:
        """Delete a stream's files durably; returns whether the disk allowed it."""
        grave = self._of(stream.id)
        try:
            self._files.make_folder(self._folder / stream.folder)  # it may never have been used
            self._files.rename(self._folder / stream.folder, grave)
        except OSError as error:
            log.warning("stream %r cannot be deleted yet: %s", stream.name, error)
            return False
        self._empty(grave)
        return True

    def found(self) -> Iterator[int]:
        """The numbers of deleted streams, even if the journal still has them."""
        for name in self._files.list(self._folder):
            if name.startswith(_PREFIX):
                self._empty(self._folder / name)
                yield int(name.removeprefix(_PREFIX), 16)

    def forget(self, number: int) -> None:
        """Remove a grave: the journal has the deletion."""
        self._files.remove(self._of(number))

    def _of(self, number: int) -> Path:
        return self._folder / f"{_PREFIX}{number:x}"

    def _empty(self, grave: Path) -> None:
        for name in self._files.list(grave):
            self._files.remove(grave / name)
