"""The interface of a host to one service: time, files, wake-ups and durability."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexo.config import Settings
from nexo.errors import DiskFull
from nexo.model import Broker, Clock, Persistence
from nexo.server.loop import LoopTurn
from nexo.services.durability import Committer
from nexo.services.service import Service
from nexo.storage.disk.flusher import DiskGuard, Flusher
from nexo.storage.disk.freezing import remove_leftovers
from nexo.storage.disk.steady import SteadyFiles
from nexo.storage.ports import Files

if TYPE_CHECKING:
    from nexo.services.replicating import Replicating

log = logging.getLogger("nexo.runtime")


class HostRuntime:
    """Implements `nexo.services.service.Runtime` for one service of a host."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        clock: Clock,
        files: Files,
        broker: Broker,
        turn: LoopTurn,
        replicating: Replicating | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.files: Files = SteadyFiles(files)
        self.folder: Path = settings.folder(broker)
        self.files.make_folder(self.folder)
        self.flusher = Flusher(self.files, self.folder)
        self._loop = loop
        self._turn = turn
        self.soon = turn.soon
        self.progress: Callable[[], None] = lambda: None
        self._committer = Committer(loop, self.flusher, settings.flush_ms, replicating, turn.sync)
        self.committed = self._committer.committed
        self.when_synced = self._committer.when_synced
        self.when_unique = self._committer.when_unique
        self.sync_soon = self._committer.sync_soon
        self._replicating = replicating
        self.unique = Persistence.FILE_SYNC if replicating is None else Persistence.REPLICATED
        self.epoch = 0 if replicating is None else replicating.epoch
        self.numbers_after_ms = 0 if replicating is None else replicating.numbers_after_ms
        self._guard = DiskGuard(self.files, self.folder, settings.disk_reserve_bytes)
        self._due_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.service = service_class(broker)(self)

    def open(self) -> None:
        remove_leftovers(self.folder)
        self.service.open()
        self._committer.opened()
        if self._replicating is not None:
            self._replicating.open()

    # -- turns and time -------------------------------------------------------------

    def wake_at(self, due_ms: int) -> None:
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

    def check_writable(self) -> None:
        self.flusher.check()
        self.check_leads()
        was_full = self._guard.full
        try:
            self._guard.check(self.clock.now_ms())
        except DiskFull as error:
            if not was_full:
                log.warning("%s: refusing writes: %s", self.folder, error)
            raise
        if was_full:
            log.warning("%s: there is space again, writes are accepted", self.folder)

    def check_leads(self) -> None:
        if self._replicating is not None and (error := self._replicating.refusal()) is not None:
            raise error

    def disk_status(self) -> dict[str, Any]:
        times, failed = self.flusher.times, self.flusher.failed
        return {
            "syncs": times.count,
            "sync_ms": round(times.ewma_ms, 3),
            "sync_max_ms": round(times.max_ms, 3),
            "sync_times": times.histogram.status(),
            "free_bytes": self.files.free_bytes(self.folder),
            "full": self._guard.full,
            "failed": failed.message if failed else None,
        }

    # -- stopping -----------------------------------------------------------------------

    async def drain(self) -> None:
        """Let the current turn's work reach the disk."""
        await asyncio.sleep(0)
        await self._committer.close()
        if self._replicating is not None:
            await self._replicating.drain()

    async def close(self) -> None:
        """Stop waking the service and sync what it wrote last."""
        if self._timer is not None:
            self._timer.cancel()
        self._turn.end_services()
        await self._committer.close()
        if self._replicating is not None:
            await self._replicating.close()

    def abandon(self) -> None:
        """Stop without syncing anything."""
        if self._timer is not None:
            self._timer.cancel()
        self._turn.abandon()
        self._committer.abandon()


def service_class(broker: Broker) -> Callable[[HostRuntime], Service]:
    # ruff: noqa: PLC0415 - a broker's process imports only its own broker
    match broker:
        case Broker.STORE:
            from nexo.services.store.service import StoreService

            return StoreService
        case Broker.PUBSUB:
            from nexo.services.pubsub.service import PubSubService

            return PubSubService
        case Broker.QUEUE:
            from nexo.services.queue.service import QueueService

            return QueueService
        case Broker.STREAM:
            from nexo.services.stream.service import StreamService

            return StreamService
