"""The log: segments in a folder, appended at the end, read from anywhere (SPEC E1, E2, E5, E6).

Opening lists the folder and looks at the end of the last segment; the rest is loaded on
first use. A log that was never written has no files. One thread owns a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from nexo.errors import (
    Corrupt,
    DiskFull,
    InvalidInput,
    NexoError,
    OffsetOutOfRange,
    OutcomeUnknown,
)
from nexo.model import Buffer
from nexo.storage.header import (
    ALIGN,
    EXTENT,
    EXTENT_AT,
    SIZE,
    body_sound,
    head_at,
    parse,
    sound_run,
    stamp,
)
from nexo.storage.ports import Files
from nexo.storage.recovery import SMALL, room_after, was_torn
from nexo.storage.segment import HEADER, Damage, Segment, SegmentInfo, file_header
from nexo.storage.segment_folder import Rewriting, SegmentFolder

SEGMENT_BYTES = 64 * 1024 * 1024
_RULE = f"whole multiples of {ALIGN} bytes, and a span of at least 1 and the count"
_MAX_HINTS = 16
_READ = 1024 * 1024
_MUCH = 1024 * 1024
"""The sums of this many bytes are written at once, also while more is written."""
_MANY = 100
_INDEX_EVERY = 8 * 1024 * 1024
"""Save the index after this much growth, which limits the scan when opening after a crash."""


class SegmentedLog:
    """An append-only sequence of entries (`nexo.storage.header`), addressed by offset."""

    __slots__ = ("_active", "_folder", "_hints", "_index_due", "_leftover", "_room_ahead",
                 "_seen_bytes", "_segment_bytes", "_settled", "_summed", "_sync_on_roll",
                 "_unsummed", "next_offset", "size_bytes", "start_offset")  # fmt: skip

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync_on_roll: bool = False,
        room_ahead: bool = False,
        power_kept: bool = False,
        summed: bool = False,
    ) -> None:
        """``sync_on_roll`` keeps unsynced entries within the last segment.

        ``room_ahead`` is for a log that is synced after small writes (`nexo.storage.recovery`).
        ``power_kept`` says that no power was lost since the last write, so no write is missing.
        ``summed`` is for entries without second sums of their own (`nexo.storage.sums`).
        """
        self._folder = SegmentFolder(files, folder, power_kept)
        self._segment_bytes = segment_bytes
        self._sync_on_roll = sync_on_roll
        self._room_ahead = room_ahead
        self._active: Segment | None = None
        self._index_due = 0
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._leftover = False
        """A failed write may still stand after the last entry."""
        self.next_offset = 0
        self.start_offset = self._folder.start_offset
        self.size_bytes = self._folder.size_bytes
        self._summed = summed
        self._settled = False
        self._seen_bytes = 0
        self._unsummed: list[Segment] = []
        if self._folder.segments:
            self._begin_with(self._folder.segments[-1])
            self._unsettle(self._folder.segments)

    # -- writing --------------------------------------------------------------

    def append(self, head: bytearray, body: Sequence[Buffer]) -> int:
        """Stamp the base offset into the sealed header and write the entry. Not durable.

        Returns the base offset. The bytes are handed to the operating system on return. If it
        raises, nothing was appended; `OutcomeUnknown` if the next open may find it all the same.
        """
        length, count, span, first_ms, last_ms = EXTENT.unpack_from(head, EXTENT_AT)
        if not 0 < span >= count or length % ALIGN:
            raise InvalidInput(f"entry of {length} bytes, {count} records, span {span}: {_RULE}")
        segment = self._writable(length)
        offset = self.next_offset
        stamp(head, offset)
        position = self._write(segment, (head, *body), length)
        segment.index.note(offset, position, first_ms, last_ms)
        segment.end = self.next_offset = offset + span
        if self._settled and count > 1:
            self._unsettle([segment])
        if position >= self._index_due:
            self._index_due = position + _INDEX_EVERY
            segment.save_index()
        return offset

    def _writable(self, length: int) -> Segment:
        """The segment for the next ``length`` bytes."""
        if self._leftover:
            self._remove_leftover()
        segment = self._active
        if segment is None or (
            segment.size + length > self._segment_bytes and segment.size > HEADER
        ):
            return self._roll()
        return segment

    def _write(self, segment: Segment, parts: Sequence[Buffer], length: int) -> int:
        """Write after the last entry and return the position; a failed write changes nothing."""
        position = segment.size
        if not position:
            parts, position = (file_header(segment.base), *parts), HEADER
        try:
            if self._room_ahead and position + length > segment.room_end and length <= SMALL:
                written = self._write_with_room(segment, parts, position + length)
            else:
                written = segment.file.write_at(segment.size, parts)
            if written != position - segment.size + length:
                raise InvalidInput(f"entry of {written} bytes has {length} in its header")
        except (OSError, NexoError) as error:
            self._undo(error)
            raise
        segment.size = position + length
        self.size_bytes += written
        return position

    def _write_with_room(self, segment: Segment, parts: Sequence[Buffer], end: int) -> int:
        """Write what ends at ``end`` and, if the disk has space, room after it."""
        room = room_after(end, self._segment_bytes)
        segment.room_end = end + len(room)
        try:
            return segment.file.write_at(segment.size, (*parts, room)) - len(room)
        except DiskFull:  # some of the room may have been written
            return segment.file.write_at(segment.size, parts)

    def _undo(self, cause: Exception) -> None:
        """Cut off a failed write, which might look whole; until then nothing more is written."""
        self._leftover = True
        try:
            self._remove_leftover()
        except (OSError, NexoError):
            raise OutcomeUnknown(
                f"a write to {self._folder.path} failed and could not be undone: it is there "
                f"only if the server restarts before the disk answers again ({cause})"
            ) from cause

    def _remove_leftover(self) -> None:
        """Cut off what a failed write left; raises as long as the disk refuses."""
        if self._active is not None:
            self._active.file.truncate(self._active.size)
            self._active.room_end = 0
        self._leftover = False

    def _roll(self) -> Segment:
        """Close the active segment and start the next."""
        if self._leftover:
            self._remove_leftover()
        if self._active is not None:
            if self._active.give_back_room() or self._sync_on_roll:
                self._active.file.sync()  # first, so that only the last segment may have room
            self._active.save_index()
        segment = self._folder.add(self.next_offset)
        self._begin_with(segment)
        self._unsettle([segment])
        return segment

    # -- reading --------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole verified entries from the one that holds ``offset``, at least one if any.

        A damaged one raises `Corrupt` naming its offset unless whole entries before it can be
        returned. Empty at the end of the log.
        """
        if offset == self.next_offset:
            return b""
        segment, position, base = self._find(offset)
        if position >= segment.size:  # after ``offset`` there is only a gap that compaction left
            return b""
        data = segment.file.read_at(position, min(max(max_bytes, SIZE), segment.size - position))
        length, following, cut_off = sound_run(data, base, not segment.compacted)
        if not length:
            if not cut_off:
                if segment.mend(position, base):
                    return self.read(offset, max_bytes)
                raise segment.damage_at(position, base).error(segment.path)
            data, length, following = self._read_one(segment, position, base)
        self._remember(following, segment, position + length)
        return data if length == len(data) else data[:length]

    def _read_one(self, segment: Segment, position: int, base: int) -> tuple[bytes, int, int]:
        """The entry at ``position``, which is larger than what the reader asked for."""
        head = head_at(segment.file.read_at(position, SIZE), 0)
        data = segment.file.read_at(position, head.length) if head else b""
        if head is None or not body_sound(data, 0, head):
            if segment.mend(position, base):
                return self._read_one(segment, position, base)
            raise segment.damage_at(position, base).error(segment.path)
        return data, head.length, head.next_offset

    def position_of(self, offset: int) -> int:
        """Where in its segment's file the entry that holds ``offset`` begins."""
        return self._find(offset)[1]

    def entries(self, offset: int | None = None) -> Iterator[bytes]:
        """Every entry from the one that holds ``offset`` on, by default from the start."""
        at = self.start_offset if offset is None else max(offset, self.start_offset)
        while run := self.read(at, _READ):
            position = 0
            while position < len(run):
                head = parse(run, position)
                yield run[position : position + head.length]
                position, at = position + head.length, head.next_offset

    def sound_entries(self, offset: int) -> Iterator[bytes]:
        """Every entry from ``offset`` on except damaged ones, which raise an error when read."""
        found = self.entries_and_damage(offset)
        return (entry for entry in found if not isinstance(entry, Damage))

    def entries_and_damage(self, offset: int) -> Iterator[bytes | Damage]:
        """Every entry from the one that holds ``offset`` on, and the damage in between."""
        at = offset
        while at < self.next_offset:
            try:
                yield from self.entries(at)
                return
            except Corrupt as error:
                lost = (error.offset, error.next_offset)
                damage = next(
                    (d for d in self.damaged() if (d.offset, d.next_offset) == lost), None
                )
                if damage is None:
                    raise
                yield damage
                at = damage.next_offset

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset of an entry whose last timestamp is at or after ``timestamp_ms``."""
        for segment in self._folder.segments:
            if segment.times()[1] < timestamp_ms:
                continue
            base, position = segment.index.before_time(timestamp_ms) or (segment.base, HEADER)
            for _, head in segment.heads(position, base, skip_damage=True):
                if head.last_ms >= timestamp_ms and head.next_offset > self.start_offset:
                    return max(head.base_offset, self.start_offset)
        return self.next_offset

    def _find(self, offset: int) -> tuple[Segment, int, int]:
        """Segment, position and base offset of the entry that holds ``offset``, or of the next."""
        hint = self._hints.get(offset)
        if hint is not None:
            segment, position, base = *hint, offset
        else:
            self._check_range(offset)
            segment = self._folder.segments[self._folder.of(offset)]
            position, base = segment.seek(offset)
        while position >= segment.size and segment is not self._active:
            segment.check_end(base)
            segment = self._folder.after(segment)
            position, base = HEADER, segment.base
        return segment, position, base

    def _check_range(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not in {self.start_offset} to {self.next_offset}"
            )

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """Remember where a sequential reader continues, so that its next read needs no search."""
        if len(self._hints) >= _MAX_HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = segment, position

    # -- forgetting -----------------------------------------------------------

    def drop_before(self, offset: int) -> int:
        """Drop offsets below ``offset``, durably; returns the bytes freed.

        ``start_offset`` moves to ``offset`` exactly, even within a segment.
        """
        if offset <= self.start_offset:
            return 0
        self._check_range(offset)
        active = self._active
        if active is not None and active.base < offset == active.end:
            self._roll().file.sync()
        self._folder.set_start(offset)
        self.start_offset = offset
        self._folder.remove_dropped()
        return self._recount()

    def drop_damaged_tail(self, damage: Damage) -> None:
        """Drop the last segment from ``damage`` on, durably, keeping a copy of the bytes.

        For damage that the log's owner knows to be writes that were never synced.
        """
        segment = self._folder.segments[-1]
        self._folder.set_aside(segment, damage.position)
        self._cut(segment, damage.position, damage.offset)

    def looks_torn(self, damage: Damage) -> bool:
        """Whether damage in the last segment looks like an incomplete write."""
        size = damage.next_position - damage.position
        region = self._folder.segments[-1].file.read_at(damage.position, size)
        return was_torn(region, damage.position)

    def _cut(self, segment: Segment, position: int, offset: int) -> None:
        segment.cut(position, offset)
        segment.file.sync()
        self._begin_with(segment)
        self._recount()

    def _begin_with(self, segment: Segment) -> None:
        self._active = segment
        self._index_due = segment.size + _INDEX_EVERY
        self.next_offset = segment.end

    def _recount(self) -> int:
        """Update the offsets after segments changed; returns the bytes freed."""
        self._hints.clear()
        before, self.size_bytes = self.size_bytes, self._folder.size_bytes
        return before - self.size_bytes

    def advance_to(self, offset: int) -> None:
        """Let the next entry start at ``offset``; skipped offsets count as damaged."""
        if self._active is None:
            self.start_offset = offset
        else:
            self._active.end = offset
        self.next_offset = offset
        self._roll()

    def roll(self) -> None:
        """Close the active segment if it holds anything, so that it can be rewritten."""
        if self._active is not None and self._active.size > HEADER:
            self._roll()

    def begin_rewrite(self, first: int, end: int) -> Rewriting:
        """Start to replace closed segments; finish or abandon it."""
        return Rewriting(self._folder, first, end)

    def finish_rewrite(self, rewriting: Rewriting) -> int:
        """Put the rewritten segment in place, durably; returns the bytes freed."""
        rewriting.finish()
        self._unsettle(self._folder.segments)
        return self._recount()

    # -- second sums ----------------------------------------------------------

    def _unsettle(self, segments: Sequence[Segment]) -> None:
        """Have `settle` called: these may have entries whose sums are not written."""
        if self._summed:
            self._settled = False
            self._unsummed += (each for each in segments if each not in self._unsummed)
            self._folder.files.on_unsettled(self)

    def settle(self) -> bool:
        """Write the second sums of what is quiet or much; returns whether none are left.

        A little at a time: it is called again.
        """
        quiet, self._seen_bytes = self._seen_bytes == self.size_bytes, self.size_bytes
        for segment in self._unsummed[:_MANY]:
            if segment is self._active and not quiet and segment.unsummed < _MUCH:
                return False
            if segment in self._folder.segments and not self._sum_up(segment):
                return False
            self._unsummed.remove(segment)
        self._settled = not self._unsummed
        return self._settled

    def _sum_up(self, segment: Segment) -> bool:
        try:
            return segment.sum_up(_MUCH)
        except (OSError, NexoError):  # it goes without: only damage would miss them
            return True

    # -- looking --------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """The segments, oldest first. Loads each index once."""
        return [segment.info() for segment in self._folder.segments]

    @property
    def synced_bytes(self) -> int:
        """How much of the last segment's file will survive power loss, room included."""
        return self._active.file.synced_bytes if self._active is not None else 0

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def is_synced(self) -> bool:
        """Whether everything written will survive power loss."""
        return self._active is None or self.synced_bytes >= self._active.size

    def adopt(self) -> None:
        """Let the next sync cover what an earlier process wrote to the last segment."""
        if self._active is not None:
            self._active.file.truncate(max(self._active.size, self._active.room_end))

    def sync(self) -> None:
        """Make this log durable now; `nexo.storage.disk.flusher` syncs many at once."""
        for segment in self._folder.segments:
            segment.sync()

    def damaged(self) -> list[Damage]:
        """The damage found so far, by opening or reading; `verify` looks everywhere."""
        found = [d for segment in self._folder.segments for d in segment.damages.values()]
        return sorted(found, key=attrgetter("offset"))

    def verify(self) -> list[Damage]:
        """Read everything and return all damage. Takes time in proportion to the log's size.

        Offsets before the start are ignored, though their bytes may still be there.
        """
        for segment in self._folder.segments:
            segment.check_header()
        for _ in self.sound_entries(self.start_offset):
            pass
        found = self.damaged()
        return [d for d in found if d.next_offset > self.start_offset or d.next_offset == d.offset]

    def close(self) -> None:
        """Close the files. Does not sync."""
        if self._active is not None:
            with suppress(OSError, NexoError):  # the next open does it
                if self._leftover:
                    self._remove_leftover()
                self._active.give_back_room()
            self._active.save_index()
            if self._active in self._unsummed:
                self._sum_up(self._active)
        self.abandon()

    def abandon(self) -> None:
        """Close without touching the files, which may be gone."""
        self._unsummed.clear()
        for segment in self._folder.segments:
            segment.close()
