"""Sends pushes and settlements: those of one loop turn leave as one request.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import ClassVar
from weakref import WeakKeyDictionary

from nexo.client._async.connection import Link
from nexo.client._async.gathering import Gathering
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

RUN_BYTES = 1024 * 1024
RUN_JOBS = 10_000
"""A run of this size leaves without waiting for the end of the turn."""
WHOLE_LEASE = -1


class _Run:
    """Pushes alike that leave together."""

    __slots__ = ("dedup_keys", "gathering", "head", "keys", "size_bytes", "values")

    def __init__(self, head: PushHead) -> None:
        self.head = head
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.dedup_keys: list[str | None] = []
        self.size_bytes = 0
        self.gathering: Gathering[str] = Gathering(_ids)


def _ids(reply: Reply) -> list[str]:
    pushed = decode(reply or b"", PushReply)
    return [pushed_id(pushed, index) for index in range(pushed.count)]


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
    ) -> asyncio.Future[str]:
        """Push one job; ``head`` is what it shares with its neighbours."""
        run = self._run
        if run is None or run.head != head:
            run = self._begin(head)
        run.values.append(value)
        run.keys.append(key)
        run.dedup_keys.append(dedup_key)
        run.size_bytes += len(value)
        receipt = run.gathering.receipt()
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

    def ack(self, token: int, job: int, result: bytes | None = None) -> asyncio.Future[bool]:
        """Finish one job; its ``result`` is kept if the queue keeps results."""
        if self._gathering is None:
            self._gathering = Gathering(partial(_verdicts, self._named))
            asyncio.get_running_loop().call_soon(self.flush)
        receipt = self._gathering.receipt()
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


def _verdicts(named: list[tuple[int, int]], reply: Reply) -> Iterator[bool | NexoError]:
    """True for each ack, or why it was refused; ``named`` are their leases and jobs."""
    refused = set(decode(reply, list[tuple[int, int]])) if reply else set()
    for token, job in named:
        if refused and ((token, job) in refused or (token, WHOLE_LEASE) in refused):
            yield LeaseLost("the lease ended before the ack; the job may run again elsewhere")
        else:
            yield True


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
