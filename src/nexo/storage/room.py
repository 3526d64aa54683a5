"""Room: space allocated after a segment's entries, so that a sync is quick.

When a write extends a file, each sync must also record the new length; a write into
allocated space avoids that. The space is filled with a marker, so that recovery can tell
unused space from a write that was lost. No valid header contains the marker: as a base
offset it is out of range. Zeros would not do, because an entry may end with them.
"""

from __future__ import annotations

from nexo.storage.header import ALIGN, SIZE, head_at

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
