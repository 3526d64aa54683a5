"""Room: space that a segment's file has ahead of its entries, so that a sync is quick.

A write that makes a file longer has the file system note the new length with every sync; one
into space that the file has already does not. The space is filled with a mark, so that recovery
knows it from entries that never arrived. No header holds the mark: as a base offset it would be
out of reach. Zeros would not do, since an entry may well end with those.
"""

from __future__ import annotations

from nexo.storage.header import ALIGN, SIZE, head_at

MARK = b"NEXOROOM"
SMALL = 16 * 1024
"""Entries up to this size gain more from room behind them than writing it costs."""
_PAGE = 4096
_SECTOR = 512
"""What a disk writes as a whole: after power loss each sector is old or new."""
_PAGE_OF_ROOM = MARK * (_PAGE // len(MARK))
_MOST = memoryview(_PAGE_OF_ROOM * 64)


def room_behind(end: int, segment_bytes: int) -> memoryview:
    """What to write at ``end``: as much again as is before it, within bounds, to a page's end."""
    until = min(2 * end, max(end, segment_bytes))
    return _MOST[: until + -until % _PAGE - end]


def without_room(region: bytes) -> bytes:
    """What lies before the room at the end of a file; ``region`` begins at an entry's place."""
    end = len(region) - len(region) % ALIGN
    if region[end:] != MARK[: len(region) - end]:
        return region
    for unit in (_PAGE_OF_ROOM, MARK):
        while region.endswith(unit, 0, end):
            end -= len(unit)
    return region[:end]


def _begins_with_room(region: bytes) -> bool:
    """Whether nothing was written where an entry should begin; one mark of two may be damaged."""
    return MARK in (region[:ALIGN], region[ALIGN : 2 * ALIGN])


def _is_room(sector: bytes) -> bool:
    """Whether a sector, or the part of one, is still room."""
    return sector == _PAGE_OF_ROOM[: len(sector)]


def is_cut_short(region: bytes) -> bool:
    """Whether a last entry is shorter than it says, or was not begun: a kill can leave that."""
    head = head_at(region, 0)
    short = len(region) < SIZE or (head is not None and head.length > len(region))
    return short or _begins_with_room(region)


def was_torn(region: bytes, position: int) -> bool:
    """Whether a damaged last entry looks like a write that power loss cut, not like decay.

    ``region`` runs from the entry's ``position`` in its file to the end, or to the room behind.
    A cut write is too short for its header's length, or has whole sectors that never arrived:
    they are zeros, or still room.
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
    return not any(sector) or _is_room(sector)
