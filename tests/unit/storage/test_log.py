"""What a log costs: reads at open, and reads while following it (SPEC E5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nexo.errors import ReadOnly
from nexo.model import Buffer
from nexo.storage.header import head_at, seal
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import File
from tests.memory_files import MemoryFile, MemoryFiles
from tests.unit.storage.entries import FOLDER, bodies, body_of, entry, fill, readable

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


def large_log(files: MemoryFiles) -> SegmentedLog:
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


class CannotTruncate(MemoryFile):
    def write_at(self, position: int, parts: Sequence[Buffer]) -> int:
        if position > 300:
            raise OSError(5, "Input/output error")
        return super().write_at(position, parts)

    def truncate(self, size: int) -> None:
        raise OSError(5, "Input/output error")


class BrokenFiles(MemoryFiles):
    def open(self, path: Path, *, create: bool = False) -> File:
        super().open(path, create=create)
        return CannotTruncate(self, path, self._contents[path])


def test_a_log_that_cannot_undo_a_failed_write_takes_no_more() -> None:
    log = SegmentedLog(BrokenFiles(), FOLDER)
    fill(log, range(3))
    with pytest.raises(OSError, match="Input"):
        log.append(*entry(3))
    with pytest.raises(ReadOnly, match="restart"):
        log.append(*entry(3))
    assert bodies(log) == [body_of(n) for n in range(3)]


def test_half_a_header_is_no_header() -> None:
    head, _ = entry(1)
    assert head_at(bytes(head[:63]), 0) is None
    assert head_at(bytes(head), 0) is not None
