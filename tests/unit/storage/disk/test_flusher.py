"""Durability in one place, and the guard of the last free bytes."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from nexo.errors import DiskFull, ReadOnly
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.flusher import DiskGuard, Flusher, SyncTimes
from nexo.storage.ports import File
from tests.faulty_files import FaultyFiles
from tests.memory_files import MemoryFiles

FOLDER = Path("/data")


class CountingFiles(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.synced_all = 0

    def sync_all(self, folder: Path) -> None:
        self.synced_all += 1
        super().sync_all(folder)


def write_to(files: CountingFiles, count: int, folder: Path = FOLDER) -> list[File]:
    files.make_folder(folder)
    made = [files.open(folder / str(n), create=True) for n in range(count)]
    for file in made:
        file.write_at(0, [b"12"])
    return made


def test_few_files_are_synced_one_by_one_and_many_at_once() -> None:
    files = CountingFiles()
    flusher = Flusher(files, FOLDER, many_files=4)
    flusher.sync()
    for count, all_at_once in ((4, 0), (5, 1)):
        files.synced_all = 0
        made = write_to(files, count)
        flusher.sync()
        assert files.synced_all == all_at_once
        assert {file.synced_bytes for file in made} == {2}


def test_files_outside_the_folder_are_synced_even_among_many() -> None:
    files = CountingFiles()
    flusher = Flusher(files, FOLDER, many_files=2)
    elsewhere = write_to(files, 1, Path("/other"))
    write_to(files, 5)
    flusher.sync()
    assert elsewhere[0].synced_bytes == 2


def test_the_first_sync_covers_what_an_earlier_process_left() -> None:
    files = CountingFiles()
    flusher = Flusher(files, FOLDER)
    dirty = [flusher.dirty]
    flusher.sync()
    assert files.synced_all == 1
    dirty.append(flusher.dirty)
    assert dirty == [True, False]
    flusher.sync()
    assert files.synced_all == 1


def test_a_failed_sync_is_final() -> None:
    files = FaultyFiles()
    flusher = Flusher(files, FOLDER)
    files.make_folder(FOLDER)
    file = files.open(FOLDER / "a", create=True)
    file.write_at(0, [b"1"])
    files.fail_call = files.calls + 1
    for _ in range(3):
        with pytest.raises(ReadOnly, match="sync to disk failed"):
            flusher.sync()
    assert flusher.failed is not None
    with pytest.raises(ReadOnly):
        flusher.check()


def test_times_are_counted() -> None:
    ticks = iter([0.0, 1.0, 1.010, 2.0, 2.002])
    files = CountingFiles()
    flusher = Flusher(files, FOLDER, timer=lambda: next(ticks))
    flusher.sync()
    for _ in range(2):
        write_to(files, 1)
        flusher.sync()
    assert flusher.times.count == 2
    assert flusher.times.last_ms == pytest.approx(2)
    assert flusher.times.max_ms == pytest.approx(10)
    assert flusher.times.ewma_ms == pytest.approx(8.4)
    assert [count for count in flusher.times.histogram.counts if count] == [1, 1]
    assert SyncTimes().ewma_ms == 0


def test_appends_go_on_while_another_thread_syncs(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=8)
    flusher = Flusher(files, tmp_path, many_files=4)
    failures: list[BaseException] = []
    stopping = False

    def sync_over_and_over() -> None:
        try:
            while not stopping:
                flusher.sync()
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=sync_over_and_over)
    thread.start()
    made = [files.open(tmp_path / str(n), create=True) for n in range(20)]
    for turn in range(40):
        for n, file in enumerate(made):
            file.write_at(turn * 8, [b"%3d %3d\n" % (n, turn)])
    stopping = True
    thread.join()
    flusher.sync()
    assert failures == []
    for n, file in enumerate(made):
        assert file.read_at(0, 999) == b"".join(b"%3d %3d\n" % (n, turn) for turn in range(40))
        assert file.synced_bytes == 320 or file.size() == 320


def test_writes_are_refused_below_the_reserve_and_resume_by_themselves() -> None:  # SPEC I7
    files = MemoryFiles(capacity_bytes=1_000)
    guard = DiskGuard(files, FOLDER, reserve_bytes=400)
    guard.check(0)
    files.capacity_bytes = 399
    guard.check(199)
    with pytest.raises(DiskFull, match=r"399 bytes are left.*resume at 500"):
        guard.check(200)
    files.capacity_bytes = 450
    with pytest.raises(DiskFull):
        guard.check(400)
    files.capacity_bytes = 500
    guard.check(600)
    assert not guard.full


def test_without_a_reserve_nothing_is_refused() -> None:
    DiskGuard(MemoryFiles(capacity_bytes=0), FOLDER, reserve_bytes=0).check(0)


def test_settling_stops_early_and_then_begins_with_those_that_waited() -> None:
    now = 0.0
    settled: list[str] = []

    class SlowLog:
        def __init__(self, name: str) -> None:
            self.name = name

        def settle(self) -> bool:
            nonlocal now
            now += 0.003
            settled.append(self.name)
            return False

    files = MemoryFiles()
    flusher = Flusher(files, Path("/data"), timer=lambda: now)
    for name in "abcde":
        files.on_unsettled(SlowLog(name))
    assert [flusher.settle() for _ in range(3)] == [True, True, True]
    assert settled == [*"abcdea"]
