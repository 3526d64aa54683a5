"""Makes a base of a broker's files from time to time, so that the log in the store stays bounded.

Hard links keep the names of one moment while their files are uploaded; the log continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from nexo import limits
from nexo.errors import NexoError
from nexo.model import Clock
from nexo.replication import bases
from nexo.replication.bases import Manifest
from nexo.replication.objects import ObjectStore, StoreFailed
from nexo.replication.shipping import Shipper
from nexo.storage.disk.recording import RecordingFiles
from nexo.storage.ports import Files, Frozen

T = TypeVar("T")

log = logging.getLogger("nexo.replica")


class LogShipping(Protocol):
    """What ships the log, as the maker of bases sees it."""

    def gather(self) -> int:
        """Take what is recorded; the ticket of everything so far."""

    def cut(self) -> int:
        """Like `gather`; what is recorded later begins another log object."""

    async def all_shipped(self, ticket: int) -> int:
        """Wait until the store has everything up to a ticket; returns the number after it."""

    def in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run what may wait for the store or the disk."""


class BaseMaker:
    """Counts what the log has after the newest base, and makes the next one."""

    def __init__(
        self,
        shipping: LogShipping,
        files: RecordingFiles,
        root: Path,
        shipper: Shipper,
        store: ObjectStore,
        keep_ms: int,
        clock: Clock,
        make_files: Callable[[], Files],
    ) -> None:
        """``keep_ms``: how far back a restore may go. ``make_files`` is for other threads."""
        self._shipping = shipping
        self._files = files
        self._root = root
        self._shipper = shipper
        self._store = store
        self._keep_ms = keep_ms
        self._clock = clock
        self._make_files = make_files
        self.newest: Manifest | None = None
        """The newest base, if the files that changed since then are known."""
        self.log_bytes = self.log_objects = 0
        """What the log has after the newest base."""
        self._making: asyncio.Task[None] | None = None
        self._frozen: Frozen | None = None

    def shipped(self, size_bytes: int) -> None:
        """The log has one more object: make a base if it is due."""
        self.log_bytes += size_bytes
        self.log_objects += 1
        if self._making is None and self.is_due():
            self._making = asyncio.get_running_loop().create_task(self._make())

    def is_due(self) -> bool:
        return (
            self.log_bytes >= limits.LOG_BYTES_PER_BASE
            or self.log_objects >= limits.LOG_OBJECTS_PER_BASE
        )

    def close(self) -> None:
        """Give up a base that is being made."""
        if self._making is not None:
            self._making.cancel()
        if (frozen := self._take_frozen()) is not None:
            frozen.close()

    def _take_frozen(self) -> Frozen | None:
        frozen, self._frozen = self._frozen, None
        return frozen

    async def _make(self) -> None:
        self.log_bytes = self.log_objects = 0
        in_thread = self._shipping.in_thread
        try:
            number, frozen, changed = await self._freeze()
            stored, folders = await in_thread(
                lambda: bases.upload(
                    self._store,
                    self._make_files(),
                    frozen.walk(),
                    self._maker(),
                    self.newest,
                    changed,
                )
            )
            await self._shipping.all_shipped(self._shipping.gather())
            now_ms = self._clock.now_ms()
            manifest = Manifest(number, self._shipper.epoch, stored, folders, now_ms)
            await in_thread(lambda: bases.publish(self._store, manifest))
            self.newest = manifest
            await in_thread(lambda: bases.collect(self._store, now_ms - self._keep_ms))
        except (StoreFailed, NexoError, OSError) as error:
            self.newest = None  # the files that changed are no longer known
            log.warning("no base was made, the next try is later: %s", error)
        finally:
            if (kept := self._take_frozen()) is not None:
                await in_thread(kept.close)
            self._making = None

    def _maker(self) -> str:
        return f"{self._shipper.writer}-{self._shipper.number}".replace("/", "-")

    async def _freeze(self) -> tuple[int, Frozen, set[str] | None]:
        """Files of this moment, number of the first log object after it, and what changed."""
        ticket = self._shipping.cut()
        known, changed = self.newest is not None, self._files.changed
        self._files.changed = set()
        frozen = self._frozen = self._files.freeze(self._root)
        number = await self._shipping.all_shipped(ticket)
        return number, frozen, changed if known else None
