"""The log: segments in a folder, appended at the end, read from anywhere (SPEC E1, E2, E5, E6).

Opening lists the folder and looks at the end of the last segment; everything else waits for
first use. A log that was never written has no files. One thread owns a log.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from struct import Struct

from nexo.errors import Corrupt, InvalidInput, NexoError, OffsetOutOfRange, ReadOnly
from nexo.storage import sealed
from nexo.storage.header import SIZE, stamp
from nexo.storage.index import NEVER
from nexo.storage.ports import Buffer, Files
from nexo.storage.scan import body_sound, head_at, sound_run
from nexo.storage.segment import HEADER, Damage, Segment, file_header, parse_name, segment_name

SEGMENT_BYTES = 64 * 1024 * 1024
_START_MAGIC = b"NEXOSTA\0"
_START = "start"
_FIELDS = Struct("<I8xIqq")
_MAX_HINTS = 16
_READ = 1024 * 1024

logger = logging.getLogger("nexo.storage")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What `SegmentedLog.segments` tells of one segment; times are None if it is empty."""

    path: Path
    base_offset: int
    next_offset: int
    size_bytes: int
    first_ms: int | None
    last_ms: int | None
    compacted: bool


class SegmentedLog:
    """A `nexo.storage.ports.Log` in files."""

    __slots__ = ("_active",  "_failed", "_files", "_folder", "_hints",
                 "_segment_bytes", "_segments", "_sync_on_roll", "next_offset", "size_bytes",
                 "start_offset")  # fmt: skip

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync_on_roll: bool = False,
    ) -> None:
        """``sync_on_roll`` keeps unsynced entries within the last segment."""
        self._files = files
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._sync_on_roll = sync_on_roll
        self._segments: list[Segment] = []
        self._active: Segment | None = None
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._failed = False
        self.start_offset = self.next_offset = self.size_bytes = 0
        self._open()

    # -- writing --------------------------------------------------------------

    def append(self, head: bytearray, body: Sequence[Buffer]) -> int:
        """Stamp the base offset into the sealed header and write the entry. Not durable."""
        length, span, first_ms, last_ms = _FIELDS.unpack_from(head, 16)
        segment = self._writable(length)
        offset = self.next_offset
        stamp(head, offset)
        position = self._write(segment, (head, *body), length)
        segment.index.note(offset, position, first_ms, last_ms)
        segment.end = self.next_offset = offset + span
        return offset

    def append_many(self, entries: Sequence[tuple[bytearray, Sequence[Buffer]]]) -> int:
        """Append several entries in one write; returns the first base offset.

        They lie in one segment, so that after a crash a prefix of them is found.
        """
        fields = [_FIELDS.unpack_from(head, 16) for head, _ in entries]
        total = sum(length for length, *_ in fields)
        segment = self._writable(total)
        first = offset = self.next_offset
        parts: list[Buffer] = []
        for (head, body), (_, span, _, _) in zip(entries, fields, strict=True):
            stamp(head, offset)
            parts += (head, *body)
            offset += span
        position = self._write(segment, parts, total)
        offset = first
        for length, span, first_ms, last_ms in fields:
            segment.index.note(offset, position, first_ms, last_ms)
            position += length
            offset += span
        segment.end = self.next_offset = offset
        return first

    def _writable(self, length: int) -> Segment:
        """The segment that the next ``length`` bytes go to."""
        if self._failed:
            raise ReadOnly(f"{self._folder} lost a write and cannot take more: restart")
        segment = self._active
        if segment is None:
            return self._start_segment()
        if segment.size + length > self._segment_bytes and segment.size > HEADER:
            return self._roll()
        return segment

    def _write(self, segment: Segment, parts: Sequence[Buffer], length: int) -> int:
        """Write behind the last entry; on failure the file is as before. Returns the position."""
        position = segment.size
        if not position:
            parts, position = (file_header(segment.base), *parts), HEADER
        try:
            written = segment.file.write_at(segment.size, parts)
            if written != position - segment.size + length:
                raise InvalidInput(f"entry of {written} bytes says it has {length}")
        except (OSError, NexoError):
            self._undo(segment)
            raise
        segment.size = position + length
        self.size_bytes += written
        return position

    def _undo(self, segment: Segment) -> None:
        """Cut what a failed write left, or refuse writes for good: it must not look whole."""
        try:
            segment.file.truncate(segment.size)
        except (OSError, NexoError):
            self._failed = True

    def _roll(self) -> Segment:
        """Close the active segment and begin the next."""
        if self._active is not None:
            if self._sync_on_roll:
                self._active.file.sync()
            self._active.save_index()
            self._active.first_ms = self._active.index.first_ms
            self._active.max_ms = self._active.index.max_ms
        return self._start_segment()

    def _start_segment(self) -> Segment:
        if not self._segments:
            self._files.make_folder(self._folder)
        segment = Segment(self._files, self._folder, self.next_offset, self.next_offset, False)
        segment.create()
        self._segments.append(segment)
        self._active = segment
        return segment

    # -- reading --------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole verified entries from the one that holds ``offset``, at least one if any."""
        if offset == self.next_offset:
            return b""
        segment, position, base = self._find(offset)
        data = segment.file.read_at(position, min(max(max_bytes, SIZE), segment.size - position))
        length, following, cut_off = sound_run(data, base, not segment.compacted)
        if not length:
            if not cut_off:
                raise segment.damage_at(position, base).error(segment.path)
            data, length, following = self._read_one(segment, position, base)
        self._remember(following, segment, position + length)
        return data if length == len(data) else data[:length]

    def _read_one(self, segment: Segment, position: int, base: int) -> tuple[bytes, int, int]:
        """The entry at ``position``, which is larger than what the reader asked for."""
        head = head_at(segment.file.read_at(position, SIZE), 0)
        data = segment.file.read_at(position, head.length) if head else b""
        if head is None or not body_sound(data, 0, head):
            raise segment.damage_at(position, base).error(segment.path)
        return data, head.length, head.next

    def locate(self, offset: int, max_bytes: int) -> tuple[Path, int, int]:
        """File, position and size of what `read` would return, without verifying bodies.

        Valid until the next `drop_before`, `truncate_after` or `rewrite`.
        """
        if offset == self.next_offset:
            return self._folder, 0, 0
        segment, start, base = self._find(offset)
        end = start
        for position, head in segment.heads(start, base):
            if end > start and position + head.length - start > max_bytes:
                break
            end, base = position + head.length, head.next
        self._remember(base, segment, end)
        return segment.path, start, end - start

    def entries(self, offset: int | None = None) -> Iterator[bytes]:
        """Every entry from the one that holds ``offset`` on, by default from the start."""
        at = self.start_offset if offset is None else max(offset, self.start_offset)
        while run := self.read(at, _READ):
            position = 0
            while position < len(run):
                head = head_at(run, position)
                assert head is not None, "read returned an unverified entry"
                yield run[position : position + head.length]
                position, at = position + head.length, head.next

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset of an entry whose last timestamp is at or after ``timestamp_ms``."""
        for segment in self._segments:
            index = segment.index if segment.max_ms == NEVER else None
            if (index or segment).max_ms < timestamp_ms:
                continue
            base, position = segment.index.before_time(timestamp_ms) or (segment.base, HEADER)
            for _, head in segment.heads(position, base, skip_damage=True):
                if head.last_ms >= timestamp_ms and head.next > self.start_offset:
                    return max(head.base, self.start_offset)
        return self.next_offset

    def _find(self, offset: int) -> tuple[Segment, int, int]:
        """Segment, position and base offset of the entry that holds ``offset``, or of the next."""
        hint = self._hints.get(offset)
        if hint is not None:
            segment, position, base = *hint, offset
        else:
            self._check_range(offset)
            segment = self._segments[self._segment_of(offset)]
            position, base = segment.seek(offset)
        while position >= segment.size:
            segment = self._behind(segment, base)
            position, base = HEADER, segment.base
        return segment, position, base

    def _behind(self, segment: Segment, offset: int) -> Segment:
        """The next segment; `Corrupt` if ``offset`` should still have been in this one."""
        segment.check_end(offset)
        return self._segments[self._segments.index(segment) + 1]

    def _segment_of(self, offset: int) -> int:
        return bisect_right(self._segments, offset, key=attrgetter("base")) - 1

    def _check_range(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not in {self.start_offset} to {self.next_offset}"
            )

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """Note where a reader that goes on will be, so that it costs one read and no search."""
        if len(self._hints) >= _MAX_HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = segment, position

    # -- forgetting -----------------------------------------------------------

    def drop_before(self, offset: int) -> int:
        """Forget offsets below ``offset``, durably; returns the bytes freed.

        The start is written before segments go, so that a crash between leaves no hole.
        """
        if offset <= self.start_offset:
            return 0
        self._check_range(offset)
        active = self._active
        if active is not None and active.base < offset == active.end:
            self._roll().file.sync()
        sealed.write(self._files, self._folder / _START, sealed.pack(_START_MAGIC, b"", offset))
        self.start_offset = offset
        return self._remove_dropped()

    def _remove_dropped(self) -> int:
        before = self.size_bytes
        while len(self._segments) > 1 and self._segments[0].end <= self.start_offset:
            segment = self._segments.pop(0)
            segment.remove()
            self.size_bytes -= segment.size
        self._hints.clear()
        return before - self.size_bytes

    def truncate_after(self, offset: int) -> None:
        """Drop, durably, the entry that holds ``offset`` and all behind it.

        Their offsets are given out again: only for entries that nobody was shown.
        """
        self._check_range(offset)
        if offset == self.next_offset:
            return
        self._hints.clear()
        at = self._segment_of(offset)
        segment = self._segments[at]
        for later in self._segments[at + 1 :]:
            later.remove()
            self.size_bytes -= later.size
        del self._segments[at + 1 :]
        segment.file.sync()  # their names are gone for good before this segment shrinks
        self._cut(segment, offset)

    def _cut(self, segment: Segment, offset: int) -> None:
        before = segment.size
        position, base = segment.seek(offset)
        index = segment.index
        segment.cut(position, base)
        index.cut(position)
        self._files.remove(segment.index_path)
        segment.file.sync()
        self.size_bytes -= before - segment.size
        self._active = segment
        self.next_offset = base

    def drop_damaged_tail(self, damage: Damage) -> None:
        """Set the last segment aside as a copy, then drop it from ``damage`` on.

        For damage that its owner knows to be writes that were never synced.
        """
        segment = self._segments[-1]
        tail = segment.file.read_at(damage.position, segment.size - damage.position)
        name = f"{segment.path.name}.{damage.position}.cut"
        sealed.write(self._files, self._folder / name, tail)
        before = segment.size
        segment.cut(damage.position, damage.offset)
        segment.index.cut(damage.position)
        segment.damages = None
        self._files.remove(segment.index_path)
        segment.file.sync()
        self.size_bytes -= before - segment.size
        self.next_offset = damage.offset
        self._hints.clear()

    # -- compaction -----------------------------------------------------------

    def rewrite(self, first: int, end: int, entries: Iterable[bytes]) -> int:
        """Replace the closed segments from offset ``first`` to ``end`` by ``entries``.

        ``entries`` keep their offsets, rising, with gaps where others were. The change is one
        durable rename; a crash leaves the old segments or the new one. Returns bytes freed.
        """
        old = self._closed_between(first, end)
        segment = Segment(self._files, self._folder, first, end, True)
        aside = self._folder / (segment_name(first, end) + ".new")
        segment.size = self._write_aside(aside, file_header(first, end), entries)
        replaced = [stale for stale in old if stale.path != segment.path]
        self._files.remove(segment.index_path)
        self._files.rename(aside, segment.path)
        for stale in old:
            stale.close()
        for stale in replaced:
            stale.remove()
        at = self._segments.index(old[0])
        self._segments[at : at + len(old)] = [segment]
        self._hints.clear()
        freed = sum(stale.size for stale in old) - segment.size
        self.size_bytes -= freed
        return freed

    def _closed_between(self, first: int, end: int) -> list[Segment]:
        old = [
            s for s in self._segments if first <= s.base and s.end <= end and s is not self._active
        ]
        if not old or old[0].base != first or old[-1].end != end:
            raise InvalidInput(f"{first} to {end} are not the borders of closed segments")
        return old

    def _write_aside(self, path: Path, header: bytes, entries: Iterable[bytes]) -> int:
        file = self._files.open(path, create=True)
        try:
            file.truncate(0)
            size = file.write_at(0, [header])
            for entry in entries:
                size += file.write_at(size, [entry])
            file.sync()
        finally:
            file.close()
        return size

    # -- looking --------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """The segments, oldest first. Loads each index once."""
        return [self._info(segment) for segment in self._segments]

    def _info(self, segment: Segment) -> SegmentInfo:
        index = segment.index
        first, last = index.first_ms, index.max_ms
        empty = last == NEVER
        return SegmentInfo(
            segment.path,
            segment.base,
            segment.end,
            segment.size,
            None if empty else first,
            None if empty else last,
            segment.compacted,
        )

    @property
    def synced_bytes(self) -> int:
        """How much of the last segment is known to survive power loss."""
        return self._active.file.synced_bytes if self._active is not None else 0

    def sync(self) -> None:
        """Make this log durable now; `nexo.storage.flusher` does it for many at once."""
        for segment in self._segments:
            segment.sync()

    def damaged(self) -> list[Damage]:
        """The damage met so far, by opening or reading; `verify` looks everywhere."""
        found = [d for segment in self._segments for d in (segment.damages or {}).values()]
        return sorted(found, key=attrgetter("offset"))

    def verify(self) -> list[Damage]:
        """Read everything and return all damage. Takes as long as the log is large."""
        at = self.start_offset
        for segment in self._segments:
            segment.check_header()
        while at < self.next_offset:
            try:
                for entry in self.entries(at):
                    head = head_at(entry, 0)
                    at = head.next if head else at
                break
            except Corrupt as error:
                at = error.next_offset or self.next_offset
        return self.damaged()

    def close(self) -> None:
        """Give back what is held. Does not sync."""
        if self._active is not None:
            self._active.save_index()
        for segment in self._segments:
            segment.close()

    # -- opening --------------------------------------------------------------

    def _open(self) -> None:
        names = self._files.list(self._folder)
        self._segments = [
            Segment(self._files, self._folder, base, end, end >= 0)
            for base, end in self._current(names)
        ]
        if not self._segments:
            return
        self._set_ends()
        self.next_offset = self._segments[-1].end
        self.start_offset = self._segments[0].base
        if _START in names:
            self._load_start()
        self.size_bytes = sum(segment.size for segment in self._segments)
        self._remove_dropped()

    def _current(self, names: list[str]) -> list[tuple[int, int]]:
        """The segments that count: none that a compacted one covers, no half-written ones."""
        found = sorted(
            (parsed for name in names if (parsed := parse_name(name))),
            key=lambda parsed: (parsed[0], -parsed[1]),
        )
        current: list[tuple[int, int]] = []
        covered = -1
        for base, end in found:
            if base < covered:
                self._files.remove(self._folder / segment_name(base, end))
                continue
            current.append((base, end))
            covered = max(covered, end)
        for name in names:
            if name.endswith(".new"):
                self._files.remove(self._folder / name)
        return current

    def _set_ends(self) -> None:
        for segment, following in zip(self._segments, self._segments[1:], strict=False):
            segment.end = following.base if not segment.compacted else segment.end
            segment.size = self._files.size(segment.path)
        last = self._segments[-1]
        if last.compacted:
            last.size = self._files.size(last.path)
            self.next_offset = last.end
            self._start_segment()
        else:
            last.recover_tail()
            self._active = last

    def _load_start(self) -> None:
        try:
            stored = sealed.read(self._files, self._folder / _START, _START_MAGIC)
        except Corrupt as error:
            logger.error("%s: %s; dropped offsets are back", self._folder / _START, error)
            return
        if stored is not None:
            self.start_offset = max(self.start_offset, min(stored[1], self.next_offset))
