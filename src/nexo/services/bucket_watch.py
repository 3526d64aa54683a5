"""Looks now and then whether the store still has what a restore needs.

A bucket may be emptied, by hand or by a rule that expires objects. Puts into it go on to work, so
nothing else would notice, until a restore finds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from nexo import limits
from nexo.errors import Corrupt
from nexo.replication import bases
from nexo.replication.log_objects import Mark
from nexo.replication.objects import BASE, ObjectStore, StoreFailed, log_key
from nexo.replication.shipping import Shipper

log = logging.getLogger("nexo.replica")

_CONTENTS_EVERY = 10
"""Looks between two that list the contents of files."""


class Threads(Protocol):
    """Runs what may wait for the store."""

    def in_thread(self, work: Callable[[], str]) -> asyncio.Future[str]: ...


class BucketWatch:
    """One log's objects. ``note`` remembers durably how far the log was."""

    def __init__(
        self, threads: Threads, store: ObjectStore, shipper: Shipper, lost: Callable[[str], None]
    ) -> None:
        """``lost`` is called with what is missing, once."""
        self._threads = threads
        self._store = store
        self._shipper = shipper
        self._lost = lost
        self._looks = 0
        self._task: asyncio.Task[None] | None = None
        self.note: Callable[[Mark], None] = lambda mark: None

    def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(limits.BUCKET_LOOK_S)
            try:
                missing = await self._threads.in_thread(self.look)
            except (StoreFailed, Corrupt, OSError) as error:
                log.warning("the bucket could not be looked at: %s", error)
                continue
            if missing:
                self._lost(missing)
                return

    def look(self) -> str:
        """What is missing; empty if nothing is."""
        self._looks += 1
        shipper = self._shipper
        if not shipper.number:
            return ""
        self.note(Mark(shipper.number, shipper.epoch, shipper.writer))
        if self._lacks_last() and self._lacks_last():  # not one that a base has just replaced
            return f"{log_key(shipper.number - 1)}, which was put, is gone"
        if not self._store.list(BASE) and not bases.begins(self._store):
            return "there is neither a base nor the log's beginning"
        if self._looks % _CONTENTS_EVERY == 1:
            return self._missing_content()
        return ""

    def _lacks_last(self) -> bool:
        number = self._shipper.number
        return number > 0 and self._store.get(log_key(number - 1)) is None

    def _missing_content(self) -> str:
        manifest = bases.newest(self._store)
        if manifest is None or bases.is_whole(self._store, manifest):
            return ""
        return f"files of the base at {manifest.number} are gone"
