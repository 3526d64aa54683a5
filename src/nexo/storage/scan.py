"""Finding entries in raw bytes: sound ones, damaged ones, and the way back after damage.

Pure functions; `nexo.storage.segment` feeds them with what it reads.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from google_crc32c import value

from nexo.storage.header import ALIGN, MAGIC, SIZE, VERSION
from nexo.storage.room import begins_with_room, is_room

_ENTRY = Struct("<2sHIqIBBHIIqq")
_SECTOR = 512
"""What a disk writes as a whole: after power loss each sector is old or new."""


class Head(NamedTuple):
    """The part of a sound header that storage needs."""

    base: int
    length: int
    span: int
    first_ms: int
    last_ms: int
    crc: int

    @property
    def next(self) -> int:
        """The offset behind the entry."""
        return self.base + self.span


def head_at(data: bytes, at: int) -> Head | None:
    """The header at ``at`` if it is whole and passes its own check."""
    if len(data) - at < SIZE:
        return None
    magic, check, crc, base, length, version, _, _, count, span, first, last = _ENTRY.unpack_from(
        data, at
    )
    if magic != MAGIC or value(data[at + 4 : at + SIZE]) & 0xFFFF != check:
        return None
    if version != VERSION or length < SIZE or length % ALIGN or not count <= span or base < 0:
        return None
    return Head(base, length, span, first, last, crc)


def body_sound(data: bytes, at: int, head: Head) -> bool:
    """Whether the whole entry lies in ``data`` and passes its CRC."""
    end = at + head.length
    return end <= len(data) and value(data[at + 16 : end]) == head.crc


def sound_run(data: bytes, offset: int, dense: bool) -> tuple[int, int, bool]:
    """Verify entries from the start of ``data``, the first of which should have ``offset``.

    Returns the length of the sound run, the offset behind it, and whether the next entry is
    merely cut off by the end of ``data`` rather than damaged. ``dense`` forbids gaps.
    """
    at, size, unpack, crc32c = 0, len(data), _ENTRY.unpack_from, value
    while size - at >= SIZE:
        magic, check, crc, base, length, version, _, _, _, span, _, _ = unpack(data, at)
        if (
            magic != MAGIC
            or version != VERSION
            or (base != offset if dense else base < offset)
            or crc32c(data[at + 4 : at + SIZE]) & 0xFFFF != check
        ):
            return at, offset, False
        end = at + length
        if end > size:
            return at, offset, True
        if crc32c(data[at + 16 : end]) != crc:
            return at, offset, False
        at, offset = end, base + span
    return at, offset, True


def locate_in(data: bytes, offset: int, target: int, dense: bool) -> tuple[int, int] | None:
    """Position and base of the entry with ``target``, walking from the one with ``offset``.

    None if the walk meets damage or the end of ``data``. Bodies are not checked.
    """
    at, last, unpack, crc32c = 0, len(data) - SIZE, _ENTRY.unpack_from, value
    while at <= last:
        magic, check, _, base, length, _, _, _, _, span, _, _ = unpack(data, at)
        if magic != MAGIC or (base != offset if dense else base < offset):
            return None
        if crc32c(data[at + 4 : at + SIZE]) & 0xFFFF != check:
            return None
        offset = base + span
        if offset > target:
            return at, base
        at += length
    return None


def find_sound(data: bytes, at: int, lowest: int) -> tuple[int, Head] | None:
    """The first sound entry at or behind ``at`` with an offset of at least ``lowest``."""
    at += -at % ALIGN
    while (at := data.find(MAGIC, at)) >= 0:
        if at % ALIGN == 0:
            head = head_at(data, at)
            if head and head.base >= lowest and body_sound(data, at, head):
                return at, head
        at += 1
    return None


def was_torn(region: bytes, position: int) -> bool:
    """Whether a damaged last entry looks like a write that power loss cut, not like decay.

    ``region`` runs from the entry's ``position`` in its file to the end, or to the room behind.
    A cut write is too short for its header's length, or has whole sectors that never arrived:
    they are zeros, or still room.
    """
    head = head_at(region, 0)
    if len(region) < SIZE or (head is not None and head.length > len(region)):
        return True
    if begins_with_room(region):
        return True
    first = -position % _SECTOR
    starts = [0, *range(first, len(region), _SECTOR)]
    ends = [*starts[1:], len(region)]
    return any(
        end - start >= ALIGN and _never_arrived(region[start:end])
        for start, end in zip(starts, ends, strict=True)
    )


def _never_arrived(sector: bytes) -> bool:
    return not any(sector) or is_room(sector)
