"""Every byte of a log cut, every byte flipped: recover, write, recover again (SPEC E6)."""

from __future__ import annotations

import pytest

from nexo.errors import Corrupt
from nexo.storage.log import SegmentedLog
from nexo.storage.memory import MemoryFiles
from nexo.storage.segment import Segment
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


def written(count: int) -> tuple[MemoryFiles, dict[str, bytes]]:
    files = MemoryFiles()
    log = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    fill(log, range(count))
    return files, {name: content(files, FOLDER / name) for name in files.list(FOLDER)}


def reopened(files: MemoryFiles) -> SegmentedLog:
    return SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)


def cut_recover_write_recover(name: str, data: bytes, whole_entries: int) -> None:
    files, _ = written(8)
    overwrite(files, FOLDER / name, data)
    log = reopened(files)
    assert bodies(log) == [body_of(n) for n in range(whole_entries)]
    fill(log, range(whole_entries, whole_entries + 4))
    again = reopened(files)
    assert bodies(again) == [body_of(n) for n in range(whole_entries + 4)]
    assert again.verify() == []


def test_a_tail_cut_at_any_byte_is_truncated_to_the_last_whole_entry() -> None:
    _, contents = written(8)
    name, data = max(contents.items())
    for size in range(len(data) + 1):
        cut_recover_write_recover(name, data[:size], 5 + max(0, size - 64) // ENTRY)


def test_a_tail_that_never_arrived_is_truncated_though_the_file_has_its_length() -> None:
    _, contents = written(8)
    name, data = max(contents.items())
    for size in range(64, len(data), ENTRY):
        zeros = bytes(len(data) - size)
        cut_recover_write_recover(name, data[:size] + zeros, 5 + (size - 64) // ENTRY)


def test_recovery_without_truncation_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_the_bytes(segment: Segment, position: int, offset: int) -> None:
        segment.end = offset

    monkeypatch.setattr(Segment, "cut", keep_the_bytes)
    _, contents = written(8)
    name, data = max(contents.items())
    with pytest.raises((AssertionError, Corrupt)):
        cut_recover_write_recover(name, data[:-20], 7)


def test_a_flip_of_any_byte_is_reported_and_costs_no_other_entry() -> None:
    """Of a closed segment and of the last one, its last entry included."""
    _, contents = written(8)
    for name, data in contents.items():
        for at in range(len(data)):
            files, _ = written(8)
            flipped = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
            overwrite(files, FOLDER / name, flipped)
            base = int(name[:20])
            hit = base + (at - 64) // ENTRY if at >= 64 else None
            check_flip(files, hit)
            assert content(files, FOLDER / name)[: len(data)] == flipped


def check_flip(files: MemoryFiles, hit: int | None) -> None:
    kept = [(n, body_of(n)) for n in range(8) if n != hit]
    log = reopened(files)
    assert list(readable(log)) == kept
    assert log.verify()
    if hit is not None:
        with pytest.raises(Corrupt) as caught:
            log.read(hit, 100)
        assert caught.value.offset == hit
    after = log.append(*entry(99))
    assert after >= 8
    again = reopened(files)
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
