"""Repairs the end of a log after a crash: cuts off a torn last entry (SPEC E6).

Room after the last entry stays in use.

Torn means that power or process ended during a write that was never acknowledged. Damage
followed by valid entries is not torn, nor is a last entry that has all its sectors: both
stay as they are, and reading there reports them.
"""

from __future__ import annotations

from nexo.storage.header import body_sound, head_at
from nexo.storage.index import SparseIndex
from nexo.storage.room import is_cut_short, was_torn, without_room
from nexo.storage.segment import CHUNK, HEADER, Segment


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
