"""Ships what a broker writes to the object store, on its event loop; puts run in a thread.

What ``replicated`` writers wait for leaves at once, or with the next put while one is under way.
Everything else leaves early enough to be in the store ``replicate_ms`` after it was written. A
store that does not answer is asked again until it does; meanwhile waiting operations are kept up to
a bound, then dropped, and the broker starts again from its files once the store is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from nexo import limits
from nexo.config import Settings
from nexo.errors import NexoError, Unavailable
from nexo.model import Clock
from nexo.replication.bases import Manifest
from nexo.replication.log_objects import Mark
from nexo.replication.objects import AlreadyThere, ObjectStore, StoreFailed, log_key
from nexo.replication.shipping import LeadLost, Put, Shipper
from nexo.replication.state import Cells, now_s
from nexo.services.base_making import BaseMaker
from nexo.services.bucket_watch import BucketWatch
from nexo.storage.disk.recording import RecordingFiles
from nexo.storage.ports import Files

Callback: TypeAlias = Callable[[NexoError | None], None]
T = TypeVar("T")

log = logging.getLogger("nexo.replica")

_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses before an unclear put is tried again; the last one from then on."""
_IN_TIME = 0.9
"""Share of ``replicate_ms`` that a write may take to the store; the rest is for a busy loop."""
_TICK_S = 0.25
"""How often memory and overdue writers are checked."""


class _WaitingShipment(NamedTuple):
    ticket: int
    due_ms: int
    callback: Callback


class Replicating:
    """The leader's side of one broker. ``on_end`` is called when the process must end."""

    def __init__(
        self,
        files: RecordingFiles,
        root: Path,
        shipper: Shipper,
        store: ObjectStore,
        settings: Settings,
        clock: Clock,
        lease: Cells,
        shown: Cells,
        make_files: Callable[[], Files],
        base: Manifest | None = None,
        log_objects: int = 0,
    ) -> None:
        """``log_objects``: how many the log has after its newest base.

        ``make_files`` makes what other threads use.
        """
        self.on_end: Callable[[bool], None] = lambda lost: None
        """Called once with True if the lead is lost, with False if the process must restart."""
        self.restart_wanted = False
        self.epoch = shipper.epoch
        self.numbers_after_ms = 0
        """See `nexo.services.service.Runtime`."""
        self._closed_at: Mark | None = None
        self.files = self._files = files
        self._loop = asyncio.get_running_loop()
        self._shipper = shipper
        self._store = store
        self._every_ms, self._wait_ms = settings.replicate_ms, settings.replicate_wait_ms
        self._clock = clock
        self._lease = lease
        self._proofs = lease.get()[1]
        """The supervisor's proofs of the lead that this log has confirmed."""
        self._confirming: asyncio.Task[None] | None = None
        self._shown = shown
        keep_ms = settings.replicate_keep_ms
        self._bases = BaseMaker(self, files, root, shipper, store, keep_ms, clock, make_files)
        self._bases.newest, self._bases.log_objects = base, log_objects
        self.bucket = BucketWatch(self, store, shipper, self._bucket_lost)
        self.uploaded_again = False
        """Whether the store had lost what it had, so that this process uploaded all files."""
        self._executor: Executor = ThreadPoolExecutor(2, "replica")
        self._ticket = shipper.shipped
        self._waiting: deque[_WaitingShipment] = deque()
        self._putting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._departure: asyncio.TimerHandle | None = None
        """Ships what nobody waits for."""
        self._refused: Unavailable | None = None
        self._overflowed = False
        self._puts = self._failures = 0
        self._put_ms = 0.0
        self._last_put_ms = clock.now_ms()
        self._recorded_ms: int | None = None
        """When the first operation was recorded that is not gathered yet."""
        self._unshipped: deque[tuple[int, int]] = deque()
        """Tickets that are not shipped yet, each with when its first operation was recorded."""
        self._window_ms = 0

    def open(self) -> None:
        self._files.on_first = self._recorded
        if self._files.recorded:
            self._recorded()
        self.bucket.open()
        self._tick()

    # -- for the brokers -----------------------------------------------------

    def refusal(self) -> NexoError | None:
        """Why nothing may be acknowledged now; None if it may."""
        until_s, proofs = self._lease.get()
        if self._refused is not None or (proofs == self._proofs and now_s() <= until_s):
            return self._refused
        if proofs != self._proofs and self._confirming is None:
            self._confirming = self._loop.create_task(self._confirm(proofs))
        return Unavailable(
            "this server could not renew its lease in time, so another may lead: try again"
        )

    async def _confirm(self, proofs: float) -> None:
        """After a lapse of the lease, see that nobody has claimed the log meanwhile."""
        number = self._shipper.number
        try:
            found = await self.in_thread(lambda: self._store.get(log_key(number)))
            if self._shipper.is_free(number, found):
                self._proofs = proofs
        except StoreFailed as error:
            log.warning("the log cannot be looked at: %s", error)
            await asyncio.sleep(_RETRY_S[1])
        except (LeadLost, NexoError) as error:
            self._lose(str(error))
        finally:
            self._confirming = None

    def when_shipped(self, callback: Callback) -> None:
        """Call back once everything recorded so far is in the store."""
        if self._refused is not None or self._overflowed:
            callback(self._refused or self._late())
            return
        ticket = self.gather()
        if self._shipper.shipped >= ticket:
            callback(self.refusal())
            return
        due_ms = self._clock.now_ms() + self._wait_ms

        def shipped(error: NexoError | None) -> None:
            callback(error or self.refusal())

        self._waiting.append(_WaitingShipment(ticket, due_ms, shipped))
        self._pump()

    def _late(self) -> Unavailable:
        return Unavailable(
            "the object store does not answer: the write is on this disk, and whether it will be "
            "replicated is not known yet; try again"
        )

    # -- shipping -----------------------------------------------------------------

    def _recorded(self) -> None:
        """Something was written after all else was gathered: ship it in time."""
        self._recorded_ms = self._clock.now_ms()
        if self._departure is None:
            self._departure = self._loop.call_later(self._stay_ms() / 1000, self._depart)

    def _stay_ms(self) -> float:
        """How long a write may stay here, so that it is in the store in time: one put may be
        under way by then. At least half of that time, which bounds the puts per second.
        """
        return max(self._every_ms / 2, _IN_TIME * self._every_ms - 2 * self._put_ms)

    def _depart(self) -> None:
        self._departure = None
        if self._refused is None and not self._overflowed:
            self.gather()
            self._pump()

    def _tick(self) -> None:
        now_ms = self._clock.now_ms()
        self.refusal()  # after a lapse this begins to confirm the lead
        if self._refused is None and not self._overflowed:
            self._bound_memory()
        while self._waiting and self._waiting[0].due_ms <= now_ms:
            self._waiting.popleft().callback(self._late())
        self._show(now_ms)
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _take(self) -> None:
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None
        self._ticket = self._shipper.gather(self._files.take())
        self._unshipped.append((self._ticket, self._recorded_ms or self._clock.now_ms()))
        self._recorded_ms = None

    def _pump(self) -> None:
        if self._putting is not None:
            return
        put = self._shipper.next_put(self._clock.now_ms())
        if put is not None:
            self._putting = self._loop.create_task(self._put(put))

    async def _put(self, put: Put) -> None:
        try:
            began_s = now_s()
            await self._create(put)
            self._put_ms += 0.2 * ((now_s() - began_s) * 1000 - self._put_ms)
            self._shipped(len(put.data))
        except (LeadLost, NexoError) as error:
            self._lose(str(error))
        finally:
            self._putting = None
        if self._refused is None:
            self._pump()

    async def _create(self, put: Put) -> None:
        """Put until the outcome is known; raises `LeadLost`."""
        tries = 0
        while True:
            try:
                await self.in_thread(lambda: self._store.create(put.key, put.data))
                self._shipper.created()
                return
            except AlreadyThere:
                if (found := await self._get(put.key)) is not None:
                    self._shipper.refused(found)
                    return
            except StoreFailed as error:
                self._failures += 1
                if tries == 0:
                    log.warning("a put failed and is tried again: %s", error)
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1

    async def _get(self, key: str) -> bytes | None:
        try:
            return await self.in_thread(lambda: self._store.get(key))
        except StoreFailed:
            return None

    def _shipped(self, size_bytes: int) -> None:
        now_ms = self._clock.now_ms()
        self._puts += 1
        self._last_put_ms = now_ms
        shipped = self._shipper.shipped
        while self._unshipped and self._unshipped[0][0] <= shipped:
            self._window_ms = max(self._window_ms, now_ms - self._unshipped.popleft()[1])
        while self._waiting and self._waiting[0].ticket <= shipped:
            self._waiting.popleft().callback(None)
        if self._overflowed:
            log.warning("the object store is back: starting again from the files on disk")
            self._end(lost=False)
        self._show(now_ms)
        self._bases.shipped(size_bytes)

    def _bound_memory(self) -> None:
        kept = self._kept_bytes()
        if kept <= limits.UNSHIPPED_BYTES:
            return
        log.error("%d bytes wait for the object store: dropping them; the disk has all", kept)
        self._drop()

    def _drop(self) -> None:
        """Ship nothing more: what waits is on the disk."""
        self._overflowed = True
        self._files.pause()
        self._shipper.discard()
        while self._waiting:
            self._waiting.popleft().callback(self._late())

    def _lose(self, reason: str) -> None:
        log.error("the lead is lost: %s", reason)
        self._refused = Unavailable("this server does not lead any more: connect to the leader")
        self._end(lost=True)
        while self._waiting:
            self._waiting.popleft().callback(self._refused)

    def _bucket_lost(self, missing: str) -> None:
        """Start again from the files, which uploads them; until then nothing is replicated."""
        log.error("the bucket has lost objects: %s; uploading all files again", missing)
        self._drop()
        self._end(lost=False)

    def _end(self, *, lost: bool) -> None:
        self.restart_wanted = not lost
        on_end, self.on_end = self.on_end, lambda lost: None
        on_end(lost)

    # -- for the maker of bases ------------------------------------------------------

    def gather(self) -> int:
        if self._files.recorded:
            self._take()
        return self._ticket

    def cut(self) -> int:
        self._take()
        self._shipper.cut(self._ticket)
        return self._ticket

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._executor, work)

    async def all_shipped(self, ticket: int) -> int:
        if self._shipper.shipped >= ticket:
            return self._shipper.number
        done: asyncio.Future[int] = self._loop.create_future()

        def shipped(error: NexoError | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(self._shipper.number)

        due_ms = self._clock.now_ms() + self._wait_ms
        self._waiting.append(_WaitingShipment(ticket, due_ms, shipped))
        self._pump()
        return await done

    # -- status and the end ---------------------------------------------------------

    def lag_ms(self, now_ms: int) -> int:
        """How long the oldest unshipped write has waited."""
        since_ms = self._unshipped[0][1] if self._unshipped else self._recorded_ms
        return 0 if since_ms is None else max(0, now_ms - since_ms)

    def _show(self, now_ms: int) -> None:
        self._shown.set(self._shipper.number, self.lag_ms(now_ms))

    def _kept_bytes(self) -> int:
        return self._shipper.waiting_bytes + self._files.recorded_bytes

    def status(self) -> dict[str, Any]:
        return {
            "number": self._shipper.number,
            "epoch": self._shipper.epoch,
            "lag_ms": self.lag_ms(self._clock.now_ms()),
            "lag_bytes": self._kept_bytes(),
            "window_ms": self._window_ms,
            "last_put_ms": self._last_put_ms,
            "puts": self._puts,
            "put_failures": self._failures,
            "put_ms": round(self._put_ms, 3),
            "waiting": len(self._waiting),
            "overflowed": self._overflowed,
            "uploaded_again": self.uploaded_again,
        }

    async def began(self) -> None:
        """Wait until the store has what recovery wrote, such as the offsets that it skips.

        Another leader that begins with the same files would otherwise give out the same numbers.
        """
        while self._refused is None and not self._overflowed:
            with suppress(NexoError):  # no answer yet
                await self.all_shipped(self.gather())
                return

    @property
    def mark(self) -> Mark | None:
        """After `close`: where in the log the files are, if the store has all of them.

        What was written while the last put was under way may be gathered, and not be there.
        """
        has_all = self._shipper.shipped >= self._ticket and not self._files.recorded
        return self._closed_at if has_all else None

    async def drain(self) -> bool:
        """Ship what is recorded; False if the store does not take it in time."""
        if self._refused is not None or self._overflowed:
            return False
        try:
            async with asyncio.timeout(min(self._wait_ms, limits.LAST_PUTS_MS) / 1000):
                await self.all_shipped(self.gather())
        except (TimeoutError, NexoError):
            log.error("the object store does not have the last writes; the disk has them")
            return False
        return True

    async def close(self) -> None:
        """Ship what is left; ``mark`` is set if the store has everything."""
        shipped = await self.drain()
        if shipped:
            self._closed_at = Mark(self._shipper.number, self._shipper.epoch, self._shipper.writer)
        self._bases.close()
        self.bucket.close()
        if self._confirming is not None:
            self._confirming.cancel()
        if self._putting is not None:
            self._putting.cancel()
        self._files.on_first = lambda: None
        for timer in (self._timer, self._departure):
            if timer is not None:
                timer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
