"""Sends pushes and settlements: those of one loop turn leave as one request.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary, ref

from nexo.blocks import pack_block
from nexo.client._async.link.gathering import Gathering
from nexo.client._async.link.link import Link
from nexo.client.queue_views import pushed_id
from nexo.client.replies import Reply, room_bytes
from nexo.errors import InvalidInput, LeaseLost, NexoError, QueueFull
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    ACK,
    RELEASE,
    PushHead,
    PushReply,
    Settle,
    Settled,
    decode,
    encode,
    encode_head,
)

log = logging.getLogger("nexo.client")

RUN_BYTES = 1024 * 1024
RUN_JOBS = 10_000
"""A run of this size leaves without waiting for the end of the turn; a larger job goes alone."""
_JOB_BYTES = 8
_TEXT_BYTES = 5
"""What each job, and each of its keys, takes beside its content."""
WHOLE_LEASE = -1


class _Run:
    """Pushes alike that leave together."""

    __slots__ = (
        "dedup_keys", "gathering", "head", "keys", "link", "rest", "room_bytes", "size_bytes",
        "values",
    )  # fmt: skip

    def __init__(self, link: Link, head: PushHead) -> None:
        self.link = link
        self.head = head
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.dedup_keys: list[str | None] = []
        self.size_bytes = 0
        self.room_bytes = room_bytes(link.welcome, RUN_BYTES)
        self.gathering: Gathering[str] = _Receipts(self)
        self.rest: _Run | None = None
        """The other half of what was refused, which follows once this one has ended."""

    def send(self) -> None:
        """Send what was gathered."""
        head = self.head
        try:
            full = PushHead(
                head.queue, head.priority, head.delay_ms, head.ttl_ms, _unless_empty(self.keys),
                _unless_empty(self.dedup_keys), head.replace,
            )  # fmt: skip
            parts = encode_head(full), pack_block(self.values)
        except Exception as error:  # whoever waits would wait for ever
            self.gathering.refuse(error)
            return
        self.gathering.send(self.link, Op.Q_PUSH_MANY, *parts)

    def divide(self) -> None:
        """Send it again, half after half: something was refused, and none was stored."""
        middle = len(self.values) // 2
        first, second = self._part(slice(middle)), self._part(slice(middle, None))
        first.rest, second.rest, self.rest = second, self.rest, None
        first.send()

    def _part(self, which: slice) -> _Run:
        part = _Run(self.link, self.head)
        part.values = self.values[which]
        part.keys, part.dedup_keys = self.keys[which], self.dedup_keys[which]
        part.gathering.adopt(self.gathering.receipts[which])
        return part

    def ended(self, error: BaseException | None) -> None:
        """Go on with the rest, unless this one failed of what would meet it too."""
        rest, self.rest = self.rest, None
        if rest is None:
            return
        if error is None or isinstance(error, InvalidInput):
            rest.send()
        else:
            rest.gathering.fail(error)


class _Receipts(Gathering[str]):
    """Who waits for a run."""

    __slots__ = ("_run",)

    def __init__(self, run: _Run) -> None:
        super().__init__(_ids, run.divide, (InvalidInput, QueueFull))
        self._run: _Run | None = run

    def over(self) -> None:
        """See `Gathering.over`."""
        super().over()
        self._run = None

    def settle(self, results: list[str | NexoError]) -> None:
        """See `Gathering.settle`."""
        run = self._run
        super().settle(results)
        if run is not None:
            run.ended(None)

    def fail(self, error: BaseException) -> None:
        """See `Gathering.fail`."""
        run = self._run
        super().fail(error)
        if run is not None:
            run.ended(error)


def _ids(reply: Reply) -> list[str]:
    pushed = decode(reply or b"", PushReply)
    return [pushed_id(pushed, index) for index in range(pushed.count)]


class Pusher:
    """Gathers single pushes of one client, in order."""

    _of_link: ClassVar[WeakKeyDictionary[Link, Pusher]] = WeakKeyDictionary()

    def __init__(self, link: Link) -> None:
        self._link = ref(link)  # not itself, or `_of_link` would keep it for ever
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
        size = len(value) + _JOB_BYTES
        if key is not None:
            size += len(key.encode()) + _TEXT_BYTES
        if dedup_key is not None:
            size += len(dedup_key.encode()) + _TEXT_BYTES
        run = self._run
        if run is None or run.head != head or run.size_bytes + size > run.room_bytes:
            run = self._begin(head)
        run.values.append(value)
        run.keys.append(key)
        run.dedup_keys.append(dedup_key)
        run.size_bytes += size
        receipt = run.gathering.receipt()
        if run.size_bytes >= run.room_bytes or len(run.values) >= RUN_JOBS:
            self.flush()
        return receipt

    def _begin(self, head: PushHead) -> _Run:
        self.flush()
        link = self._link()
        assert link is not None, "whoever pushes has it"
        run = self._run = _Run(link, head)
        asyncio.get_running_loop().call_soon(self._end_of_turn, run)
        return run

    def _end_of_turn(self, run: _Run) -> None:
        if run is self._run:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered, so that what follows comes after it."""
        run, self._run = self._run, None
        if run is not None:
            run.send()


def _unless_empty(column: list[str | None]) -> list[str | None] | None:
    return None if column.count(None) == len(column) else column


class Settling(Protocol):
    """A job whose ack is on its way."""

    def reopen(self) -> None:
        """The ack did not succeed: another settlement may be tried."""


class Settler:
    """Gathers the acks of one queue's jobs; other settlements leave at once, after them."""

    def __init__(self, link: Link, queue: str) -> None:
        self._link = link
        self._queue = queue
        self._acks: dict[int, Settled] = {}
        self._named: list[tuple[int, int]] = []
        self._owners: list[Settling] = []
        self._gathering: Gathering[bool] | None = None
        self._result_bytes = 0
        self._last: asyncio.Future[Reply] | None = None

    def ack(
        self, token: int, job: int, result: bytes | None, owner: Settling
    ) -> asyncio.Future[bool]:
        """Finish one job; its ``result`` is kept if the queue keeps results.

        ``owner`` is told if the server may not have heard of it.
        """
        if result is not None:
            self._result_bytes += len(result) + _JOB_BYTES
            if self._result_bytes > room_bytes(self._link.welcome, RUN_BYTES):
                self.flush()  # a large result goes alone
                self._result_bytes = len(result)
        if self._gathering is None:
            self._gathering = Gathering(partial(_verdicts, self._named))
            asyncio.get_running_loop().call_soon(self.flush)
        receipt = self._gathering.receipt()
        self._named.append((token, job))
        self._owners.append(owner)
        settled = self._acks.get(token)
        if settled is None:
            settled = self._acks[token] = Settled(token, [], {})
        _append_job(settled.runs, job)
        if result is not None:
            settled.results[job] = result
        return receipt

    def post_ack(self, token: int, job: int, result: bytes | None, owner: Settling) -> None:
        """`ack` for callers that will not wait; a refusal is logged."""
        self.ack(token, job, result, owner)

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
        owners, self._owners, self._result_bytes = self._owners, [], 0
        try:
            reply = self._link.call(Op.Q_SETTLE, encode(Settle(self._queue, ACK, leases)))
        except Exception as error:  # whoever waits would wait for ever
            self._failed(owners, error)
            gathering.fail(error)
            return
        # First the owners: a job must be free again when its waiter hears of the failure.
        self._link.let_end(reply)
        reply.add_done_callback(partial(self._note, owners))
        gathering.await_reply(reply)
        self._last = reply

    def _failed(self, owners: list[Settling], error: BaseException) -> None:
        log.warning("%d acks of queue %s failed: %s", len(owners), self._queue, error)
        for owner in owners:
            owner.reopen()

    def _note(self, owners: list[Settling], reply: asyncio.Future[Reply]) -> None:
        if reply.cancelled():
            return
        if (error := reply.exception()) is not None:
            self._failed(owners, error)
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
