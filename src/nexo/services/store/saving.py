"""Saves the store at a planned stop (SPEC A7), and chunk by chunk while it runs if asked (B3).

Also keeps on disk until when fencing numbers may have been issued. A number is the time, so one
that was issued before a restart could come again after it if the clock was set back meanwhile. The
mark is the name of a snapshot file (`<ms>.snap`): a damaged one still says it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from nexo.brokers.store.coordination import FencingNumbers
from nexo.brokers.store.engine import StoreEngine
from nexo.errors import Corrupt, NexoError
from nexo.model import Persistence
from nexo.services.service import Runtime
from nexo.services.store import snapshot
from nexo.services.store.snapshot import SnapshotWriter
from nexo.storage.ports import Files
from nexo.storage.snapshot import Snapshots

log = logging.getLogger("nexo.store")


class Saving:
    """Loads the snapshot at the start, renews it while running, and at the end.

    Without periodic saves, what a planned stop kept is used up by the next start, so that a crash
    never brings old values back. With a second machine it is not kept: that one may have led since.

    Each chunk is synced before the next is taken, off the loop when the disk is slow, so that
    neither encoding nor the disk delays requests. A save that fails leaves the previous
    snapshot in place, shows in the status, and is tried again when next due.
    """

    def __init__(self, runtime: Runtime, store: StoreEngine) -> None:
        self._runtime = runtime
        self._store = store
        self._every_ms = runtime.settings.store_snapshot_ms
        self._keeps = self.enabled or not runtime.settings.replicate
        self._snapshot = runtime.folder / snapshot.NAME
        self._stopped = runtime.folder / snapshot.STOPPED
        self._writer: SnapshotWriter | None = None
        self._saved_changes = 0
        self._changes = 0
        self._due_ms = 0
        self._saved_ms: int | None = None
        self._error: str | None = None

    @property
    def enabled(self) -> bool:
        return self._every_ms > 0

    def open(self, now_ms: int) -> None:
        """Load what was saved. Of a damaged file the valid part is loaded, and a copy is kept."""
        files = self._runtime.files
        stopped = self._keeps and snapshot.STOPPED in files.list(self._runtime.folder)
        if self.enabled:
            if stopped:  # it was not saved while it ran, and is newer than the last snapshot
                files.rename(self._stopped, self._snapshot)
            self._load(self._snapshot, now_ms)
            self._schedule(now_ms)
        elif stopped:
            self._load(self._stopped, now_ms)
            used_up = self._stopped.with_name(f"{snapshot.STOPPED}.new")
            files.rename(self._stopped, used_up)  # unlike a removal, durable at once
            files.remove(used_up)

    def _load(self, path: Path, now_ms: int) -> None:
        try:
            snapshot.load(self._runtime.files, path, self._store, now_ms)
            self._saved_changes = self._store.keyspace.changes
        except Corrupt as error:
            self._error = f"{error.message}; {self._keep_damaged(path)}"
            log.error("the saved store is damaged: %s", self._error)

    def _keep_damaged(self, path: Path) -> str:
        try:
            kept = snapshot.copy_damaged(self._runtime.files, path)
        except (NexoError, OSError) as error:
            return f"the file could not be copied: {error}"
        return f"the file is kept as {kept.name}"

    def _schedule(self, now_ms: int) -> None:
        self._due_ms = now_ms + self._every_ms
        self._runtime.wake_at(self._due_ms)

    def tick(self, now_ms: int) -> None:
        """Start a save if one is due and something has changed."""
        if not self.enabled or self._writer is not None:
            return
        if now_ms < self._due_ms:
            self._runtime.wake_at(self._due_ms)
        elif self._store.keyspace.changes == self._saved_changes:
            self._schedule(now_ms)
        else:
            self._begin()

    def _begin(self) -> None:
        runtime = self._runtime
        self._changes = self._store.keyspace.changes
        try:
            self._writer = SnapshotWriter(runtime.files, self._snapshot, self._store)
        except (NexoError, OSError) as error:
            self._give_up(error)
            return
        self._step()

    def _step(self) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            more = writer.step(self._runtime.clock.now_ms())
        except (NexoError, OSError) as error:
            self._give_up(error)
            return
        self._runtime.committed(
            Persistence.FILE_SYNC, lambda error: self._synced(writer, error, more)
        )

    def _synced(self, writer: SnapshotWriter, error: NexoError | None, more: bool) -> None:
        if self._writer is not writer:
            return
        if error is not None:
            self._give_up(error)
        elif more:
            self._runtime.soon(self._step)
        else:
            self._finish(writer)

    def _finish(self, writer: SnapshotWriter) -> None:
        try:
            writer.finish()
        except (NexoError, OSError) as error:
            self._give_up(error)
            return
        self._writer = None
        self._error = None
        self._saved_changes = self._changes
        self._saved_ms = self._runtime.clock.now_ms()
        self._schedule(self._saved_ms)

    def _give_up(self, error: Exception) -> None:
        self._error = str(error)
        log.error("the store could not be saved: %s", error)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        self._schedule(self._runtime.clock.now_ms())

    def close(self) -> None:
        """Save everything at once, so that the next start has all that was acknowledged."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        keyspace = self._store.keyspace
        if self.enabled and keyspace.changes != self._saved_changes:
            self._save(self._snapshot)
        elif self._keeps and not self.enabled and len(keyspace):
            self._save(self._stopped)

    def _save(self, path: Path) -> None:
        runtime = self._runtime
        now_ms = runtime.clock.now_ms()
        snapshot.save(runtime.files, path, self._store, now_ms, runtime.progress)

    def status(self) -> dict[str, Any]:
        """The time of the last save, and its error if it failed."""
        return {
            "enabled": self.enabled,
            "running": self._writer is not None,
            "saved_ms": self._saved_ms,
            "error": self._error,
        }


FOLDER = "fencing"


def fencing_numbers(files: Files, folder: Path, after_ms: int) -> FencingNumbers:
    """Numbers after ``after_ms`` and after all that a server on this folder has issued."""
    marks = Snapshots(files, folder / FOLDER)
    after_ms = max(after_ms, *marks.offsets(), 0)
    return FencingNumbers(after_ms, lambda until_ms: marks.save(until_ms, b""))
