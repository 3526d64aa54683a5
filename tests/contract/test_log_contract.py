"""One suite for every `Log`: segments on the real file system, in memory, on the faulty one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nexo.errors import InvalidInput, OffsetOutOfRange
from nexo.storage.disk.files import OsFiles
from nexo.storage.header import seal, verify
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import Files
from tests.faulty_files import FaultyFiles
from tests.memory_files import MemoryFiles
from tests.unit.storage.entries import bodies, body_of, entry, fill, rewrite, whole

MAKERS: dict[str, Callable[[], Files]] = {
    "os": OsFiles,
    "os, few open": lambda: OsFiles(max_open_files=2),
    "memory": MemoryFiles,
    "faulty": FaultyFiles,
}
SEGMENT_BYTES = 1_000
"""Nine entries of the usual test size."""


class Place:
    """Where a log lies, to open it again as after a restart."""

    def __init__(self, files: Files, folder: Path, room_ahead: bool) -> None:
        self.files = files
        self.folder = folder
        self.room_ahead = room_ahead

    def open(self, segment_bytes: int = SEGMENT_BYTES) -> SegmentedLog:
        return SegmentedLog(
            self.files, self.folder, segment_bytes=segment_bytes, room_ahead=self.room_ahead
        )


@pytest.fixture(params=[False, True], ids=["", "room ahead"])
def room_ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=MAKERS.values(), ids=list(MAKERS))
def place(request: pytest.FixtureRequest, tmp_path: Path, room_ahead: bool) -> Place:
    files: Files = request.param()
    return Place(files, tmp_path / "log", room_ahead)


def test_a_log_that_was_never_written_is_empty_and_has_no_files(place: Place) -> None:
    log = place.open()
    assert (log.start_offset, log.next_offset, log.size_bytes) == (0, 0, 0)
    assert log.read(0, 100) == b""
    assert list(log.entries()) == []
    assert log.offset_at(0) == 0
    assert place.files.list(place.folder) == []


def test_offsets_are_dense_and_entries_come_back_as_written(place: Place) -> None:  # SPEC E2
    log = place.open()
    assert [log.append(*entry(n, count=3)) for n in range(40)] == [3 * n for n in range(40)]
    assert log.next_offset == 120
    assert bodies(log) == [body_of(n) for n in range(40)]


def test_a_read_starts_with_the_entry_that_holds_the_offset(place: Place) -> None:  # SPEC E5
    log = place.open()
    for n in range(40):
        log.append(*entry(n, count=3))
    for offset in [*range(120), *reversed(range(120))]:
        assert verify(log.read(offset, 1)).base_offset == offset - offset % 3


def test_a_read_returns_whole_entries_within_its_limit(place: Place) -> None:
    log = place.open()
    fill(log, range(8))
    assert log.read(2, 250) == whole(2, 2) + whole(3, 3)
    assert log.read(2, 103) == whole(2, 2)
    assert log.read(8, 103) == b""


def test_an_entry_larger_than_the_limit_or_the_segment_is_read_whole(place: Place) -> None:
    log = place.open()
    fill(log, range(2))
    fill(log, range(2, 4), size=5_000)
    fill(log, range(4, 6))
    assert log.read(2, 100) == whole(2, 2, 5_000)
    assert bodies(place.open()) == bodies(log)


def test_offsets_outside_the_log_are_refused(place: Place) -> None:
    log = place.open()
    fill(log, range(20))
    log.drop_before(5)
    for offset in (-1, 4, 21):
        with pytest.raises(OffsetOutOfRange, match=str(offset)):
            log.read(offset, 100)


def test_everything_is_there_after_a_restart(place: Place) -> None:
    log = place.open()
    for n in range(60):
        fill(log, range(n, n + 1))
        if n % 7 == 0:
            log.close()
            log = place.open()
    assert bodies(log) == [body_of(n) for n in range(60)]
    assert log.size_bytes == place.open().size_bytes


def test_a_header_that_lies_about_its_length_changes_nothing(place: Place) -> None:
    log = place.open()
    fill(log, range(3))
    head, body = entry(3)
    with pytest.raises(InvalidInput, match="104"):
        log.append(head, [*body, b"too much"])
    fill(log, range(3, 5))
    assert bodies(log) == bodies(place.open()) == [body_of(n) for n in range(5)]


@pytest.mark.parametrize(("count", "span"), [(0, 0), (1, 0), (3, 2)])
def test_an_entry_that_covers_too_few_offsets_is_refused(
    place: Place, count: int, span: int
) -> None:
    log = place.open()
    head = seal([], count=count, span=span, first_ms=0, last_ms=0)
    with pytest.raises(InvalidInput, match="span"):
        log.append(head, [])
    assert place.files.list(place.folder) == []


def test_times_are_found(place: Place) -> None:
    log = place.open()
    fill(log, range(100))
    for n in (0, 1, 50, 99):
        assert log.offset_at(1_000 + n) == n
    assert log.offset_at(0) == 0
    assert log.offset_at(1_100) == 100
    log.drop_before(30)
    assert log.offset_at(1_010) == 30


def test_times_that_step_back_are_found_where_they_were_reached_first(place: Place) -> None:
    log = place.open()
    for n, at_ms in enumerate([10, 50, 20, 30, 60] * 10):
        log.append(*entry(n, at_ms=at_ms))
    assert log.offset_at(20) == 1
    assert log.offset_at(55) == 4


def test_drop_before_moves_the_start_exactly_and_for_good(place: Place) -> None:  # SPEC E4
    log = place.open()
    fill(log, range(30))
    assert log.drop_before(3) == 0
    assert log.drop_before(14) > 0
    assert log.drop_before(2) == 0
    for found in (log, place.open()):
        assert (found.start_offset, found.next_offset) == (14, 30)
        assert bodies(found) == [body_of(n) for n in range(14, 30)]


def test_offsets_go_on_after_everything_was_dropped(place: Place) -> None:  # SPEC E2
    log = place.open()
    fill(log, range(5))
    assert log.drop_before(5) > 0
    assert log.size_bytes == 0
    for _ in range(3):
        log = place.open()
        assert (log.start_offset, log.next_offset) == (5, 5)
    fill(log, range(5, 7))
    assert bodies(place.open()) == [body_of(5), body_of(6)]


def test_rewrite_keeps_offsets_and_leaves_gaps(place: Place) -> None:  # SPEC I1
    log = place.open()
    fill(log, range(30))
    closed = [info for info in log.segments() if info.next_offset < 30]
    end = closed[-1].next_offset
    kept = [n for n in range(end) if n % 4 == 3]
    assert rewrite(log, 0, end, [whole(n, n) for n in kept]) > 0
    fill(log, range(30, 40))
    for found in (log, place.open()):
        assert bodies(found) == [body_of(n) for n in [*kept, *range(end, 40)]]
        assert verify(found.read(4, 1)).base_offset == 7
        assert found.offset_at(1_004) == 7
        assert found.verify() == []
        assert found.size_bytes == log.size_bytes


def test_rewrite_may_leave_nothing_and_be_repeated(place: Place) -> None:
    log = place.open()
    fill(log, range(30))
    first, second = [info.next_offset for info in log.segments()][:2]
    rewrite(log, 0, first, [whole(2, 2)])
    rewrite(log, 0, first, [whole(1, 1)])
    rewrite(log, 0, second, [])
    for found in (log, place.open()):
        assert bodies(found) == [body_of(n) for n in range(second, 30)]
        assert verify(found.read(0, 1)).base_offset == second


def test_a_gap_up_to_the_end_reads_as_the_end(place: Place) -> None:
    log = place.open()
    fill(log, range(9))
    log.drop_before(3)
    log.roll()
    (first, last) = log.segments()
    rewrite(log, first.base_offset, first.next_offset, [])
    for found in (log, place.open()):
        assert found.read(5, 100) == b""
        assert list(found.entries()) == []
        assert found.next_offset == last.base_offset


def test_only_closed_segments_can_be_rewritten(place: Place) -> None:
    log = place.open()
    fill(log, range(30))
    for first, end in ((0, 30), (1, 9), (0, 8), (40, 50)):
        with pytest.raises(InvalidInput, match="bounds"):
            rewrite(log, first, end, [])
    assert bodies(log) == [body_of(n) for n in range(30)]


def test_a_position_is_where_the_bytes_are_that_read_returns(place: Place) -> None:
    log = place.open()
    fill(log, range(30))
    for offset in range(30):
        path = next(one.path for one in reversed(log.segments()) if one.base_offset <= offset)
        data = log.read(offset, 250)
        position = log.position_of(offset)
        assert place.files.open(path).read_at(position, len(data)) == data


def test_segments_tell_their_range_size_and_times(place: Place) -> None:
    log = place.open()
    fill(log, range(30))
    infos = log.segments()
    assert [info.next_offset for info in infos[:-1]] == [info.base_offset for info in infos[1:]]
    assert sum(info.size_bytes for info in infos) == log.size_bytes
    assert (infos[0].first_ms, infos[-1].last_ms) == (1_000, 1_029)
