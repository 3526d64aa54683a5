"""When to sync: group commit for ``file_sync``, a short window for ``file_async`` (SPEC E3).

The flusher knows what is dirty; this decides when it runs and where. Waiting callers of one
turn share one sync. While most syncs take well under a millisecond they run inline, because
a thread hop costs more; a slow disk moves them to a thread, where the next group gathers
meanwhile. Journals that stay quiet after a sync note durably how far they are synced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nexo.config import Settings
from nexo.errors import InvalidOption, NexoError, OutcomeUnknown, ReadOnly, Unavailable
from nexo.model import Persistence
from nexo.storage.disk.flusher import Flusher

if TYPE_CHECKING:
    from nexo.services.replicating import Callback, Replicating


def check_offered(given: Mapping[str, Any], settings: Settings) -> None:
    """Raise `InvalidOption` if options ask for a durability that this server does not offer."""
    if given.get("persistence") == Persistence.REPLICATED and not settings.replicate:
        raise InvalidOption(
            "persistence = replicated: this server does not replicate; start it with --replicate"
        )


INLINE_MS = 0.8
_MOST_MS = 2 * INLINE_MS
"""The longest duration that one sync counts as, so that a single slow one changes nothing."""
_WEIGHT = 0.2
QUIET_S = 0.25
"""How long a journal must be quiet before it notes that all of it is synced."""

log = logging.getLogger("nexo.durability")


def _unsure(error: NexoError) -> OutcomeUnknown:
    """What to tell a caller whose bytes were written, but not synced: a restart may find them."""
    return OutcomeUnknown(f"whether this is stored shows after a restart: {error.message}")


class Committer:
    """Runs one broker's flusher on its event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        flusher: Flusher,
        flush_ms: int,
        replicas: Replicating | None = None,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``soon`` calls back at the end of a turn, before its replies are sent."""
        self._loop = loop
        self._soon = soon or loop.call_soon
        self._flusher = flusher
        self._replicas = replicas
        self._flush_s = flush_ms / 1000
        self._usual_ms = 0.0
        self._waiting: list[Callback] = []
        self._watching: list[Callback] = []
        self._commit_due = False
        self._thread = ThreadPoolExecutor(1, "nexo-sync")
        self._in_thread: asyncio.Future[None] | None = None
        self._window: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None

    def committed(self, mode: Persistence, callback: Callback) -> None:
        if self._flusher.failed is not None:
            callback(_unsure(self._flusher.failed))
        elif mode is Persistence.FILE_ASYNC:
            self._open_window()
            callback(self._refusal())
        else:
            self._waiting.append(
                callback if mode is Persistence.FILE_SYNC else self._ship(callback)
            )
            self._schedule()

    def _refusal(self) -> NexoError | None:
        """What to tell a caller whose bytes are on this disk: another server may lead by now."""
        if self._replicas is None or (refusal := self._replicas.refusal()) is None:
            return None
        return OutcomeUnknown(f"it is stored here, but {refusal.message}")

    def _ship(self, callback: Callback) -> Callback:
        """A callback for the sync, which then waits for the object store."""

        def synced(error: NexoError | None) -> None:
            if error is not None:
                callback(error)
            elif self._replicas is None:
                callback(Unavailable("this server does not replicate: start it with --replicate"))
            else:
                self._replicas.when_shipped(callback)

        return synced

    def when_unique(self, callback: Callback) -> None:
        """Like `when_synced`; a server that replicates has shipped everything too."""
        self.when_synced(callback if self._replicas is None else self._ship(callback))

    def when_synced(self, callback: Callback) -> None:
        """Call back after the next sync, which the end of the window brings at the latest."""
        if self._flusher.failed is not None:
            callback(_unsure(self._flusher.failed))
            return
        self._watching.append(callback)
        self._open_window()

    def _open_window(self) -> None:
        if self._window is None:
            self._window = self._loop.call_later(self._flush_s, self._close_window)

    def opened(self) -> None:
        """After recovery: sync what an earlier process left, so that journals can note it."""
        if self._flusher.unsettled:
            self._open_window()

    def sync_soon(self) -> None:
        """Close the ``file_async`` window early: enough was written."""
        if self._window is not None:
            self._window.cancel()
            self._window = self._loop.call_later(0, self._close_window)

    def _schedule(self) -> None:
        if not self._commit_due and self._in_thread is None:
            self._commit_due = True
            self._soon(self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        if self._in_thread is not None:  # a window closed meanwhile; its end commits
            return
        waiting = self._take_waiting()
        if self._usual_ms < INLINE_MS:
            self._answer(waiting, self._sync())
        else:
            self._sync_in_thread(waiting)

    def _take_waiting(self) -> list[Callback]:
        taken = self._waiting + self._watching
        self._waiting, self._watching = [], []
        return taken

    def _sync(self) -> NexoError | None:
        times = self._flusher.times
        before = times.count
        try:
            self._flusher.sync()
        except NexoError as error:
            return _unsure(error)
        except OSError as error:
            return _unsure(ReadOnly(f"the disk refused a sync ({error.strerror}): restart"))
        if times.count > before:
            self._usual_ms += _WEIGHT * (min(times.last_ms, _MOST_MS) - self._usual_ms)
        return None

    def _sync_in_thread(self, waiting: list[Callback]) -> None:
        ended = self._in_thread = self._loop.create_future()

        def synced(error: NexoError | None) -> None:
            if not ended.done():  # a thread that came late finds it done
                ended.set_result(None)
                self._in_thread = None
                self._answer(waiting, error)
                if self._waiting:
                    self._schedule()

        def work() -> None:
            error = self._sync()
            with suppress(RuntimeError):  # the loop was closed: this process has given up
                self._loop.call_soon_threadsafe(synced, error)

        try:
            self._thread.submit(work)
        except RuntimeError:  # no thread can be started
            synced(self._sync())

    def _close_window(self) -> None:
        self._window = None
        if self._in_thread is not None:
            self._open_window()
            return
        watching, self._watching = self._watching, []
        if self._flusher.dirty:
            self._sync_in_thread(watching)
        else:  # a commit was quicker
            self._answer(watching, self._sync())

    def _answer(self, waiting: list[Callback], error: NexoError | None) -> None:
        if error is None and waiting:
            error = self._refusal()
        for callback in waiting:
            try:
                callback(error)
            except Exception:  # the others of the group are still answered
                log.exception("a reply failed after its commit")
        if self._quiet is None and self._flusher.unsettled:
            self._quiet = self._loop.call_later(QUIET_S, self._settle)

    def _settle(self) -> None:
        """Let quiet journals note what is synced; the notes are synced with the next window."""
        self._quiet = None
        if self._flusher.failed is not None:
            return
        pause_s = QUIET_S / 5 if self._flusher.settle() else QUIET_S
        if self._flusher.dirty:
            self._open_window()
        if self._flusher.unsettled:
            self._quiet = self._loop.call_later(pause_s, self._settle)

    async def close(self) -> None:
        """Sync what is left."""
        self._cancel_timers()
        await self._thread_ended()
        if self._flusher.dirty and self._flusher.failed is None:
            self._sync_in_thread(self._take_waiting())
            await self._thread_ended()
        self._answer(self._take_waiting(), self._sync())
        self._cancel_timers()
        self._thread.shutdown(wait=False)

    async def _thread_ended(self) -> None:
        while self._in_thread is not None:
            await self._in_thread

    def abandon(self) -> None:
        """Drop all waiting callbacks."""
        self._waiting.clear()
        self._watching.clear()
        self._cancel_timers()
        self._thread.shutdown(wait=False)

    def _cancel_timers(self) -> None:
        for timer in (self._window, self._quiet):
            if timer is not None:
                timer.cancel()
        self._window = self._quiet = None
