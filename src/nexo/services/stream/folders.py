"""Folders of streams whose creation the journal lost, or whose deletion it has no room for.

A stream's number is part of its folder's name and is never reused, so a new stream must not
get the number of an existing folder. If damage removed the record that created a stream,
the folder still holds its name and partition count.

A stream can be deleted though the journal has no room for that (SPEC I7): its folder is renamed,
which takes no disk space, and its files are removed, which frees some. The empty folder marks
the deletion until the journal has it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.registry import READABLE, OpenStream
from nexo.model import name_of_segment
from nexo.storage.ports import Files

log = logging.getLogger("nexo.stream")

_FOLDER = re.compile(r"(.+)~([0-9a-f]+)")
_DELETED = "deleted."
"""Begins the names of marks; other folders have ``~`` in their names."""


class FoundFolder(NamedTuple):
    """A stream's folder; ``name`` is None if it was too long to fit."""

    path: Path
    number: int
    name: str | None


def found_folders(files: Files, folder: Path) -> Iterator[FoundFolder]:
    for each in files.list(folder):
        if (match := _FOLDER.fullmatch(each)) is not None:
            segment = match[1]
            name = name_of_segment(segment) if len(segment) < READABLE else None
            yield FoundFolder(folder / each, int(match[2], 16), name)


def adopt(engine: StreamEngine, files: Files, found: FoundFolder, now_ms: int) -> bool:
    """Adopt the stream of a folder, with default options; returns whether that worked."""
    known = engine.streams.numbered(found.number)
    if known is not None or found.name is None or found.name in engine.streams:
        return False
    partitions = [int(name) for name in files.list(found.path) if name.isdecimal()]
    options = replace(engine.defaults, partitions=max(partitions, default=0) + 1)
    engine.add(found.name, options, now_ms, found.number)
    return True


class PendingDeletions:
    """The marks of deleted streams, in the folder that holds the streams' folders."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    def add(self, stream: OpenStream) -> bool:
        """Delete a stream's files durably; returns whether the disk allowed it."""
        mark = self._mark(stream.id)
        try:
            self._files.make_folder(self._folder / stream.folder)  # it may never have been used
            self._files.rename(self._folder / stream.folder, mark)
        except OSError as error:
            log.warning("stream %r cannot be deleted yet: %s", stream.name, error)
            return False
        self._empty(mark)
        return True

    def found(self) -> Iterator[int]:
        """The numbers of deleted streams, even if the journal still has them."""
        for name in self._files.list(self._folder):
            if name.startswith(_DELETED):
                self._empty(self._folder / name)
                yield int(name.removeprefix(_DELETED), 16)

    def remove(self, number: int) -> None:
        """Remove a mark: the journal has the deletion."""
        self._files.remove(self._mark(number))

    def _mark(self, number: int) -> Path:
        return self._folder / f"{_DELETED}{number:x}"

    def _empty(self, mark: Path) -> None:
        for name in self._files.list(mark):
            self._files.remove(mark / name)
