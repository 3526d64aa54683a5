"""When syncs happen, and who hears of them (SPEC E3)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nexo.errors import NexoError
from nexo.model import Persistence
from nexo.server.durability import Committer
from nexo.storage.flusher import Flusher
from nexo.storage.memory import MemoryFiles

FOLDER = Path("/data")
LONG_MS = 3_600_000


def committer(flush_ms: int) -> tuple[Committer, MemoryFiles]:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    return Committer(asyncio.get_running_loop(), Flusher(files, FOLDER), flush_ms), files


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
