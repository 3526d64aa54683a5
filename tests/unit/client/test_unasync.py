"""The generator of the sync client, and that what is checked in is what it gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.unasync import to_sync

ROOT = Path(__file__).parents[3]


def test_the_checked_in_sync_client_is_current() -> None:
    check = subprocess.run(
        [sys.executable, "tools/unasync.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr


def test_asynchrony_is_taken_out_and_the_rest_kept() -> None:
    assert to_sync(
        '"""Use ``await queue.push(1)``."""\n'
        "from nexo.client._async.link.link import Link\n"
        "class AsyncThing:\n"
        "    async def run(self, do: Callable[[int], Awaitable[list[T]]]) -> AsyncIterator[T]:\n"
        "        async with self.lock:  # await it\n"
        "            async for item in self.items():\n"
        "                yield (await do(item))[0]\n"
        "    async def __aexit__(self) -> None: ...\n"
    ) == (
        '"""Use ``queue.push(1)``."""\n'
        "from nexo.client._sync.link.link import Link\n"
        "class Thing:\n"
        "    def run(self, do: Callable[[int], list[T]]) -> Iterator[T]:\n"
        "        with self.lock:  # it\n"
        "            for item in self.items():\n"
        "                yield (do(item))[0]\n"
        "    def __exit__(self) -> None: ...\n"
    )


def test_names_that_only_contain_the_words_are_kept() -> None:
    text = "asynchronous = awaited = Asynchrony\n"
    assert to_sync(text) == text
