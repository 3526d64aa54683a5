"""Repairs the end of a log after a crash: cuts off a torn last entry (SPEC E6).

Room is space allocated after a segment's entries, so that a sync is quick. When a write extends a
file, each sync must also record the new length; a write into allocated space avoids that. The space
is filled with a marker, so that recovery can tell unused space from a write that was lost. No valid
header contains the marker: as a base offset it is out of range. Zeros would not do, because an
entry may end with them. Room after the last entry stays in use.

Torn means that power or process ended during a write that was never acknowledged. Damage
followed by valid entries is not torn, nor is a last entry that has all its sectors: both
stay as they are, and reading there reports them.
"""

from __future__ import annotations

from nexo.storage.header import ALIGN, SIZE, body_sound, head_at
from nexo.storage.index import SparseIndex
from nexo.storage.segment import CHUNK, HEADER, Segment

MARK = b"NEXOROOM"
SMALL = 16 * 1024
"""Entries up to this size gain more from room than writing it costs."""
_PAGE = 4096
_SECTOR = 512
"""A disk writes a sector as a whole: after power loss each one is old or new."""
_PAGE_OF_ROOM = MARK * (_PAGE // len(MARK))
_MOST = memoryview(_PAGE_OF_ROOM * 64)


def room_after(end: int, segment_bytes: int) -> memoryview:
    """The room to write at ``end``: doubles the file, within bounds, up to the end of a page."""
    until = min(2 * end, max(end, segment_bytes))
    return _MOST[: until + -until % _PAGE - end]


def without_room(region: bytes) -> bytes:
    """The bytes before the room at the end of a file; ``region`` starts where an entry should."""
    end = len(region) - len(region) % ALIGN
    if region[end:] != MARK[: len(region) - end]:
        return region
    for unit in (_PAGE_OF_ROOM, MARK):
        while region.endswith(unit, 0, end):
            end -= len(unit)
    return region[:end]


def _begins_with_room(region: bytes) -> bool:
    """Whether no entry was written at the start; one damaged marker does not hide the room."""
    return MARK in (region[:ALIGN], region[ALIGN : 2 * ALIGN])


def is_cut_short(region: bytes) -> bool:
    """Whether the last entry is shorter than its header says, or missing: a kill can cause that."""
    head = head_at(region, 0)
    short = len(region) < SIZE or (head is not None and head.length > len(region))
    return short or _begins_with_room(region)


def was_torn(region: bytes, position: int) -> bool:
    """Whether a damaged last entry looks like a write cut by power loss rather than decay.

    ``region`` runs from the entry's ``position`` in its file to the end, or to the room after
    it. A cut write is too short for its header's length, or has whole sectors that never
    arrived: they are zeros, or still room.
    """
    if is_cut_short(region):
        return True
    first = -position % _SECTOR
    starts = [0, *range(first, len(region), _SECTOR)]
    ends = [*starts[1:], len(region)]
    return any(
        end - start >= ALIGN and _never_arrived(region[start:end])
        for start, end in zip(starts, ends, strict=True)
    )


def _never_arrived(sector: bytes) -> bool:
    """Whether a sector, or part of one, is zeros or still room."""
    return not any(sector) or sector == _PAGE_OF_ROOM[: len(sector)]


def recover_tail(segment: Segment, power_kept: bool = False) -> None:
    """Set size, end and index of the last segment, reading only what its index does not cover.

    With ``power_kept``, sectors of zeros were written as such; they are not missing writes.
    """
    segment.size = segment.file.size()
    segment.check_header()
    segment.index, position, offset = _start_of_tail(segment)
    position, offset = _note_sound(segment, position, offset)
    segment.end = offset
    if position < segment.size:
        _settle(segment, position, offset, power_kept)


def _start_of_tail(segment: Segment) -> tuple[SparseIndex, int, int]:
    stored = segment.stored_index() if segment.size > CHUNK else None
    point = stored[0].last() if stored else None
    if stored and point and _sound_at(segment, point[1], point[0]):
        return stored[0], point[1], point[0]
    return SparseIndex(), HEADER, segment.base


def _sound_at(segment: Segment, position: int, offset: int) -> bool:
    data = _chunk_with_entry(segment, position)
    head = head_at(data, 0)
    return head is not None and head.base_offset == offset and body_sound(data, 0, head)


def _note_sound(segment: Segment, position: int, offset: int) -> tuple[int, int]:
    """Index whole, verified entries from ``position`` to the end or to a torn tail."""
    while position < segment.size:
        data = _chunk_with_entry(segment, position)
        noted, offset = _note_run(segment, data, position, offset)
        position += noted
        if noted or segment.mend(position, offset):
            continue
        if segment.resync(position, offset) is None:
            break
        damage = segment.damage_at(position, offset)
        position, offset = damage.next_position, damage.next_offset
    return position, offset


def _chunk_with_entry(segment: Segment, position: int) -> bytes:
    data = segment.file.read_at(position, CHUNK)
    head = head_at(data, 0)
    if head is None or head.length <= len(data) or position + head.length > segment.size:
        return data
    return segment.file.read_at(position, head.length)


def _note_run(segment: Segment, data: bytes, start: int, offset: int) -> tuple[int, int]:
    """Index the valid entries at the start of ``data``; returns their length and next offset."""
    index, at = segment.index, 0
    while (head := head_at(data, at)) is not None:
        if not (segment.follows(head, offset, start + at) and body_sound(data, at, head)):
            break
        index.note(head.base_offset, start + at, head.first_ms, head.last_ms)
        at, offset = at + head.length, head.next_offset
    return at, offset


def _settle(segment: Segment, position: int, offset: int, power_kept: bool) -> None:
    """Cut off a torn entry; keep a decayed one and never reuse its offsets."""
    file_end = segment.size
    region = without_room(segment.file.read_at(position, file_end - position))
    if region and (is_cut_short(region) if power_kept else was_torn(region, position)):
        segment.cut(position, offset)
        return
    segment.size = position + len(region)
    if segment.size < file_end:
        segment.room_end = file_end
    if not region:
        return
    head = head_at(region, 0)
    # Without its header the number of records is unknown, but each takes at least 8 bytes.
    lost = head.span if head is not None else max(1, len(region) // 8)
    segment.end = offset + lost
    segment.size += -segment.size % 8
    segment.damage_at(position, offset)
