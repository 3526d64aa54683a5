"""What a log costs: reads at open, and reads while following it (SPEC E5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.errors import OutcomeUnknown
from nexo.storage.header import head_at, seal
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import File, Files
from tests.failing_calls import FailingFiles, Fault, Kind, Remains
from tests.memory_files import MemoryFile, MemoryFiles
from tests.unit.storage.entries import FOLDER, bodies, body_of, entry, fill, readable, whole

SEGMENT_BYTES = 200_000


class ReadCountingFile(MemoryFile):
    def read_at(self, position: int, size: int) -> bytes:
        data = super().read_at(position, size)
        assert isinstance(self._files, ReadCountingFiles)
        self._files.read_bytes += len(data)
        self._files.reads += 1
        return data


class ReadCountingFiles(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.reads = self.read_bytes = 0

    def open(self, path: Path, *, create: bool = False) -> File:
        super().open(path, create=create)
        return ReadCountingFile(self, path, self._contents[path])

    def reset(self) -> None:
        self.reads = self.read_bytes = 0


def large_log(files: Files) -> SegmentedLog:
    log = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    fill(log, range(10_000))
    return log


def test_opening_after_a_clean_close_reads_the_tail_only() -> None:
    files = ReadCountingFiles()
    log = large_log(files)
    assert log.size_bytes > 1_000_000
    log.close()
    files.reset()
    again = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    assert again.next_offset == 10_000
    assert files.read_bytes < 100_000


def test_a_reader_that_goes_on_costs_one_read_each() -> None:
    files = ReadCountingFiles()
    log = large_log(files)
    at = 5_000
    log.read(at, 1_000)
    files.reset()
    for turn in range(1, 50):
        assert log.read(at + 9 * turn, 1_000)
    assert files.reads == 49


def test_a_read_costs_the_same_anywhere() -> None:
    files = ReadCountingFiles()
    log = large_log(files)
    log.segments()
    for offset in range(3, 10_000, 501):
        log.read(offset, 1)
        files.reset()
        log.read(offset + 250, 104)
        assert files.reads <= 2 or files.read_bytes < 20_000


def test_tiny_logs_have_one_file_each() -> None:
    files = MemoryFiles()
    log = SegmentedLog(files, FOLDER)
    fill(log, range(100))
    log.close()
    assert files.list(FOLDER) == ["00000000000000000000.log"]


def test_a_lost_index_is_rebuilt_and_saved() -> None:
    files = MemoryFiles()
    large_log(files).close()
    before = files.list(FOLDER)
    for name in before:
        if name.endswith(".idx"):
            files.remove(FOLDER / name)
    log = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    assert [offset for offset, _ in readable(log)] == list(range(10_000))
    assert log.offset_at(5_000) == 4_000
    log.segments()
    log.close()
    assert files.list(FOLDER) == before


def test_an_index_that_says_more_than_the_segment_has_is_not_believed() -> None:
    files = MemoryFiles()
    log = SegmentedLog(files, FOLDER)
    fill(log, range(2_000))
    log.close()
    path = FOLDER / f"{0:020}.log"
    files.open(path).truncate(64 + 1_500 * 104 + 20)
    again = SegmentedLog(files, FOLDER)
    assert again.next_offset == 1_500
    fill(again, range(1_500, 1_600))
    assert bodies(SegmentedLog(files, FOLDER)) == [body_of(n) for n in range(1_600)]


def test_an_entry_inside_a_value_is_not_mistaken_for_one() -> None:
    files = MemoryFiles()
    log = SegmentedLog(files, FOLDER)
    inner_head, inner_body = entry(7, base=1)
    fill(log, range(1))
    body = [bytes(inner_head) + inner_body[0]]
    head = seal(body, count=1, first_ms=0, last_ms=0)
    log.append(head, body)
    fill(log, range(2, 4))
    path = FOLDER / f"{0:020}.log"
    file = files.open(path)
    at = 64 + 104 + 64 + 70
    file.write_at(at, [b"?"])
    again = SegmentedLog(files, FOLDER)
    assert [offset for offset, _ in readable(again)] == [0, 2, 3]


def failing_from(files: FailingFiles, *kinds: Kind, remains: Remains = "nothing") -> None:
    """From now on, calls of these kinds fail."""
    files.fault = Fault(len(files.calls) + 1, 1 << 30, kinds=frozenset(kinds), remains=remains)


def test_an_index_that_cannot_be_saved_fails_no_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC E2: an entry that is in the log is confirmed, and its offset is not given again."""
    monkeypatch.setattr("nexo.storage.log._INDEX_EVERY", 0)
    files = FailingFiles(MemoryFiles())
    log = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    fill(log, range(1_000))
    failing_from(files, "open")
    offsets = [log.append(*entry(n)) for n in range(1_000, 1_010)]
    assert {path.suffix for _, path in files.failed} == {".idx"}
    assert offsets == list(range(1_000, 1_010))
    log.close()
    files.fault = None
    again = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    assert bodies(again) == [body_of(n) for n in range(1_010)]


def test_an_index_that_cannot_be_read_is_rebuilt() -> None:
    files = FailingFiles(MemoryFiles())
    large_log(files).close()
    files.fault = Fault(1, 1 << 30, kinds=frozenset({"read"}), suffix=".idx")
    again = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    assert bodies(again) == [body_of(n) for n in range(10_000)]
    assert files.failed


@pytest.mark.parametrize("remains", ["nothing", "half", "all"])
def test_a_refused_write_is_undone(remains: Remains) -> None:
    files = FailingFiles(MemoryFiles())
    log = SegmentedLog(files, FOLDER)
    fill(log, range(3))
    failing_from(files, "write", remains=remains)
    with pytest.raises(OSError, match="Input"):
        log.append(*entry(3))
    files.fault = None
    assert log.append(*entry(4)) == 3
    for found in (log, SegmentedLog(files, FOLDER)):
        assert bodies(found) == [body_of(n) for n in (0, 1, 2, 4)]


@pytest.mark.parametrize("remains", ["half", "all"])
def test_a_write_that_cannot_be_undone_is_unsure_and_undone_later(remains: Remains) -> None:
    """SPEC Q2, Q3: the caller is told, and the log serves again once the disk answers."""
    files = FailingFiles(MemoryFiles())
    log = SegmentedLog(files, FOLDER)
    fill(log, range(3))
    failing_from(files, "write", "truncate", remains=remains)
    with pytest.raises(OutcomeUnknown, match="could not be undone"):
        log.append(*entry(3))
    with pytest.raises(OSError, match="Input"):  # nothing is written behind it: surely refused
        log.append(*entry(3))
    with pytest.raises(OSError, match="Input"):
        log.roll()
    assert bodies(log) == [body_of(n) for n in range(3)]
    files.fault = None
    assert log.append(*entry(4)) == 3
    for found in (log, SegmentedLog(files, FOLDER)):
        assert bodies(found) == [body_of(n) for n in (0, 1, 2, 4)]


def test_an_open_finds_what_could_not_be_undone_or_cuts_it_off() -> None:
    cases: list[tuple[Remains, int]] = [("half", 3), ("all", 4)]
    for remains, found in cases:
        files = FailingFiles(MemoryFiles())
        log = SegmentedLog(files, FOLDER)
        fill(log, range(3))
        failing_from(files, "write", "truncate", remains=remains)
        with pytest.raises(OutcomeUnknown):
            log.append(*entry(3))
        files.fault = None
        assert bodies(SegmentedLog(files, FOLDER)) == [body_of(n) for n in range(found)]


def test_closing_a_log_releases_its_files_though_the_disk_refuses() -> None:
    files = FailingFiles(MemoryFiles())
    log = SegmentedLog(files, FOLDER, room_ahead=True)
    fill(log, range(3))
    failing_from(files, "truncate")
    log.close()
    assert files.failed
    files.fault = None
    assert bodies(SegmentedLog(files, FOLDER)) == [body_of(n) for n in range(3)]


def test_dropping_goes_on_though_a_file_cannot_be_removed() -> None:
    files = FailingFiles(MemoryFiles())
    log = SegmentedLog(files, FOLDER, segment_bytes=1_000)
    fill(log, range(100))
    failing_from(files, "remove")
    log.drop_before(50)
    assert (log.start_offset, bodies(log)[0]) == (50, body_of(50))
    files.fault = None
    before = len(log.segments())
    log.drop_before(51)
    assert len(log.segments()) < before
    assert bodies(SegmentedLog(files, FOLDER))[0] == body_of(51)


def test_a_rewrite_counts_though_the_old_files_cannot_be_removed() -> None:
    files = FailingFiles(MemoryFiles())
    log = SegmentedLog(files, FOLDER, segment_bytes=1_000)
    fill(log, range(100))
    first, second = log.segments()[:2]
    rewriting = log.begin_rewrite(first.base_offset, second.next_offset)
    rewriting.add([whole(n, n) for n in range(2)])
    files.fault = Fault(len(files.calls) + 3, 1 << 30, kinds=frozenset({"remove"}))
    log.finish_rewrite(rewriting)
    assert files.failed
    files.fault = None
    expected = [body_of(n) for n in (0, 1, *range(second.next_offset, 100))]
    for found in (log, SegmentedLog(files, FOLDER, segment_bytes=1_000)):
        assert bodies(found) == expected


def test_half_a_header_is_no_header() -> None:
    head, _ = entry(1)
    assert head_at(bytes(head[:63]), 0) is None
    assert head_at(bytes(head), 0) is not None
