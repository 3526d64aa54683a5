"""Every byte of a log cut, every byte flipped: recover, write, recover again (SPEC E6)."""

from __future__ import annotations

import pytest

from nexo.errors import Corrupt
from nexo.storage.log import SegmentedLog
from nexo.storage.recovery import MARK
from nexo.storage.segment import Segment
from tests.memory_files import MemoryFiles
from tests.unit.storage.entries import (
    FOLDER,
    bodies,
    body_of,
    content,
    entry,
    fill,
    overwrite,
    readable,
)

ENTRY = 104
SEGMENT_BYTES = 64 + 5 * ENTRY
LAST = 64 + 3 * ENTRY
"""Where the entries of the last of two segments end."""


with_and_without_room = pytest.mark.parametrize("room", [False, True], ids=["", "room"])
"""Behind the entries of the last segment."""


def written(count: int, room: bool = False) -> tuple[MemoryFiles, dict[str, bytes]]:
    files = MemoryFiles()
    fill(reopened(files, room), range(count))
    return files, {name: content(files, FOLDER / name) for name in files.list(FOLDER)}


def reopened(files: MemoryFiles, room: bool = False) -> SegmentedLog:
    return SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES, room_ahead=room)


def cut_recover_write_recover(
    name: str, data: bytes, whole_entries: int, room: bool = False
) -> None:
    files, _ = written(8, room)
    overwrite(files, FOLDER / name, data)
    log = reopened(files, room)
    assert bodies(log) == [body_of(n) for n in range(whole_entries)]
    fill(log, range(whole_entries, whole_entries + 4))
    again = reopened(files, room)
    assert bodies(again) == [body_of(n) for n in range(whole_entries + 4)]
    assert again.verify() == []


@with_and_without_room
def test_a_tail_cut_at_any_byte_is_truncated_to_the_last_whole_entry(room: bool) -> None:
    _, contents = written(8, room)
    name, data = max(contents.items())
    for size in range(min(len(data), LAST + 200) + 1):
        found = 5 + min(max(0, size - 64) // ENTRY, 3)
        cut_recover_write_recover(name, data[:size], found, room)


@with_and_without_room
def test_a_tail_that_never_arrived_is_truncated_though_the_file_has_its_length(room: bool) -> None:
    _, contents = written(8, room)
    name, data = max(contents.items())
    for size in range(64, LAST, ENTRY):
        zeros = bytes(LAST - size) + data[LAST:]
        cut_recover_write_recover(name, data[:size] + zeros, 5 + (size - 64) // ENTRY, room)


def test_a_tail_whose_place_is_still_room_is_truncated() -> None:
    """From any word on: of what a write into room would have put there, none or some came."""
    _, contents = written(8, room=True)
    name, data = max(contents.items())
    for size in range(64, LAST, 8):
        unwritten = MARK * ((len(data) - size) // 8)
        found = 5 + (size - 64) // ENTRY
        cut_recover_write_recover(name, data[:size] + unwritten, found, room=True)


@pytest.mark.parametrize("unit", [b"\0" * 8, MARK], ids=["zeros", "room"])
def test_sectors_that_never_arrived_in_a_last_entry_with_room_behind_it(unit: bytes) -> None:
    """Whichever of its sectors: the entry is cut off, and what was before it is there."""
    for missing in range(1, 7):
        files = MemoryFiles()
        log = SegmentedLog(files, FOLDER, room_ahead=True)
        fill(log, range(4))
        log.append(*entry(4, size=3_000))
        path = FOLDER / files.list(FOLDER)[0]
        data = content(files, path)
        hole = unit * (512 // 8)
        overwrite(files, path, data[: 512 * missing] + hole + data[512 * missing + 512 :])
        found = SegmentedLog(files, FOLDER, room_ahead=True)
        assert bodies(found) == [body_of(n) for n in range(4)]
        assert found.verify() == []


def test_a_flip_in_room_is_no_damage() -> None:
    _, contents = written(8, room=True)
    name, data = max(contents.items())
    for at in [*range(LAST, LAST + 300), *range(LAST + 300, len(data), 61)]:
        files, _ = written(8, room=True)
        overwrite(files, FOLDER / name, data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        log = reopened(files, room=True)
        assert log.append(*entry(8)) == 8
        for found in (log, reopened(files, room=True)):
            assert bodies(found) == [body_of(n) for n in range(9)]
            assert found.verify() == []


def test_only_the_last_segment_has_room_and_none_has_once_closed() -> None:
    files, contents = written(8, room=True)
    assert [len(data) for data in contents.values()] == [SEGMENT_BYTES, 4096]
    log = reopened(files)  # also by one that makes no room
    assert log.size_bytes == SEGMENT_BYTES + LAST
    fill(log, range(8, 12))
    assert len(content(files, FOLDER / sorted(contents)[1])) == SEGMENT_BYTES
    again = reopened(files, room=True)
    fill(again, range(12, 13))
    again.close()
    assert sum(len(content(files, FOLDER / name)) for name in files.list(FOLDER)) == (
        again.size_bytes
    )


def test_recovery_without_truncation_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_the_bytes(segment: Segment, position: int, offset: int) -> None:
        segment.end = offset

    monkeypatch.setattr(Segment, "cut", keep_the_bytes)
    _, contents = written(8)
    name, data = max(contents.items())
    with pytest.raises((AssertionError, Corrupt)):
        cut_recover_write_recover(name, data[:-20], 7)


def flipped(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for at in places:
        changed[at] ^= 0x41
    return bytes(changed)


@with_and_without_room
def test_damage_to_any_two_bytes_is_reported_and_costs_no_other_entry(room: bool) -> None:
    """Of a closed segment and of the last one, its last entry included."""
    _, contents = written(8, room)
    for name, data in contents.items():
        for at in range(min(len(data), SEGMENT_BYTES if name == min(contents) else LAST)):
            files, _ = written(8, room)
            start, length = (64 + (at - 64) // ENTRY * ENTRY, ENTRY) if at >= 64 else (0, 64)
            damaged = flipped(data, at, start + (at - start + 5) % length)
            overwrite(files, FOLDER / name, damaged)
            base = int(name[:20])
            hit = base + (at - 64) // ENTRY if at >= 64 else None
            before = len(data) if name == min(contents) else LAST
            check_flip(files, hit, room)
            assert content(files, FOLDER / name)[:before] == damaged[:before]


@with_and_without_room
def test_a_flip_in_any_header_costs_nothing(room: bool) -> None:  # SPEC Q4
    _, contents = written(8, room)
    for name, data in contents.items():
        size = SEGMENT_BYTES if name == min(contents) else LAST
        for start in range(64, size, ENTRY):
            for at in range(start, start + 64):
                files, _ = written(8, room)
                overwrite(files, FOLDER / name, flipped(data, at))
                log = reopened(files, room)
                assert bodies(log) == [body_of(n) for n in range(8)]
                assert log.verify() == []
                assert content(files, FOLDER / name)[:size] == data[:size], "it was put right"


def check_flip(files: MemoryFiles, hit: int | None, room: bool) -> None:
    kept = [(n, body_of(n)) for n in range(8) if n != hit]
    log = reopened(files, room)
    assert list(readable(log)) == kept
    assert log.verify()
    if hit is not None:
        with pytest.raises(Corrupt) as caught:
            log.read(hit, 100)
        assert caught.value.offset == hit
    after = log.append(*entry(99))
    assert after >= 8
    again = reopened(files, room)
    assert [*readable(again)] == [*kept, (after, body_of(99))]
    assert again.verify()


def test_damage_in_the_middle_is_never_truncated() -> None:
    files, contents = written(8)
    name, data = max(contents.items())
    overwrite(files, FOLDER / name, data[:70] + b"\0" * 90 + data[160:])
    log = reopened(files)
    assert log.next_offset == 8
    assert [offset for offset, _ in readable(log)] == [0, 1, 2, 3, 4, 6, 7]
    assert files.size(FOLDER / name) == len(data)


def test_a_read_returns_what_lies_before_the_damage_first() -> None:
    files, contents = written(8)
    name, data = min(contents.items())
    at = 64 + 2 * ENTRY + 80
    overwrite(files, FOLDER / name, data[:at] + b"?" + data[at + 1 :])
    log = reopened(files)
    assert len(log.read(0, 10_000)) == 2 * ENTRY
    with pytest.raises(Corrupt, match="offsets 2 to 2 are lost; read on from 3"):
        log.read(2, 10_000)
    assert len(log.read(3, 10_000)) == 2 * ENTRY


def test_a_closed_segment_that_lost_its_end_reports_the_missing_offsets() -> None:
    files, contents = written(8)
    name, data = min(contents.items())
    overwrite(files, FOLDER / name, data[: -ENTRY - 30])
    log = reopened(files)
    assert [offset for offset, _ in readable(log)] == [0, 1, 2, 5, 6, 7]
    with pytest.raises(Corrupt) as caught:
        log.read(4, 100)
    assert (caught.value.offset, caught.value.next_offset) == (3, 5)


@pytest.mark.parametrize("side_file", ["start", "index"])
def test_a_damaged_side_file_is_never_fatal(side_file: str) -> None:
    files = MemoryFiles()
    log = SegmentedLog(files, FOLDER, segment_bytes=120_000)
    fill(log, range(2_000))
    log.drop_before(10)
    log.close()
    suffix = {"start": "start", "index": ".idx"}[side_file]
    path = FOLDER / next(name for name in files.list(FOLDER) if name.endswith(suffix))
    data = content(files, path)
    for at in [*range(0, 60), len(data) - 1]:
        overwrite(files, path, data[: at % len(data)] + b"?" + data[at % len(data) + 1 :])
        again = SegmentedLog(files, FOLDER, segment_bytes=120_000)
        assert again.next_offset == 2_000
        assert again.read(1_000, 1)[64:] == body_of(1_000)
        assert again.offset_at(1_500) == 500
