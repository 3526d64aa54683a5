"""When syncs happen, and who hears of them (SPEC E3)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from nexo.errors import NexoError
from nexo.model import Persistence
from nexo.services.durability import Committer
from nexo.storage.flusher import Flusher
from nexo.storage.memory import MemoryFiles
from nexo.storage.ports import File

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

    def _sync_files(self, dirty: set[File]) -> None:
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
