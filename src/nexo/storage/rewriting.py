"""Writes a compacted segment beside the closed ones that it will replace.

It is written in portions, each of which can be synced before the next, and put in place by
one durable rename. A crash leaves either the old segments or the new one, and at most a
file named ``*.new``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from nexo.storage.ports import Files
from nexo.storage.segment import Segment, file_header


class Folder(Protocol):
    """The segments of the log."""

    def closed_between(self, first: int, end: int) -> list[Segment]:
        """The closed segments with these bounds; `InvalidInput` if there are none."""

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a new segment in the place of old ones."""


class Rewriting:
    """A new segment for offsets ``first`` to ``end``: entries
    keep their offsets, with gaps in between.
    """

    __slots__ = ("_aside", "_file", "_files", "_folder", "_new")

    def __init__(self, files: Files, folder: Folder, new: Segment) -> None:
        folder.closed_between(new.base, new.end)
        self._files = files
        self._folder = folder
        self._new = new
        self._aside = new.path.with_name(new.path.name + ".new")
        self._file = files.open(self._aside, create=True)
        self._file.truncate(0)
        new.size = self._file.write_at(0, [file_header(new.base, new.end)])

    def add(self, entries: Iterable[bytes]) -> None:
        """Write entries in ascending order. Not durable."""
        for entry in entries:
            self._new.size += self._file.write_at(self._new.size, [entry])

    def finish(self) -> None:
        """Make it durable and put it in place; quick if it was synced before."""
        old = self._folder.closed_between(self._new.base, self._new.end)
        self._file.sync()
        self._file.close()
        self._files.remove(self._new.index_path)
        self._files.rename(self._aside, self._new.path)
        for stale in old:
            if stale.path != self._new.path:
                stale.remove()
            stale.close()
        self._folder.replace(old, self._new)

    def abandon(self) -> None:
        """Leave the log as it was; does nothing after `finish`."""
        self._file.close()
        self._files.remove(self._aside)
