"""Consumers of shared groups: records by iterating, or in batches (SPEC F)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from nexo.client._async import runtime
from nexo.client._async.handling import AskedAhead, AsyncClosing
from nexo.client._async.link.link import Link
from nexo.client._async.requests import request
from nexo.client._async.stream.records import Records, StreamRecord, add_range, ranges_of
from nexo.client.checks import reason_text, whole
from nexo.client.connecting import LATE_S, QUICK_S
from nexo.client.forks import on_fork
from nexo.client.replies import Reply
from nexo.errors import (
    ConnectionLost,
    Corrupt,
    NexoError,
    NotFound,
    NotMember,
    Unavailable,
    from_wire,
)
from nexo.model.stream import Range, SettleRecords, Verb
from nexo.options.units import Duration, millis
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

log = logging.getLogger("nexo.client")

T = TypeVar("T")

AHEAD_S = 1.0
"""Each fetch gets about this much work: records that wait for a
slow handler are better handled by other consumers.
"""
_RETRY_S = 0.5
_COMES_BACK = frozenset({"nack", "release"})
MAX_BATCH = 1_000_000
MAX_BYTES = 2**53


Along: TypeAlias = Callable[[Records[T]], SettleRecords | None]
"""Reports that a consumer begins with a batch."""


def _nothing(_: Records[Any]) -> None:
    """Nothing to report."""


class StreamConsumer(AsyncClosing, Generic[T]):
    """One consumer of a shared group; ``async with`` leaves the group at the end.

    Joins there or on first use, and again after a reconnect.
    """

    def __init__(
        self,
        link: Link,
        ask: wire.GroupJoin,
        type_: type[T] | None,
        batch: int,
        wait: Duration,
        max_bytes: int,
    ) -> None:
        self.stream = ask.stream
        self.group = ask.group
        self.type_ = type_
        self._link = link.duplex()
        self._ask = ask
        self._batch = self._limit = whole(batch, "batch", 1, MAX_BATCH)
        self._wait_ms = millis(wait)
        self._max_bytes = whole(max_bytes, "max_bytes", 1, MAX_BYTES)
        self._name: str | None = None
        self._poll: Any = None
        self._ahead: deque[AskedAhead] = deque()
        """The next batch, if it was asked for; whoever takes it out deals with it."""
        self._handed_s = 0.0
        """When the last batch was handed out."""
        self._resumed_s = 0.0
        """When the next one was asked for."""
        self.came_ahead = False
        """Whether that batch had been asked for ahead: nothing of it is reported as begun."""
        self._buffer: deque[StreamRecord[T]] = deque()
        self._buffered = 0
        self._buffered_until_s = 0.0
        self._closed = False
        self._awaits_stream = False
        """Whether to wait for a stream that does not exist."""
        self.ack_wait_s = 30.0
        """How long a lease lasts, as the server said when the group was joined."""
        self.fetched_s = 0.0
        """When the last records came."""
        on_fork(self)

    def forked(self) -> None:
        """After a fork, the fetched records belong to the parent."""
        self._buffer, self._ahead = deque(), deque()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._name or "not joined"
        return f"<Consumer of group {self.group!r}, stream {self.stream!r}, {state}>"

    @property
    def name(self) -> str:
        """The server's name for this consumer; empty before it joined."""
        return self._name or ""

    # -- receiving

    async def join(self) -> str:
        """Join the group; returns the assigned name. Called automatically when needed."""
        joined = await request(self._link.call, Op.S_GROUP_JOIN, self._ask, wire.GroupJoined)
        self._name, self.ack_wait_s = joined.consumer, joined.ack_wait_ms / 1000
        self._awaits_stream = False
        if self._closed:
            await self.close()  # it was closed while it joined
        return joined.consumer

    async def join_or_wait(self) -> None:
        """`join`; a stream that does not exist yet is joined once it does."""
        try:
            await self.join()
        except NotFound:
            log.warning("stream %s does not exist yet: waiting for it", self.stream)
            self._awaits_stream = True

    async def _joined(self) -> str | None:
        """The name to fetch by; None once it is closed."""
        if self._name is None and not self._closed:
            await self.join()
        return None if self._closed else self._name

    def on_close(self, hook: Any) -> Callable[[], None]:
        """Call ``hook`` when the client is closed; returns a function that removes it."""
        return self._link.on_close(hook)

    async def fetch(self, *, wait: Duration | None = None) -> Records[T]:
        """The next records, up to a batch; empty if none came within ``wait``.

        What was fetched is released when the connection ends, so it is then fetched again.
        """
        wait_s = (self._wait_ms if wait is None else millis(wait)) / 1_000

        async def take(left_s: float) -> Records[T]:
            return await self._fetch(min(wait_s, max(left_s - LATE_S, 0)))

        return await self._link.again(take, wait_s + LATE_S, (ConnectionLost, NotMember))

    async def _fetch(self, wait_s: float) -> Records[T]:
        """`fetch`, once."""
        for asked in list(self._ahead):
            asked.poll.cancel()  # whoever fetches by itself waits as long as it says
        found = await self._fetched_ahead()
        if found is not None and len(found):
            await self._take_up(found)
            return found
        name = await self._joined()
        if name is None:
            return Records(self, None)
        return await self._answer(self._taking(name, wait_s))

    def _taking(
        self, name: str, wait_s: float, settle: SettleRecords | None = None, *, ahead: bool = False
    ) -> Any:
        """Ask for a batch, and settle in the same request."""
        begins = 0 if ahead else int(self._ask.reports_starts)
        ask: Any = wire.Take(
            self.stream, self.group, name, self._limit, round(wait_s * 1_000), self._max_bytes,
            begins, ahead,
        )  # fmt: skip
        op = Op.S_TAKE
        if settle is not None:
            op, ask = Op.S_NEXT, wire.Next(settle, ask)
        return self._link.poll(
            op, wire.pack(ask), timeout_s=wait_s + LATE_S, on_late=self._give_back
        )

    async def _answer(self, poll: Any) -> Records[T]:
        """The records of one take."""
        self._poll = poll
        if self._closed:
            poll.cancel()
        try:
            records: Records[T] = Records(self, await poll.reply())
        except (ConnectionLost, NotMember):
            self._name = None
            raise
        finally:
            self._poll = None
        self.fetched_s = runtime.now_s()
        for reason in records.refused:
            log.info("group %r: %s", self.group, reason)
        return records

    # -- asking ahead

    async def _fetched_ahead(self) -> Records[T] | None:
        """The batch that was asked for ahead; None without one, or if it has waited too long."""
        asked = self._taken_out()
        if asked is None:
            return None
        records = await self._answer(asked.poll)
        if asked.has_waited(self.fetched_s - self.ack_wait_s / 3):
            await self._return(records)
            return None
        self.came_ahead = len(records) > 0
        return records

    def _taken_out(self) -> AskedAhead | None:
        try:
            return self._ahead.popleft()
        except IndexError:
            return None

    async def _ask_ahead(self, records: Records[T], along: Along[T]) -> None:
        """Ask for the batch after ``records``, if they were many and the last ones done quickly.

        What the consumer has to report leaves with it.
        """
        name, wait_s = self._name, self._wait_ms / 1_000
        quick = self._resumed_s - self._handed_s < QUICK_S
        try:
            if quick and name and not self._closed and self._has_more(records):
                poll = self._taking(name, wait_s, along(records), ahead=True)
                self._ahead.append(AskedAhead(poll))
            elif self.came_ahead:
                await self._take_up(records)
        except NexoError as error:
            log.info("group %r: %s", self.group, error)

    def _has_more(self, records: Records[T]) -> bool:
        """Whether more is waiting; who takes records one by one gets each after the one before."""
        return self._batch > 1 and records.are_many(self._limit)

    async def _take_up(self, records: Records[T]) -> None:
        """A batch that came ahead is worked on from now on, and counts as delivered."""
        if not self._ask.reports_starts:
            await self.send("start", records.generation, [])

    @property
    def asks_ahead(self) -> bool:
        """Whether the next batch is on its way, or here."""
        return bool(self._ahead)

    def has_next(self, before_s: float) -> bool:
        """Whether the next batch has been here since ``before_s``."""
        return any(asked.has_waited(before_s) for asked in list(self._ahead))

    async def drop_ahead(self) -> None:
        """Return what was asked for ahead; nothing is counted."""
        while (asked := self._taken_out()) is not None:
            asked.poll.cancel()
            try:
                await self._return(Records(self, await asked.poll.reply()))
            except NexoError as error:
                log.info("group %r: %s", self.group, error)

    async def _return(self, records: Records[T]) -> None:
        if len(records):
            await records.release()

    def _give_back(self, reply: Reply) -> None:
        """Release records that arrived after the fetch was cancelled; no attempt is counted."""
        head, _ = wire.unpack_headed(wire.TakeReply, reply or b"")
        ranges = [(p, first, end) for p, first, end, _, _ in head.deliveries]
        if ranges and self._name is not None:
            ask = SettleRecords(
                self.stream, self.group, self._name, head.generation, "release", ranges
            )
            self._link.call(Op.S_SETTLE, wire.pack(ask))

    async def batches(self, along: Along[T] = _nothing) -> AsyncIterator[Records[T]]:
        """Batches as they are fetched, without end: ``async for records in consumer.batches()``.

        While the last batch is worked on, the next one is asked for, if that goes quickly.
        """
        while not self._closed:
            records = await self._next_batch(along)
            if records is not None and len(records):
                yield records

    def paced(self, count: int, elapsed_s: float, *, least: int = 1) -> None:
        """Adapt the next fetch to about `AHEAD_S` of work,
        given how long ``count`` records took.
        """
        fits = int(AHEAD_S * count / elapsed_s) if elapsed_s * self._batch > count else self._batch
        self._limit = min(self._batch, max(least, fits))

    def __aiter__(self) -> StreamConsumer[T]:
        return self

    async def __anext__(self) -> StreamRecord[T]:
        while not self._closed:
            if self._buffer and runtime.now_s() < self._buffered_until_s:
                return self._buffer.popleft()
            await self._refill()
        raise StopAsyncIteration

    async def _refill(self) -> None:
        """Fetch; first release what has waited here too long, before its lease runs out."""
        if self._buffered:
            given = self._buffered - len(self._buffer)
            self.paced(given, runtime.now_s() - self.fetched_s)
        self._buffered = 0
        stale, self._buffer = self._buffer, deque()
        if stale:
            await self.drop_ahead()  # it comes after these
            try:
                await self.release(*stale)
            except NexoError as error:
                log.info("group %r: %s", self.group, error)
        self._buffer = deque(await self._next_batch() or ())
        self._buffered = len(self._buffer)
        self._buffered_until_s = self.fetched_s + self.ack_wait_s / 3

    async def _next_batch(self, along: Along[T] = _nothing) -> Records[T] | None:
        """The next batch, and the question for the one after it."""
        self._resumed_s, self.came_ahead = runtime.now_s(), False
        records = await self._next_fetched()
        if records is not None and len(records):
            await self._ask_ahead(records, along)
            self._handed_s = runtime.now_s()
        return records

    async def _next_fetched(self) -> Records[T] | None:
        """The next `fetch`, retried while the connection is lost (SPEC A5)."""
        while not self._closed:
            try:
                records = await self._fetched_ahead()
                if records is not None:
                    return records
                return await self._fetch(self._wait_ms / 1_000)
            except (ConnectionLost, NotMember):
                while not self._closed and not await self._link.ready(_RETRY_S):
                    pass
            except NotFound:
                if not self._awaits_stream:
                    raise
                await runtime.sleep(_RETRY_S)
            except (Unavailable, TimeoutError, Corrupt) as error:
                log.warning("fetch from %r failed, trying again: %s", self.stream, error)
                await runtime.sleep(_RETRY_S)
        return None

    # -- settling

    async def ack(self, *records: StreamRecord[T]) -> None:
        """Finish records, in any order."""
        await self.settle("ack", records)

    async def nack(
        self, *records: StreamRecord[T], reason: object = "", delay: Duration = 0
    ) -> None:
        """Report records as failed."""
        delay_ms = millis(delay, "delay")
        await self.settle("nack", records, delay_ms=delay_ms, reason=reason_text(reason))

    async def release(self, *records: StreamRecord[T]) -> None:
        """Return records that no handler had: nothing is counted."""
        await self.settle("release", records)

    async def settle(
        self,
        verb: Verb,
        records: Iterable[StreamRecord[T]],
        *,
        delay_ms: int = 0,
        reason: str = "",
    ) -> None:
        """Settle records; raises the error of the first rejected one."""
        for generation, ranges in ranges_of(records).items():
            await self.send(verb, generation, ranges, delay_ms, reason)

    async def send(
        self,
        verb: Verb,
        generation: int,
        ranges: list[Range],
        delay_ms: int = 0,
        reason: str = "",
        begins: list[Range] | None = None,
    ) -> None:
        """`settle` for ranges; ``begins`` is what a handler starts next."""
        if verb in _COMES_BACK:
            await self.drop_ahead()  # these come again before it
        ask = SettleRecords(
            self.stream, self.group, self._name or "", generation, verb, ranges, delay_ms, reason,
            begins or [],
        )  # fmt: skip
        reply = await self._link.call(Op.S_SETTLE, wire.pack(ask))
        for refused in wire.unpack(list[wire.RefusedRange], reply or b"\x90"):
            raise from_wire(refused.code, refused.message)

    # -- ending

    def interrupt(self) -> None:
        """Let a waiting fetch return at once, and allow no further one."""
        self._closed = True
        if self._poll is not None:
            self._poll.cancel()
        for asked in list(self._ahead):
            asked.poll.cancel()

    async def close(self, unstarted: Iterable[StreamRecord[T]] | None = None) -> None:
        """Leave the group; unacked records are released to others at once.

        Records that no handler began do not count as delivered: those still waiting here, and
        ``unstarted``.
        """
        self.interrupt()
        name, self._name = self._name, None
        if name is None:
            return
        ranges: list[Range] = []
        for record in [*self._buffer, *(unstarted or ())]:
            add_range(ranges, record.partition, record.offset)
        ask = wire.GroupLeave(stream=self.stream, group=self.group, consumer=name, unstarted=ranges)
        try:
            await self._link.call(Op.S_GROUP_LEAVE, wire.pack(ask))
        except NexoError as error:
            log.debug("could not leave group %r: %s", self.group, error)

    async def __aenter__(self) -> StreamConsumer[T]:
        if self._name is None:
            await self.join()
        return self
