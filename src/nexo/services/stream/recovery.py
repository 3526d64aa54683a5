"""Recovers what a broker's journal lost of its streams, and skips offsets that may be lost.

A stream's number is part of its folder's name and is never reused, so a new stream must not
get the number of an existing folder. If damage removed the record that created a stream,
the folder still holds its name and partition count.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.groups.progress import NO_END
from nexo.brokers.stream.registry import READABLE
from nexo.errors import NexoError
from nexo.model import name_of_segment
from nexo.options.stream import updated
from nexo.storage.ports import Files

log = logging.getLogger("nexo.stream")

_FOLDER = re.compile(r"(.+)~([0-9a-f]+)")


class FoundFolder(NamedTuple):
    """A stream's folder; ``name`` is None if it was too long to fit."""

    path: Path
    number: int
    name: str | None


def recover_folders(
    engine: StreamEngine, files: Files, folder: Path, now_ms: int, *, lost: bool
) -> None:
    """Reuse no number, and adopt streams whose creation the journal has ``lost``."""
    streams = engine.streams
    for found in _found_folders(files, folder):
        if lost and _adopt(engine, files, found, now_ms):
            log.error(
                "the creation of stream %r was lost: it continues with the default options",
                found.name,
            )
        elif lost:
            _regrow(engine, files, found, now_ms)
        streams.next_id = max(streams.next_id, found.number + 1)


def jump_ahead(engine: StreamEngine, boot_id: str) -> None:
    """After a power loss: give no offset again that a client may have seen (SPEC E2)."""
    for stream in engine.lost_power(boot_id):
        try:
            engine.jump_ahead(stream)
        except (NexoError, OSError):
            log.exception("power was lost; stream %r may repeat offsets", stream.name)


def _found_folders(files: Files, folder: Path) -> Iterator[FoundFolder]:
    for each in files.list(folder):
        if (match := _FOLDER.fullmatch(each)) is not None:
            segment = match[1]
            name = name_of_segment(segment) if len(segment) < READABLE else None
            yield FoundFolder(folder / each, int(match[2], 16), name)


def _adopt(engine: StreamEngine, files: Files, found: FoundFolder, now_ms: int) -> bool:
    """Adopt the stream of a folder, with default options; returns whether that worked."""
    known = engine.streams.numbered(found.number)
    if known is not None or found.name is None or found.name in engine.streams:
        return False
    options = replace(engine.defaults, partitions=_count(files, found))
    engine.add(found.name, options, now_ms, found.number)
    return True


def _regrow(engine: StreamEngine, files: Files, found: FoundFolder, now_ms: int) -> None:
    """Give a stream the partitions that its folder has, if their addition was lost."""
    known = engine.streams.numbered(found.number)
    if known is None or (count := _count(files, found)) <= known.options.partitions:
        return
    ends = [NO_END] * known.options.partitions  # where they ended then is lost too
    engine.grow(known, updated(known.options, {"partitions": count}), ends, now_ms)


def _count(files: Files, found: FoundFolder) -> int:
    partitions = [int(name) for name in files.list(found.path) if name.isdecimal()]
    return max(partitions, default=0) + 1
