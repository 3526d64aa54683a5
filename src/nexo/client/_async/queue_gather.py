"""Sends pushes and settlements: those of one loop turn leave as one request.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

from nexo.client._async.connection import Link
from nexo.client.queue_views import pushed_id
from nexo.client.replies import Reply
from nexo.errors import LeaseLost, NexoError
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    RELEASE,
    PushHead,
    PushReply,
    Settle,
    Settled,
    decode,
    encode,
    encode_head,
    pack_block,
)

log = logging.getLogger("nexo.client")

R = TypeVar("R")

RUN_BYTES = 1024 * 1024
RUN_JOBS = 10_000
"""A run of this size leaves without waiting for the end of the turn."""
WHOLE_LEASE = -1


class Gathering(Generic[R]):
    """Requests joined into one, and who waits for its reply."""

    __slots__ = ("_error", "_loop", "_pick", "_reply", "_waiting")

    def __init__(self, pick: Callable[[Reply, int], R]) -> None:
        """``pick`` finds one caller's result in the common reply, or raises its error."""
        self._loop = asyncio.get_running_loop()
        self._pick = pick
        self._waiting: list[tuple[asyncio.Future[R], int]] | None = []
        self._reply: Reply = None
        self._error: BaseException | None = None

    def send(self, link: Link, op: Op, *parts: bytes) -> asyncio.Future[Reply] | None:
        """Send the joined request; None if it could not even leave."""
        try:
            reply = link.call(op, *parts)
        except NexoError as error:
            self._fail(error)
            return None
        reply.add_done_callback(self._answered)
        return reply

    def _answered(self, reply: asyncio.Future[Reply]) -> None:
        if reply.cancelled():
            self._fail(asyncio.CancelledError())
        elif (error := reply.exception()) is not None:
            self._fail(error)
        else:
            self._reply = reply.result()
            for future, index in self._end():
                self._settle(future, index)

    def _settle(self, future: asyncio.Future[R], index: int) -> None:
        if future.done():
            return
        try:
            future.set_result(self._pick(self._reply, index))
        except NexoError as error:
            future.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        for future, _ in self._end():
            if not future.done():
                future.set_exception(error)

    def _end(self) -> list[tuple[asyncio.Future[R], int]]:
        waiting, self._waiting = self._waiting or [], None
        return waiting

    def wait(self, index: int) -> Generator[object, None, R]:
        """Wait for the result of one of the joined requests."""
        if self._waiting is not None:
            # A future each: cancelling one who waits must not cancel the others.
            future: asyncio.Future[R] = self._loop.create_future()
            self._waiting.append((future, index))
            return (yield from future.__await__())
        if self._error is not None:
            raise self._error
        return self._pick(self._reply, index)


class Receipt(Generic[R]):
    """A request under way; awaiting it gives its result, not awaiting is fine."""

    __slots__ = ("_gathering", "_index")

    def __init__(self, gathering: Gathering[R], index: int) -> None:
        self._gathering = gathering
        self._index = index

    def __await__(self) -> Generator[object, None, R]:
        return self._gathering.wait(self._index)


class _Run:
    """Pushes alike that leave together."""

    __slots__ = ("dedup_keys", "gathering", "head", "keys", "size_bytes", "values")

    def __init__(self, head: PushHead) -> None:
        self.head = head
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.dedup_keys: list[str | None] = []
        self.size_bytes = 0
        self.gathering: Gathering[str] = Gathering(_picked_id)


def _picked_id(reply: Reply, index: int) -> str:
    return pushed_id(decode(reply or b"", PushReply), index)


class Pusher:
    """Gathers single pushes of one client, in order."""

    _of_link: ClassVar[WeakKeyDictionary[Link, Pusher]] = WeakKeyDictionary()

    def __init__(self, link: Link) -> None:
        self._link = link
        self._run: _Run | None = None

    @classmethod
    def of(cls, link: Link) -> Pusher:
        """The one of this link, so that all its queues keep one order."""
        pusher = cls._of_link.get(link)
        if pusher is None:
            pusher = cls._of_link[link] = cls(link)
        return pusher

    def push(
        self, head: PushHead, value: bytes, key: str | None, dedup_key: str | None
    ) -> Receipt[str]:
        """Push one job; ``head`` is what it shares with its neighbours."""
        run = self._run
        if run is None or run.head != head:
            run = self._begin(head)
        receipt = Receipt(run.gathering, len(run.values))
        run.values.append(value)
        run.keys.append(key)
        run.dedup_keys.append(dedup_key)
        run.size_bytes += len(value)
        if run.size_bytes >= RUN_BYTES or len(run.values) >= RUN_JOBS:
            self.flush()
        return receipt

    def _begin(self, head: PushHead) -> _Run:
        self.flush()
        run = self._run = _Run(head)
        asyncio.get_running_loop().call_soon(self._end_of_turn, run)
        return run

    def _end_of_turn(self, run: _Run) -> None:
        if run is self._run:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered, so that what follows comes after it."""
        run, self._run = self._run, None
        if run is None:
            return
        head = run.head
        full = PushHead(
            head.queue, head.priority, head.delay_ms, head.ttl_ms, _unless_empty(run.keys),
            _unless_empty(run.dedup_keys), head.replace,
        )  # fmt: skip
        run.gathering.send(self._link, Op.Q_PUSH_MANY, encode_head(full), pack_block(run.values))


def _unless_empty(column: list[str | None]) -> list[str | None] | None:
    return None if column.count(None) == len(column) else column


class Settler:
    """Gathers the acks of one queue's jobs; other settlements leave at once, after them."""

    def __init__(self, link: Link, queue: str) -> None:
        self._link = link
        self._queue = queue
        self._acks: dict[int, Settled] = {}
        self._named: list[tuple[int, int]] = []
        self._gathering: Gathering[bool] | None = None
        self._last: asyncio.Future[Reply] | None = None

    def ack(self, token: int, job: int, result: bytes | None = None) -> Receipt[bool]:
        """Finish one job; its ``result`` is kept if the queue keeps results."""
        if self._gathering is None:
            self._gathering = Gathering(_Refusals(self._named))
            asyncio.get_running_loop().call_soon(self.flush)
        receipt = Receipt(self._gathering, len(self._named))
        self._named.append((token, job))
        settled = self._acks.get(token)
        if settled is None:
            settled = self._acks[token] = Settled(token, [], {})
        _append_job(settled.runs, job)
        if result is not None:
            settled.results[job] = result
        return receipt

    def post_ack(self, token: int, job: int, result: bytes | None = None) -> None:
        """`ack` for callers that will not wait; a refusal is logged."""
        self.ack(token, job, result)

    async def settle(self, how: int, leases: list[Settled], error: str, delay_ms: int) -> None:
        """Settle otherwise than by single acks; raises `LeaseLost` if any was refused."""
        self.flush()
        request = Settle(self._queue, how, leases, error, delay_ms)
        reply = await self._link.call(Op.Q_SETTLE, encode(request))
        check_refused(reply)

    def post_release(self, token: int) -> None:
        """Give back all jobs of a lease, without waiting for the reply."""
        request = Settle(self._queue, RELEASE, [Settled(token)])
        reply = self._link.call(Op.Q_SETTLE, encode(request))
        reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())

    def flush(self) -> None:
        """Send what was gathered."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        leases, self._acks, self._named = list(self._acks.values()), {}, []
        request = Settle(self._queue, 0, leases)
        self._last = gathering.send(self._link, Op.Q_SETTLE, encode(request))
        if self._last is not None:
            self._last.add_done_callback(self._note)

    def _note(self, reply: asyncio.Future[Reply]) -> None:
        if reply.cancelled():
            return
        if (error := reply.exception()) is not None:
            log.warning("acks of queue %s failed: %s", self._queue, error)
        elif refused := reply.result():
            count = len(decode(refused, list[tuple[int, int]]))
            log.warning("%d leases of queue %s were lost before the ack", count, self._queue)

    async def drain(self) -> None:
        """Wait until all acks so far were answered, well or not."""
        self.flush()
        if self._last is not None:
            await asyncio.wait({self._last})


class _Refusals:
    """Finds out who of many was refused; the reply is decoded once."""

    __slots__ = ("_named", "_refused", "_reply")

    def __init__(self, named: list[tuple[int, int]]) -> None:
        self._named = named
        self._reply: Reply = None
        self._refused: set[tuple[int, int]] = set()

    def __call__(self, reply: Reply, index: int) -> bool:
        if not reply:
            return True
        if reply is not self._reply:
            self._reply, self._refused = reply, set(decode(reply, list[tuple[int, int]]))
        token, job = self._named[index]
        if (token, job) in self._refused or (token, WHOLE_LEASE) in self._refused:
            raise LeaseLost("the lease ended before the ack; the job may run again elsewhere")
        return True


def _append_job(runs: list[int] | None, job: int) -> None:
    assert runs is not None
    if runs and runs[-1] == job:
        runs[-1] = job + 1
    else:
        runs += (job, job + 1)


def check_refused(reply: Reply) -> None:
    """Raise `LeaseLost` if a settlement was refused, even in part."""
    if reply:
        count = len(decode(reply, list[tuple[int, int]]))
        raise LeaseLost(f"{count} of the jobs were no longer held; they may run again elsewhere")
