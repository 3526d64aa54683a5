"""Runs a handler over a shared group: acks when it returns, nacks when it raises (F5).

The broker learns which records a handler has begun, so that only those count as delivered
(F3), without extra requests: a fetch says that its first record is begun, an ack which one
is next. A second task renews the leases of held records while handlers run, and releases
those that no handler reached, so that other consumers get them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nexo.client._async import runtime
from nexo.client._async.handling import RENEWALS_PER_LEASE, HandlerLoop
from nexo.client._async.stream.consumer import AHEAD_S, StreamConsumer
from nexo.client._async.stream.records import Records, StreamRecord, ranges_of
from nexo.client.checks import failure_text, seconds
from nexo.errors import NexoError
from nexo.model.stream import Range, SettleRecords, Verb
from nexo.options.units import Duration

log = logging.getLogger("nexo.client")

T = TypeVar("T")

_FLUSH_S = 0.05
"""Acks wait at most this long while the handler runs."""


class StreamSubscription(HandlerLoop, Generic[T]):
    """A handler that is called with the records of a group until `close`.

    ``async with`` closes it at the end.
    """

    def __init__(
        self,
        consumer: StreamConsumer[T],
        handler: Callable[[StreamRecord[T]], Any],
        concurrency: int,
        time_limit: Duration | None = None,
    ) -> None:
        super().__init__(handler, concurrency, time_limit)
        self.handled = 0
        """Records the handler returned from."""
        self._consumer = consumer
        self._workers = runtime.Workers(concurrency) if concurrency > 1 else None
        self._waiting: deque[StreamRecord[T]] = deque()
        """Fetched and not begun."""
        self._given_back = 0
        """The number of the last records that were released because no handler reached them."""
        self._running: set[StreamRecord[T]] = set()
        self._careful = False
        """A fetched record may have crashed another consumer: report and ack each by itself."""
        self._begun: deque[StreamRecord[T]] = deque()
        """Begun, and not yet reported to the broker."""
        self._done: deque[StreamRecord[T]] = deque()
        """Handled and not yet acked."""
        self._flushed_s = runtime.now_s()
        self._reported = False
        """Whether the first record of the batch is reported as begun."""
        self._keeper: runtime.Task | None = None
        self._wake = runtime.Event()
        self._ended = False

    def __repr__(self) -> str:
        state = "running" if self.running else "ended"
        stream, group = self._consumer.stream, self._consumer.group
        return f"<Subscription of group {group!r}, stream {stream!r}, {state}>"

    # -- its life

    async def start(self) -> None:
        """Join the group, so that a bad name or option is raised here, and start.

        A stream that does not exist yet is waited for.
        """
        await self._consumer.join_or_wait()
        self._forget_hook = self._consumer.on_close(self._client_closes)
        name = f"nexo-{self._consumer.group}"
        self._keeper = runtime.spawn(self._keep, name=f"{name}-leases")
        self._task = runtime.spawn(self._run, name=name)

    async def close(self, timeout: Duration | None = None) -> None:
        """End it: waits for the records being handled, and releases the others.

        Handlers that run longer than ``timeout`` are no longer waited for. What ended the
        subscription before is not raised here: see `failure`.
        """
        self._forget_hook()
        self._stopping.set()
        self._consumer.interrupt()
        await self._give_back()
        if self._task is not None and not self._is_handler():
            await self._task.join(seconds(timeout))

    def _is_handler(self) -> bool:
        """Whether a handler is calling, which cannot wait for its own end."""
        if self._workers is not None and self._workers.is_current():
            return True
        return self._task is not None and self._task.is_current()

    async def _run(self) -> None:
        try:
            async for records in self._consumer.batches(self._along):
                await self._handle_all(list(records))
                if self._stopping.is_set():
                    break
        except Exception as error:
            if not self._stopping.is_set():
                self._ends(f"group {self._consumer.group} of {self._consumer.stream}", error)
        if self._workers is not None:
            await self._workers.drain()
        self._ended = True
        self._wake.set()
        if self._keeper is not None:
            await self._keeper.join()
        await self._flush()
        await self._consumer.close(self._waiting)

    # -- handling

    async def _handle_all(self, records: list[StreamRecord[T]]) -> None:
        began_s = runtime.now_s()
        self._careful = any(record.attempt > 1 for record in records)
        self._given_back = 0
        self._waiting.extend(records)
        if self._consumer.came_ahead and not self._reported and self._workers is None:
            await self._report(records[0])
        self._reported = False
        while self._waiting and not self._stopping.is_set():
            if self._workers is not None:
                await self._workers.start_next(self._next, self._handle_beside)
            else:
                await self._handle_next()
        begun = len(records) - len(self._waiting) - self._given_back
        self._consumer.paced(begun, runtime.now_s() - began_s, least=self.concurrency)
        if self._workers is None:
            await self._flush_or_wait()

    async def _flush_or_wait(self) -> None:
        """Ack, unless the next batch is on its way: then its arrival takes the acks along."""
        if self._consumer.asks_ahead:
            self._wake.set()  # the keeper sends them if it does not come soon
        else:
            await self._flush()

    def _along(self, records: Records[T]) -> SettleRecords | None:
        """The acks of the batch before, to leave with the question for the one after this."""
        if self._workers is not None:
            return None
        done, first = _emptied(self._done), records[0]
        acked = ranges_of(done)
        if acked.keys() - {first.generation}:
            self._done.extend(done)  # from before a seek
            return None
        self._flushed_s, self._reported = runtime.now_s(), True
        return SettleRecords(
            self._consumer.stream, self._consumer.group, self._consumer.name, first.generation,
            "ack" if acked else "start", acked.get(first.generation, []), begins=[first.range],
        )  # fmt: skip

    async def _report(self, first: StreamRecord[T]) -> None:
        """Ack the batch before, and say that a handler begins with the first record of this one."""
        acks = any(record.generation == first.generation for record in list(self._done))
        await self._flush()
        if not acks:
            await self._settle("start", first.generation, [first.range])

    async def _handle_next(self) -> None:
        """Handle one record, in order; the last ack reported it as begun."""
        record = self._next()
        if record is None:
            return
        if await self._call(record):
            self._done.append(record)
        if self._careful or runtime.now_s() - self._flushed_s >= _FLUSH_S:
            await self._flush()

    async def _handle_beside(self, record: StreamRecord[T]) -> None:
        """Handle one record beside others; the keeper reports them together."""
        if self._careful:
            await self._settle("start", record.generation, [record.range])
        else:
            self._begun.append(record)
            self._wake.set()
        if await self._call(record):
            self._done.append(record)
            self._wake.set()

    def _next(self) -> StreamRecord[T] | None:
        """The next record; None if the rest was released meanwhile."""
        try:
            record = self._waiting.popleft()
        except IndexError:
            return None
        self._running.add(record)
        return record

    async def _call(self, record: StreamRecord[T]) -> bool:
        """Whether the handler returned; otherwise the record is nacked.

        A cancelled task of the handler's own, or `SystemExit`, counts as its failure.
        """
        failure = None
        try:
            await runtime.invoke_within(self._limit_s, self._handler, record)
        except BaseException as error:
            if not runtime.is_failure(error):
                raise
            log.exception("the handler of group %r failed on %r", self._consumer.group, record)
            failure = failure_text(error)
        self._running.discard(record)
        if failure is None:
            self.handled += 1
            return True
        await self._settle("nack", record.generation, [record.range], failure)
        return False

    # -- reporting to the broker

    async def _flush(self) -> None:
        """Ack what was handled since the last flush, in one request, and report what is next."""
        self._flushed_s = runtime.now_s()
        for generation, ranges in ranges_of(_emptied(self._done)).items():
            await self._settle("ack", generation, ranges)

    async def _settle(
        self, verb: Verb, generation: int, ranges: list[Range], reason: str = ""
    ) -> None:
        """Settle; a rejection is not an error here: after a seek or
        a lost connection the record is redelivered.
        """
        try:
            begins = self._begins(generation)
            await self._consumer.send(verb, generation, ranges, 0, reason, begins)
        except NexoError as error:
            log.info("group %r: %s", self._consumer.group, error)

    def _begins(self, generation: int) -> list[Range]:
        """The records that a handler works on or starts next, unless they were reported before."""
        if self._workers is not None:
            records = _emptied(self._begun)
        else:
            records = list(self._running)
            with contextlib.suppress(IndexError):
                records = records or [self._waiting[0]]
        return ranges_of(records).get(generation, [])

    # -- leases

    async def _keep(self) -> None:
        """Report what was begun and done; renew leases in time."""
        due_s = runtime.now_s()
        while not self._ended:
            pause_s = min(AHEAD_S, self._consumer.ack_wait_s / RENEWALS_PER_LEASE)
            await self._wake.wait(max(0.0, due_s - runtime.now_s()))
            self._wake.clear()
            if self._workers is None:
                await self._stopping.wait(max(0.0, self._flushed_s + _FLUSH_S - runtime.now_s()))
            await self._flush()
            for generation, ranges in ranges_of(_emptied(self._begun)).items():
                await self._settle("start", generation, ranges)
            if runtime.now_s() >= due_s:
                due_s = runtime.now_s() + pause_s
                await self._keep_leases(runtime.now_s() - pause_s)

    async def _keep_leases(self, before_s: float) -> None:
        """Release what has waited since ``before_s``; renew the rest."""
        running = next(iter(list(self._running)), None)
        if running is None:
            return
        waits = self._waiting and self._consumer.fetched_s <= before_s
        if waits or self._consumer.has_next(before_s):
            await self._give_back()
        await self._settle("extend", running.generation, [])

    async def _give_back(self) -> None:
        """Release what was not begun, the last first; nothing is counted."""
        await self._consumer.drop_ahead()
        records = _emptied(self._waiting)
        self._given_back += len(records)
        for generation, ranges in ranges_of(records).items():
            await self._settle("release", generation, ranges)


def _emptied(records: deque[StreamRecord[T]]) -> list[StreamRecord[T]]:
    """Everything out of the queue, in order, though other threads take and add."""
    taken: list[StreamRecord[T]] = []
    while True:
        try:
            taken.append(records.pop())
        except IndexError:
            return taken[::-1]
