"""When syncs happen, and who hears of them (SPEC E3)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from nexo.errors import NexoError
from nexo.model import Persistence
from nexo.services import durability
from nexo.services.durability import Committer
from nexo.storage.disk.flusher import Flusher
from nexo.storage.journal import Journal
from nexo.storage.ports import File
from tests.memory_files import MemoryFiles
from tests.timing import eventually

FOLDER = Path("/data")
LONG_MS = 3_600_000


def committer(flush_ms: int) -> tuple[Committer, MemoryFiles]:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    return Committer(asyncio.get_running_loop(), Flusher(files, FOLDER), flush_ms), files


class Noted(Flusher):
    """Notes where it runs, and takes as long as it is told."""

    def __init__(self, files: MemoryFiles) -> None:
        self.takes_ms = 0.1
        self.inline: list[bool] = []
        self._now_s = 0.0
        super().__init__(files, FOLDER, timer=lambda: self._now_s)

    def sync(self) -> None:
        self.inline.append(threading.current_thread() is threading.main_thread())
        super().sync()

    def _sync_files(self, dirty: list[File]) -> None:
        super()._sync_files(dirty)
        self._now_s += self.takes_ms / 1000


async def commit(commits: Committer, files: MemoryFiles) -> None:
    write(files)
    done = asyncio.Event()
    commits.committed(Persistence.FILE_SYNC, lambda _: done.set())
    await asyncio.wait_for(done.wait(), 60)


async def noted(flush_ms: int) -> tuple[Committer, MemoryFiles, Noted]:
    """After the first sync, whose time does not count."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    flusher = Noted(files)
    commits = Committer(asyncio.get_running_loop(), flusher, flush_ms)
    await commit(commits, files)
    flusher.inline.clear()
    return commits, files, flusher


def write(files: MemoryFiles) -> None:
    files.open(FOLDER / "log", create=True).write_at(0, [b"x"])


async def test_watchers_hear_of_the_windows_sync_and_nothing_was_left_dirty() -> None:
    commits, files = committer(flush_ms=1)
    heard: asyncio.Future[NexoError | None] = asyncio.get_running_loop().create_future()
    write(files)
    commits.when_synced(heard.set_result)
    assert not heard.done()
    assert await asyncio.wait_for(heard, 60) is None
    assert not files.dirty
    await commits.close()


async def test_watchers_do_not_hasten_a_sync_but_share_one() -> None:
    commits, files = committer(flush_ms=LONG_MS)
    heard: list[str] = []
    write(files)
    commits.when_synced(lambda _: heard.append("watcher"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert heard == []
    done = asyncio.Event()
    commits.committed(Persistence.FILE_SYNC, lambda _: done.set())
    await asyncio.wait_for(done.wait(), 60)
    assert heard == ["watcher"]
    await commits.close()


async def test_watchers_are_told_at_the_end() -> None:
    commits, files = committer(flush_ms=LONG_MS)
    heard: list[NexoError | None] = []
    write(files)
    commits.when_synced(heard.append)
    await commits.close()
    assert heard == [None]


async def test_a_window_in_which_commits_synced_all_needs_no_thread() -> None:
    commits, files, flusher = await noted(flush_ms=1)
    heard: asyncio.Future[NexoError | None] = asyncio.get_running_loop().create_future()
    await commit(commits, files)
    commits.when_synced(heard.set_result)
    assert await asyncio.wait_for(heard, 60) is None
    assert flusher.inline == [True, True]
    await commits.close()


async def test_one_slow_sync_does_not_move_the_next_to_a_thread_but_many_do() -> None:
    commits, files, flusher = await noted(flush_ms=LONG_MS)
    for takes_ms in (0.3, 50.0, 0.3, 0.3):
        flusher.takes_ms = takes_ms
        await commit(commits, files)
    assert flusher.inline == [True] * 4
    flusher.takes_ms = 2.0
    for _ in range(20):
        await commit(commits, files)
    assert flusher.inline[-2:] == [False, False]
    flusher.takes_ms = 0.3
    for _ in range(20):
        await commit(commits, files)
    assert flusher.inline[-2:] == [True, True]
    await commits.close()


async def test_a_callback_that_raises_costs_no_other_reply_of_its_group() -> None:
    """Finding F14."""
    commits, files = committer(flush_ms=LONG_MS)
    heard: list[NexoError | None] = []

    def fails(_error: NexoError | None) -> None:
        raise KeyError("a bug")

    write(files)
    commits.committed(Persistence.FILE_SYNC, heard.append)
    commits.committed(Persistence.FILE_SYNC, fails)
    commits.committed(Persistence.FILE_SYNC, heard.append)
    await eventually(lambda: heard == [None, None])
    await commits.close()


class Slow(Noted):
    """Its syncs in a thread end when they are let go."""

    def __init__(self, files: MemoryFiles) -> None:
        self.running = 0
        self.most_running = 0
        self.go = threading.Event()
        super().__init__(files)

    def sync(self) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if threading.current_thread() is not threading.main_thread():
            self.go.wait(60)
        super().sync()
        self.running -= 1


async def test_a_commit_waits_for_the_sync_of_a_window_that_closed_before_it() -> None:
    """Finding F14: one sync at a time, and `close` waits for it."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    flusher = Slow(files)
    commits = Committer(asyncio.get_running_loop(), flusher, flush_ms=LONG_MS)
    write(files)
    commits.committed(Persistence.FILE_ASYNC, lambda _: None)
    heard: list[NexoError | None] = []
    commits.sync_soon()
    await asyncio.sleep(0)
    commits.committed(Persistence.FILE_SYNC, heard.append)
    await eventually(lambda: flusher.running == 1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (flusher.most_running, heard) == (1, [])
    flusher.go.set()
    await eventually(lambda: heard == [None])
    assert flusher.most_running == 1
    await commits.close()


async def test_a_quiet_journal_notes_that_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding F1: durably, and once."""
    monkeypatch.setattr(durability, "QUIET_S", 0)
    commits, files = committer(flush_ms=1)
    journal = Journal(files, FOLDER / "journal")
    journal.append([b"record"], 0)
    size = journal.size_bytes
    commits.committed(Persistence.FILE_ASYNC, lambda _: None)
    await eventually(lambda: journal.size_bytes > size and not files.dirty)
    size = journal.size_bytes
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert journal.size_bytes == size
    await commits.close()
