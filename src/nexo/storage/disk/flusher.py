"""Durability in one place: which files are dirty, how to sync them, what a failure means.

`Flusher.sync` may run inline or in a thread while marks and appends continue. The server
decides when to call it: that is the only difference between ``file_sync`` and
``file_async`` (SPEC E3).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from nexo.errors import DiskFull, NexoError, ReadOnly
from nexo.model.histogram import Histogram
from nexo.storage.disk.files import lies_in
from nexo.storage.ports import File, Files, Settles

_SETTLE_S = 0.004
"""How long one call may settle logs."""
MANY_FILES = 16
"""Above this many dirty files, one ``syncfs`` is faster than an ``fdatasync`` for each."""
_EWMA_WEIGHT = 0.2
_RECHECK_MS = 200
"""How often `DiskGuard` asks how much space is left."""


@dataclass(slots=True)
class SyncTimes:
    """How long syncs take."""

    count: int = 0
    last_ms: float = 0.0
    ewma_ms: float = 0.0
    max_ms: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)

    def note(self, took_ms: float) -> None:
        weight = _EWMA_WEIGHT if self.count else 1.0
        self.count += 1
        self.last_ms = took_ms
        self.ewma_ms += weight * (took_ms - self.ewma_ms)
        self.max_ms = max(self.max_ms, took_ms)
        self.histogram.add(int(took_ms * 1e6))


class Flusher:
    """Makes everything written through one `Files` durable; create it before the first write.

    The first sync also covers what an earlier process wrote to ``folder`` and did not sync. A
    failed sync is final: the state of the disk is unknown from then on, so ``failed`` stays set
    and every later `sync` raises it.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        many_files: int = MANY_FILES,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.failed: ReadOnly | None = None
        self.times = SyncTimes()
        self._files = files
        self._folder = folder
        self._many_files = many_files
        self._timer = timer
        self._dirty: dict[File, None] = {}  # in the order of their first write, as below
        self._unsettled: dict[Settles, None] = {}
        self._inherited = True
        self._marking = Lock()
        self._syncing = Lock()
        files.on_dirty = self.mark
        files.on_unsettled = self._note_unsettled

    @property
    def dirty(self) -> bool:
        return self._inherited or bool(self._dirty)

    @property
    def unsettled(self) -> bool:
        """Whether a journal has yet to record that all of it is synced."""
        return bool(self._unsettled)

    def settle(self) -> bool:
        """Let logs that are synced and idle record it. Call it in the thread that owns them.

        Returns whether it stopped early, so that nobody waits long: call it again soon.
        """
        until = self._timer() + _SETTLE_S
        for journal in list(self._unsettled):
            del self._unsettled[journal]
            if not journal.settle():
                self._unsettled[journal] = None  # at the end: the next call begins with others
            if self._timer() > until:
                return True
        return False

    def _note_unsettled(self, journal: Settles) -> None:
        self._unsettled[journal] = None

    def mark(self, file: File) -> None:
        """Record that ``file`` has unsynced writes; `Files` calls this itself."""
        with self._marking:
            self._dirty[file] = None

    def sync(self) -> None:
        """Make everything written before this call durable, or raise `ReadOnly`."""
        with self._syncing:
            self.check()
            dirty = self._take()
            if not (dirty or self._inherited):
                return
            first, began = self._inherited, self._timer()
            try:
                self._sync_files(dirty)
            except (OSError, NexoError) as error:
                raise self._fail(error) from error
            if not first:  # the first also flushes an earlier process's writes, so it is not timed
                self.times.note((self._timer() - began) * 1_000)

    def check(self) -> None:
        """Raise `ReadOnly` if a sync has failed."""
        if self.failed is not None:
            raise self.failed

    def _take(self) -> list[File]:
        with self._marking:
            dirty, self._dirty = self._dirty, {}
        return list(dirty)

    def _sync_files(self, dirty: list[File]) -> None:
        if self._inherited or len(dirty) > self._many_files:
            self._files.sync_all(self._folder)
            self._inherited = False
            within = lies_in(self._folder)
            dirty = [file for file in dirty if not within(file.path)]
        for file in dirty:
            file.sync()

    def _fail(self, error: Exception) -> ReadOnly:
        self.failed = ReadOnly(f"a sync to disk failed ({error}): restart after checking the disk")
        return self.failed


class DiskGuard:
    """Rejects writes while disk space is low, so that acks and deletes still fit."""

    def __init__(self, files: Files, folder: Path, reserve_bytes: int) -> None:
        self.free_bytes = 0
        self.full = False
        self._files = files
        self._folder = folder
        self._low = reserve_bytes
        self._high = reserve_bytes + reserve_bytes // 4
        self._due_ms: int | None = None

    def check(self, now_ms: int) -> None:
        """Raise `DiskFull` below the reserve, and then until a quarter more than that is free."""
        if self._due_ms is None or now_ms >= self._due_ms:
            self._look(now_ms)
        if self.full:
            raise DiskFull(
                f"only {self.free_bytes} bytes are left on disk, writes resume at {self._high}: "
                "free some space"
            )

    def _look(self, now_ms: int) -> None:
        self._due_ms = now_ms + _RECHECK_MS
        self.free_bytes = self._files.free_bytes(self._folder)
        self.full = self.free_bytes < (self._high if self.full else self._low)
