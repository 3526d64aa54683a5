"""The folder of a log: which segments count, where the log starts, which one is written to.

Beside the segments and their indexes lies ``start``, a sealed file whose mark is the log's
start offset. It is absent until something is dropped. Files named ``*.new`` were being
written during a crash; files named ``*.cut`` are copies of what
`SegmentedLog.drop_damaged_tail` dropped.

A compacted segment is written beside the closed ones that it will replace, in portions, each
of which can be synced before the next, and put in place by one durable rename. A crash leaves
either the old segments or the new one.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from nexo.errors import Corrupt, InvalidInput, NexoError
from nexo.storage import sealed
from nexo.storage.ports import Files
from nexo.storage.recovery import recover_tail
from nexo.storage.segment import Segment, file_header, parse_name, segment_name

_START_MAGIC = b"NEXOSTA\0"
_START = "start"

logger = logging.getLogger("nexo.storage")


class SegmentFolder:
    """The segments of one log, oldest first; the last one is written to."""

    __slots__ = ("_power_kept", "files", "path", "segments", "start_offset")

    def __init__(self, files: Files, path: Path, power_kept: bool = False) -> None:
        self.files = files
        self.path = path
        self._power_kept = power_kept
        self.segments: list[Segment] = []
        self.start_offset = 0
        self._open()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def of(self, offset: int) -> int:
        """The index in ``segments`` of the one that holds ``offset``."""
        return bisect_right(self.segments, offset, key=attrgetter("base")) - 1

    def after(self, segment: Segment) -> Segment:
        return self.segments[self.segments.index(segment) + 1]

    def add(self, base: int) -> Segment:
        if not self.segments:
            self.files.make_folder(self.path)
        segment = Segment(self.files, self.path, base, base, False)
        segment.create()
        self.segments.append(segment)
        return segment

    # -- forgetting -----------------------------------------------------------

    def set_start(self, offset: int) -> None:
        """Move the start, durably; `remove_dropped` then removes the segments before it.

        In that order a crash in between leaves no hole: the next open removes the rest.
        """
        data = sealed.pack(_START_MAGIC, b"", offset)
        sealed.write(self.files, self.path / _START, data)
        self.start_offset = offset

    def set_aside(self, segment: Segment, position: int) -> None:
        """Keep a durable copy of the bytes of ``segment`` from ``position`` on."""
        data = segment.file.read_at(position, segment.size - position)
        sealed.write(self.files, self.path / f"{segment.path.name}.{position}.cut", data)

    def remove_dropped(self) -> None:
        """Remove the segments before the start; what the disk refuses is left to the next call."""
        while len(self.segments) > 1 and self.segments[0].end <= self.start_offset:
            if not _removed(self.segments[0]):
                return
            del self.segments[0]

    # -- compaction -----------------------------------------------------------

    def closed_between(self, first: int, end: int) -> list[Segment]:
        """The closed segments with these bounds; `InvalidInput` if there are none."""
        closed = self.segments[:-1]
        old = [segment for segment in closed if first <= segment.base and segment.end <= end]
        if not old or old[0].base != first or old[-1].end != end:
            raise InvalidInput(f"{first} to {end} are not the bounds of closed segments")
        return old

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]

    # -- opening --------------------------------------------------------------

    def _open(self) -> None:
        names = self.files.list(self.path)
        for name in names:
            if name.endswith(".new"):
                self.files.remove(self.path / name)
        self.segments = [
            Segment(self.files, self.path, base, end, end >= 0)
            for base, end in self._without_covered(names)
        ]
        if not self.segments:
            return
        self._measure()
        self.start_offset = self.segments[0].base
        if _START in names:
            self._load_start()
            self.remove_dropped()

    def _without_covered(self, names: list[str]) -> list[tuple[int, int]]:
        """Base and end of the segments that count; removes those that a compacted one replaced."""
        found = [parsed for name in names if (parsed := parse_name(name))]
        found.sort(key=lambda parsed: (parsed[0], -parsed[1]))
        current: list[tuple[int, int]] = []
        covered = -1
        for base, end in found:
            if base < covered:
                self.files.remove(self.path / segment_name(base, end))
                continue
            current.append((base, end))
            covered = max(covered, end)
        return current

    def _measure(self) -> None:
        for segment, following in pairwise(self.segments):
            if not segment.compacted:
                segment.end = following.base
            segment.size = self.files.size(segment.path)
        last = self.segments[-1]
        if last.compacted:
            last.size = self.files.size(last.path)
            self.add(last.end)
        else:
            recover_tail(last, self._power_kept)

    def _load_start(self) -> None:
        try:
            stored = sealed.read(self.files, self.path / _START, _START_MAGIC)
        except Corrupt as error:
            logger.error("%s: %s; dropped offsets are back", self.path / _START, error)
            return
        if stored is not None:
            self.start_offset = max(self.start_offset, min(stored[1], self.segments[-1].end))


def _removed(segment: Segment) -> bool:
    """Remove a segment that no longer counts; if the disk refuses, the next open does it."""
    try:
        segment.remove()
    except (OSError, NexoError) as error:
        logger.warning("%s could not be removed: %s", segment.path, error)
        return False
    return True


class Rewriting:
    """A new segment for offsets ``first`` to ``end``: entries keep their offsets, with gaps."""

    __slots__ = ("_aside", "_file", "_folder", "_new")

    def __init__(self, folder: SegmentFolder, first: int, end: int) -> None:
        """Start to replace the closed segments with these bounds."""
        folder.closed_between(first, end)
        self._folder = folder
        self._new = Segment(folder.files, folder.path, first, end, True)
        self._aside = self._new.path.with_name(self._new.path.name + ".new")
        self._file = folder.files.open(self._aside, create=True)
        self._file.truncate(0)
        self._new.size = self._file.write_at(0, [file_header(first, end)])

    def add(self, entries: Iterable[bytes]) -> None:
        """Write entries in ascending order. Not durable."""
        for entry in entries:
            self._new.size += self._file.write_at(self._new.size, [entry])

    def finish(self) -> None:
        """Make it durable and put it in place; quick if it was synced before."""
        old = self._folder.closed_between(self._new.base, self._new.end)
        self._file.sync()
        self._file.close()
        self._folder.files.remove(self._new.index_path)
        self._new.forget_sums()
        self._folder.files.rename(self._aside, self._new.path)
        self._folder.replace(old, self._new)
        for stale in old:
            stale.close()
            if stale.path != self._new.path:
                _removed(stale)

    def abandon(self) -> None:
        """Leave the log as it was; does nothing after `finish`."""
        self._file.close()
        self._folder.files.remove(self._aside)
