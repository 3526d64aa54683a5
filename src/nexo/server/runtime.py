"""What a host gives to one service: time, files, wake-ups and durability."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexo.config import Settings
from nexo.errors import NexoError
from nexo.model import Clock, Persistence
from nexo.server.durability import Committer
from nexo.server.service import Service
from nexo.storage.flusher import DiskGuard, Flusher
from nexo.storage.ports import Files

if TYPE_CHECKING:
    from nexo.server.host import Host

log = logging.getLogger("nexo.runtime")


class HostRuntime:
    """Implements `nexo.server.service.Runtime` for one service of a host."""

    service: Service

    def __init__(self, host: Host) -> None:
        self.settings: Settings = host.settings
        self.clock: Clock = host.clock
        self.files: Files = host.files
        self.flusher = Flusher(host.files)
        self._loop = host.loop
        self._committer = Committer(host.loop, self.flusher, host.settings.flush_ms)
        self._guard: DiskGuard | None = None
        self._due_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._soon: list[Callable[[], None]] = []

    @property
    def folder(self) -> Path:
        """Where the service keeps its data."""
        return self.settings.folder(self.service.broker)

    # -- turns and time -------------------------------------------------------------

    def soon(self, callback: Callable[[], None]) -> None:
        """See `Runtime.soon`."""
        if not self._soon:
            self._loop.call_soon(self._run_soon)
        self._soon.append(callback)

    def _run_soon(self) -> None:
        callbacks, self._soon = self._soon, []
        for callback in callbacks:
            callback()

    def wake_at(self, due_ms: int) -> None:
        """See `Runtime.wake_at`."""
        if self._due_ms is not None and self._due_ms <= due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        delay_s = max(0.0, (due_ms - self.clock.now_ms()) / 1000)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._due_ms = self._timer = None
        try:
            self.service.tick(self.clock.now_ms())
        except Exception:
            log.exception("tick of the %s broker failed", self.service.broker.label)
            self.wake_at(self.clock.now_ms() + 1_000)

    # -- durability -------------------------------------------------------------------

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        """See `Runtime.committed`."""
        self._committer.committed(mode, callback)

    def sync_soon(self) -> None:
        """See `Runtime.sync_soon`."""
        self._committer.sync_soon()

    def check_writable(self) -> None:
        """See `Runtime.check_writable`."""
        if self.flusher.failed is not None:
            raise self.flusher.failed
        if self._guard is None:
            self._guard = DiskGuard(self.files, self.folder, self.settings.disk_reserve_bytes)
        self._guard.check(self.clock.now_ms())

    def disk_status(self) -> dict[str, Any]:
        """Sync times and state, for the service's status."""
        flusher = self.flusher
        return {
            "syncs": flusher.count,
            "sync_ms": round(flusher.ewma_ms, 3),
            "sync_max_ms": round(flusher.max_ms, 3),
            "failed": flusher.failed.message if flusher.failed else None,
        }

    # -- stopping -----------------------------------------------------------------------

    async def drain(self) -> None:
        """Let the current turn's work reach the disk."""
        await asyncio.sleep(0)
        await self._committer.close()

    async def close(self) -> None:
        """Stop waking the service and sync what it wrote last."""
        if self._timer is not None:
            self._timer.cancel()
        self._run_soon()
        await self._committer.close()

    def abandon(self) -> None:
        """Stop without syncing anything."""
        if self._timer is not None:
            self._timer.cancel()
        self._soon.clear()
        self._committer.abandon()
