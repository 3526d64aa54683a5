"""Second sums beside the segments of a log that is `summed` (SPEC Q4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.batch import encode_plain
from nexo.errors import Corrupt
from nexo.storage.disk.flusher import Flusher
from nexo.storage.log import SegmentedLog
from nexo.storage.sums import ROW_BYTES
from tests.memory_files import MemoryFiles
from tests.unit.storage.entries import FOLDER, content, overwrite, rewrite


def opened(files: MemoryFiles, segment_bytes: int = 4_000) -> SegmentedLog:
    return SegmentedLog(files, FOLDER, segment_bytes=segment_bytes, summed=True)


def publish(log: SegmentedLog, batches: int, records: int = 10) -> None:
    for batch in range(batches):
        log.append(*encode_plain([b"%d of %d" % (n, batch) for n in range(records)], 0, 1_000))


def settled(files: MemoryFiles, log: SegmentedLog) -> None:
    for _ in range(10):
        if log.settle():
            return
    raise AssertionError("the log never settles")


def everything(log: SegmentedLog) -> bytes:
    return b"".join(log.entries())


def paths(files: MemoryFiles, suffix: str) -> list[Path]:
    return [FOLDER / name for name in files.list(FOLDER) if name.endswith(suffix)]


def flip(files: MemoryFiles, path: Path, at: int) -> None:
    data = content(files, path)
    overwrite(files, path, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


def test_flips_in_every_segment_are_mended_once_there_are_sums() -> None:
    files = MemoryFiles()
    log = opened(files)
    publish(log, 80)
    before = everything(log)
    settled(files, log)
    assert len(paths(files, ".log")) == len(paths(files, ".sums")) > 2
    for path in paths(files, ".log"):
        flip(files, path, len(content(files, path)) // 2)
    assert everything(opened(files)) == before


def test_without_sums_the_batch_is_damaged() -> None:
    files = MemoryFiles()
    publish(opened(files), 3)
    flip(files, paths(files, ".log")[0], 64 + 64 + 100)
    with pytest.raises(Corrupt, match="offsets 0 to 9"):
        everything(opened(files))


def test_a_log_that_is_written_to_waits_until_it_is_quiet_or_until_it_is_much() -> None:
    files = MemoryFiles()
    log = opened(files, 64 << 20)
    for _ in range(3):
        publish(log, 3)
        assert not log.settle()
    assert paths(files, ".sums") == []
    assert log.settle()
    assert len(content(files, paths(files, ".sums")[0])) == 10 * ROW_BYTES
    while log.size_bytes < 3 << 20:
        publish(log, 10, records=1_000)
    assert not log.settle()
    assert len(content(files, paths(files, ".sums")[0])) > 10 * ROW_BYTES


def test_a_graceful_close_writes_what_is_left_and_single_records_need_no_sums() -> None:
    files = MemoryFiles()
    log = opened(files)
    publish(log, 3, records=1)
    publish(log, 2)
    log.close()
    assert len(content(files, paths(files, ".sums")[0])) == 3 * ROW_BYTES


def test_a_folder_without_sums_gets_them_after_it_was_opened() -> None:
    files = MemoryFiles()
    publish(SegmentedLog(files, FOLDER, segment_bytes=4_000), 80)
    flusher = Flusher(files, FOLDER)
    opened(files)
    waited = flusher.unsettled
    for _ in range(9):
        flusher.settle()
    assert (waited, flusher.unsettled) == (True, False)
    assert len(paths(files, ".log")) == len(paths(files, ".sums")) > 2


def test_sums_go_with_their_segments_and_are_made_again_for_rewritten_ones() -> None:
    files = MemoryFiles()
    log = opened(files)
    publish(log, 80)
    settled(files, log)
    first, second, *_ = log.segments()
    rewrite(log, first.base_offset, second.next_offset, log.entries())
    assert len(paths(files, ".sums")) == len(log.segments()) - 1
    settled(files, log)
    assert len(paths(files, ".sums")) == len(log.segments())
    log.drop_before(log.next_offset)
    settled(files, log)
    assert len(paths(files, ".sums")) <= 1


def test_a_closed_log_leaves_no_work() -> None:
    files = MemoryFiles()
    log = opened(files)
    publish(log, 3)
    log.abandon()
    assert log.settle()
    assert paths(files, ".sums") == []


@pytest.mark.parametrize("at", range(0, 3 * ROW_BYTES, 5))
def test_damage_in_the_sums_costs_nothing_while_the_batches_are_sound(at: int) -> None:
    files = MemoryFiles()
    log = opened(files)
    publish(log, 2)
    before = everything(log)
    settled(files, log)
    flip(files, paths(files, ".sums")[0], at)
    again = opened(files)
    assert everything(again) == before
    publish(again, 1)
    settled(files, again)
    flip(files, paths(files, ".log")[0], len(content(files, paths(files, ".log")[0])) - 40)
    assert everything(opened(files)).startswith(before)
