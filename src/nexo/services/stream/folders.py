"""Folders of streams that recovery does not know of.

Numbers of streams name their folders and are never used again, so a new stream must not get one
of a folder that is there. If damage took the record that a stream was created, the folder still
tells its name and how many partitions it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.registry import READABLE
from nexo.model import name_of_segment
from nexo.storage.ports import Files

_FOLDER = re.compile(r"(.+)~([0-9a-f]+)")


class FoundFolder(NamedTuple):
    """A stream's folder; ``name`` is None if it is too long to be told whole."""

    path: Path
    number: int
    name: str | None


def found_folders(files: Files, folder: Path) -> Iterator[FoundFolder]:
    """Every stream's folder."""
    for each in files.list(folder):
        if (match := _FOLDER.fullmatch(each)) is not None:
            segment = match[1]
            name = name_of_segment(segment) if len(segment) < READABLE else None
            yield FoundFolder(folder / each, int(match[2], 16), name)


def adopt(engine: StreamEngine, files: Files, found: FoundFolder, now_ms: int) -> bool:
    """Have the stream of a folder again, with the default options; whether that was possible."""
    known = engine.streams.numbered(found.number)
    if known is not None or found.name is None or found.name in engine.streams:
        return False
    partitions = [int(name) for name in files.list(found.path) if name.isdecimal()]
    engine.adopt(found.number, found.name, max(partitions, default=0) + 1, now_ms)
    return True
