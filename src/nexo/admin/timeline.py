"""The records of several partitions as one list in the order of time, page by page.

Each partition is read a little at a time, forward or backward. A page takes the oldest record of
all partitions, or the newest, until it is full. The positions of all partitions are the cursor
from which the next page continues, in either direction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nexo.client.stream_records import Record

TimelineRecord: TypeAlias = Record[Any]
ReadRecords: TypeAlias = Callable[[int, int, int], Awaitable[tuple[list[TimelineRecord], int]]]
"""``partition, offset, max bytes``: the records from an offset on, and where to read on."""

SCAN = 20_000
"""Records that a search looks at for one page."""
_LEAST_BYTES = 16 * 1024
_READ_BYTES = 512 * 1024
_WINDOW = 16
_AT_ONCE = 16


@dataclass(slots=True)
class PartitionWindow:
    """One partition between two offsets, from ``at`` on in one direction."""

    partition: int
    start: int
    end: int
    at: int
    """Everything between here and where the page began was looked at."""
    backward: bool
    waiting: deque[TimelineRecord] = field(default_factory=deque)
    window: int = _WINDOW
    _read: int = -1
    """Up to where it was read."""

    def __post_init__(self) -> None:
        self.at = min(max(self.at, self.start), self.end)
        self._read = self.at

    @property
    def ended(self) -> bool:
        """Whether there is nothing more in this direction."""
        return not self.waiting and self._read == (self.start if self.backward else self.end)

    async def fill(self, read: ReadRecords, max_bytes: int) -> None:
        """Have a record waiting, unless the partition has ended."""
        while not self.waiting and not self.ended:
            await (self._before(read, max_bytes) if self.backward else self._after(read, max_bytes))
            if not self.waiting:
                self.at = self._read  # nothing is there, as after compaction

    async def _after(self, read: ReadRecords, max_bytes: int) -> None:
        rows, following = await read(self.partition, self._read, max_bytes)
        self.waiting.extend(row for row in rows if self._read <= row.offset < self.end)
        self._read = min(max(following, self._read + 1), self.end)

    async def _before(self, read: ReadRecords, max_bytes: int) -> None:
        first = max(self.start, self._read - self.window)
        offset = first
        while offset < self._read:
            rows, following = await read(self.partition, offset, max_bytes)
            self.waiting.extend(row for row in rows if offset <= row.offset < self._read)
            offset = max(following, offset + 1)
        self.waiting.reverse()
        self._read, self.window = first, self.window * 2

    def take(self) -> TimelineRecord:
        """The next record."""
        row = self.waiting.popleft()
        self.at = row.offset if self.backward else row.offset + 1
        if not self.waiting:
            self.at = self._read
        return row


@dataclass(slots=True)
class TimelinePage:
    """Records, the oldest first, and how much was looked at for them."""

    rows: list[TimelineRecord]
    scanned: int
    ended: bool
    """There are no more in this direction."""


async def page(
    windows: Sequence[PartitionWindow],
    read: ReadRecords,
    limit: int,
    key: str | None,
    backward: bool,
) -> TimelinePage:
    """The next records of all partitions together; with a ``key``, those that have it."""
    rows: list[TimelineRecord] = []
    scanned = 0
    max_bytes = max(_LEAST_BYTES, _READ_BYTES // max(1, len(windows)))
    await _fill_all(windows, read, max_bytes)
    choose = max if backward else min
    while len(rows) < limit and scanned < SCAN:
        unread = [window for window in windows if window.waiting]
        if not unread:
            break
        window = choose(unread, key=_time)
        row = window.take()
        scanned += 1
        if key is None or row.key == key:
            rows.append(row)
        await window.fill(read, max_bytes)
    if backward:
        rows.reverse()
    return TimelinePage(rows, scanned, all(window.ended for window in windows))


def _time(window: PartitionWindow) -> tuple[int, int]:
    return window.waiting[0].timestamp_ms, window.partition


async def _fill_all(windows: Sequence[PartitionWindow], read: ReadRecords, max_bytes: int) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def fill(window: PartitionWindow) -> None:
        async with gate:
            await window.fill(read, max_bytes)

    await asyncio.gather(*(fill(window) for window in windows))
