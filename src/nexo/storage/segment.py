"""One file of a log: a 64-byte file header, then entries one after another.

======  ====  ==========================================================
offset  size  field of the file header
======  ====  ==========================================================
0       8     magic ``NEXOLOG\\0``
8       2     version (1)
10      2     flags: 1 = compacted
12      4     CRC32C over the other 60 bytes
16      8     base offset
24      8     end offset of a compacted segment, -1 otherwise
32      32    zero
======  ====  ==========================================================

The name repeats base (and end) offset: ``<base>.log``, ``<base>-<end>.log``, 20 digits
each. A plain segment is dense: each entry begins where the one before ended. A compacted
one has gaps, and covers everything up to its end. The last segment may have room after its
entries (`nexo.storage.recovery`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from google_crc32c import value

from nexo.errors import Corrupt, NexoError
from nexo.storage import index as indexes
from nexo.storage.header import SIZE, Header, body_sound, find_sound, head_at, locate_in
from nexo.storage.index import SparseIndex
from nexo.storage.mending import MAX_BYTES, mended_entry
from nexo.storage.ports import File, Files
from nexo.storage.sums import Sums

MAGIC = b"NEXOLOG\0"
VERSION = 1
HEADER = 64
_HEADER = Struct("<8sHHIqq32x")
_NAME = re.compile(r"(\d{20})(?:-(\d{20}))?\.log")
CHUNK = 64 * 1024
_SEEK = indexes.SPACING + 4 * 1024
_INDEX_WORTH_KEEPING = 4
"""With fewer points than this, a scan costs less than another file."""

logger = logging.getLogger("nexo.storage")


@dataclass(frozen=True, slots=True)
class Damage:
    """Unreadable bytes of a segment, and the offsets lost with them."""

    offset: int
    next_offset: int
    position: int
    next_position: int

    def error(self, path: Path) -> Corrupt:
        return Corrupt(
            f"{path.name} is damaged at byte {self.position}: offsets {self.offset} to "
            f"{self.next_offset - 1} are lost; read on from {self.next_offset}",
            offset=self.offset,
            next_offset=self.next_offset,
        )


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment as others see it; times are None if it is empty."""

    path: Path
    base_offset: int
    next_offset: int
    size_bytes: int
    first_ms: int | None
    last_ms: int | None


def file_header(base: int, end: int = -1) -> bytes:
    """The first 64 bytes of a segment; with an ``end`` it is compacted."""
    flags = int(end >= 0)
    blank = _HEADER.pack(MAGIC, VERSION, flags, 0, base, end)
    return _HEADER.pack(MAGIC, VERSION, flags, value(blank), base, end)


def segment_name(base: int, end: int = -1) -> str:
    return f"{base:020}.log" if end < 0 else f"{base:020}-{end:020}.log"


def parse_name(name: str) -> tuple[int, int] | None:
    """Base and end (-1 if not compacted) from a file name, None if it is no segment's."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2] or -1)) if match else None


class Segment:
    """A segment's place in the log, and how to read it. Holds no bytes."""

    __slots__ = ("_file", "_files", "_folder", "_index", "_sums", "_times", "base", "compacted",
                 "damages", "end", "room_end", "size")  # fmt: skip

    def __init__(self, files: Files, folder: Path, base: int, end: int, compacted: bool) -> None:
        self._files = files
        self._folder = folder
        self._file: File | None = None
        self._index: SparseIndex | None = None
        self._sums: Sums | None = None
        self._times: tuple[int, int] | None = None
        self.base = base
        self.end = end
        """One past the segment's last offset."""
        self.compacted = compacted
        self.size = 0
        self.room_end = 0
        """The length of the file if that is more than ``size``."""
        self.damages: dict[int, Damage] = {}

    @property
    def path(self) -> Path:
        return self._folder / segment_name(self.base, self.end if self.compacted else -1)

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    @property
    def sums_path(self) -> Path:
        return self.path.with_suffix(".sums")

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    @property
    def index(self) -> SparseIndex:
        """The sparse index, loaded or rebuilt on first use."""
        if self._index is None:
            self._index = self._load_index() or self._rebuild_index()
        return self._index

    @index.setter
    def index(self, index: SparseIndex) -> None:
        self._index = index

    def times(self) -> tuple[int, int]:
        """First and greatest timestamp (`nexo.storage.index.NEVER` if empty)."""
        if self._index is not None:
            return self._index.first_ms, self._index.max_ms
        if self._times is None:  # read once, then release the index: a long log has many
            self._times = self.index.first_ms, self.index.max_ms
            self._index = None
        return self._times

    def info(self) -> SegmentInfo:
        """Its bounds, size and times. Loads the index once."""
        first, last = self.times()
        empty = last == indexes.NEVER
        return SegmentInfo(
            self.path,
            self.base,
            self.end,
            self.size,
            None if empty else first,
            None if empty else last,
        )

    def create(self) -> None:
        """Make the empty file of a new segment; its header comes with the first entry."""
        self._file = self._files.open(self.path, create=True)
        self._index = SparseIndex()

    def give_back_room(self) -> bool:
        """Truncate the file after its last entry; returns whether that changed anything."""
        if self.room_end <= self.size:
            return False
        self.file.truncate(self.size)
        self.room_end = 0
        return True

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        self.close()
        self._files.remove(self.sums_path)
        self._files.remove(self.index_path)
        self._files.remove(self.path)

    # -- index ----------------------------------------------------------------

    def save_index(self) -> None:
        """Write the index beside the segment if that will save work at the next open.

        It is a cache: if it cannot be written, nothing fails.
        """
        if self._index is None or len(self._index) < _INDEX_WORTH_KEEPING:
            return
        data = self._index.pack(self.size, self.end)
        try:
            with closing(self._files.open(self.index_path, create=True)) as file:
                file.write_at(0, [data])
                file.truncate(len(data))
        except (OSError, NexoError) as error:  # half an index fails its check and is rebuilt
            logger.warning("%s: the index could not be saved: %s", self.index_path, error)

    def stored_index(self) -> tuple[SparseIndex, int, int] | None:
        """Index, length and next offset as last saved; None if absent, damaged or unreadable."""
        try:
            return indexes.read(self._files, self.index_path)
        except (OSError, NexoError) as error:
            logger.warning("%s: %s; rebuilding it", self.index_path, error)
            return None

    def _load_index(self) -> SparseIndex | None:
        stored = self.stored_index()
        if stored is None or stored[1:] != (self.size, self.end):
            return None
        return stored[0]

    def _rebuild_index(self) -> SparseIndex:
        self.check_header()
        index = SparseIndex()
        for position, head in self.heads(HEADER, self.base, skip_damage=True):
            index.note(head.base_offset, position, head.first_ms, head.last_ms)
        self._index = index
        self.save_index()
        return index

    # -- walking --------------------------------------------------------------

    def heads(
        self, position: int, offset: int, *, skip_damage: bool = False
    ) -> Iterator[tuple[int, Header]]:
        """Position and header of each entry from ``position`` on, bodies unchecked.

        Raises `Corrupt` at a damaged header unless ``skip_damage``.
        """
        data, start = b"", position
        while position < self.size:
            head = head_at(data, position - start)
            if head is None:
                data, start = self.file.read_at(position, CHUNK), position
                head = head_at(data, 0)
            if head is None or not self.follows(head, offset, position):
                if self.mend(position, offset):
                    data = b""
                    continue
                damage = self.damage_at(position, offset)
                if not skip_damage:
                    raise damage.error(self.path)
                position, offset = damage.next_position, damage.next_offset
                continue
            yield position, head
            position, offset = position + head.length, head.next_offset

    def follows(self, head: Header, offset: int, position: int) -> bool:
        """Whether an entry at ``position`` is valid where ``offset`` is expected."""
        in_place = head.base_offset >= offset if self.compacted else head.base_offset == offset
        return in_place and position + head.length <= self.size

    def seek(self, offset: int) -> tuple[int, int]:
        """Position and base offset of the entry that holds ``offset``, or of the next one.

        Raises `Corrupt` if ``offset`` lies in damage.
        """
        base, position = self.index.floor(offset) or (self.base, HEADER)
        data = self.file.read_at(position, min(_SEEK, self.size - position))
        found = locate_in(data, base, offset, not self.compacted)
        if found is not None:
            return position + found[0], found[1]
        for at, head in self.heads(position, base, skip_damage=True):
            base = head.next_offset
            if base > offset:
                self._raise_if_damaged(offset)
                return at, head.base_offset
        self._raise_if_damaged(offset)
        self.check_end(base)
        return self.size, self.end

    def check_end(self, offset: int) -> None:
        """Raise `Corrupt` if the file ends at ``offset``, before the segment's end."""
        if offset < self.end and not self.compacted:
            raise self.damage_at(self.size, offset).error(self.path)

    def _raise_if_damaged(self, offset: int) -> None:
        for damage in self.damages.values():
            if damage.offset <= offset < damage.next_offset:
                raise damage.error(self.path)

    # -- second sums ----------------------------------------------------------

    @property
    def sums(self) -> Sums:
        """The sums beside the segment, as far as they were written."""
        if self._sums is None:
            self._sums = Sums(self._files, self.sums_path)
            if not HEADER <= self._sums.position <= self.size:
                self._sums.position, self._sums.offset = HEADER, self.base
        return self._sums

    @property
    def unsummed(self) -> int:
        """How many bytes have no sums yet."""
        return self.size - self.sums.position

    def sum_up(self, max_bytes: int) -> bool:
        """Write the second sums of about so many bytes; returns whether all entries have theirs."""
        position, offset = self.sums.position, self.sums.offset
        if position >= self.size:
            return True
        entries: list[tuple[int, Header, bytes]] = []
        stop = position + max_bytes
        for at, head in self.heads(position, offset, skip_damage=True):
            if at >= stop:
                break
            if head.count > 1:
                entry = self.file.read_at(at, head.length)
                if body_sound(entry, 0, head):
                    entries.append((at, head, entry))
            position, offset = at + head.length, head.next_offset
        else:
            position = self.size
        self.sums.write(entries, position, offset)
        return position >= self.size

    def forget_sums(self) -> None:
        """Remove the file of sums: they are of other entries."""
        self._sums = None
        with suppress(OSError, NexoError):  # wrong sums mend nothing
            self._files.remove(self.sums_path)

    # -- damage ---------------------------------------------------------------

    def mend(self, position: int, offset: int) -> bool:
        """Put a wrong byte of the entry at ``position`` right, in the file too; False if more is
        wrong, or if that was tried before.
        """
        if offset in self.damages:
            return False
        head = head_at(self.file.read_at(position, SIZE), 0)
        length = self.size - position if head is None else head.length
        region = self.file.read_at(position, min(length, MAX_BYTES))
        stored = Sums(self._files, self.sums_path).of(position)
        whole = mended_entry(region, lambda head: self.follows(head, offset, position), stored)
        if whole is None:
            return False
        try:
            self.file.write_at(position, [whole])
        except (OSError, NexoError) as error:
            logger.warning("%s: offset %d could not be mended: %s", self.path, offset, error)
            return False
        logger.warning("%s: a flipped byte at offset %d was mended", self.path, offset)
        return self.file.read_at(position, len(whole)) == whole

    def check_header(self) -> None:
        """Report a damaged file header; its name holds the same facts, so reading continues."""
        if self.size < HEADER:
            self.size = 0
            return
        expected = file_header(self.base, self.end if self.compacted else -1)
        if self.file.read_at(0, HEADER) != expected:
            self.damages[-1] = Damage(self.base, self.base, 0, HEADER)
            logger.error("%s: the file header is damaged; its entries are intact", self.path)

    def damage_at(self, position: int, offset: int) -> Damage:
        """The loss at ``position``, where the entry with ``offset`` should be."""
        known = self.damages.get(offset)
        if known is None:
            known = self.damages[offset] = self._measure_damage(position, offset)
            logger.error("%s", known.error(self.path))
        return known

    def _measure_damage(self, position: int, offset: int) -> Damage:
        resumed = self.resync(position, offset)
        if resumed is None:
            return Damage(offset, max(self.end, offset + 1), position, self.size)
        next_position, next_offset = resumed
        return Damage(offset, max(next_offset, offset + 1), position, next_position)

    def resync(self, position: int, offset: int) -> tuple[int, int] | None:
        """Position and offset of the first valid entry after damage at ``position``."""
        region = self.file.read_at(position, self.size - position)
        head = head_at(region, 0)
        if head is not None and head.base_offset > offset and body_sound(region, 0, head):
            return position, head.base_offset
        if head is not None and head.base_offset >= offset and head.length < len(region):
            following = head_at(region, head.length)
            if following is not None and following.base_offset >= head.next_offset:
                return position + head.length, head.next_offset
        found = find_sound(region, 8, offset + 1)
        return (position + found[0], found[1].base_offset) if found else None

    def cut(self, position: int, offset: int) -> None:
        """Drop everything from ``position`` on, which begins with ``offset``."""
        logger.warning(
            "%s: cut at offset %d, %d bytes dropped", self.path, offset, self.size - position
        )
        if position <= HEADER:  # the header may be lost too; the first entry writes a new one
            position, self.damages = 0, {}
        self.forget_sums()
        self._files.remove(self.index_path)  # first: a stale one would name entries that are gone
        self.file.truncate(position)
        self.size, self.end, self.room_end = position, offset, 0
        self.index.cut(position)
        known = self.damages.items()
        self.damages = {at: damage for at, damage in known if damage.position < position}
