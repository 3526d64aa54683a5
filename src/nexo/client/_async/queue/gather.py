"""Sends pushes and settlements: those of one loop turn are sent as one request.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, TypeVar

from nexo.client._async.link.gathering import GatheredSends, RunSender
from nexo.client._async.link.link import Link
from nexo.client._async.link.wire import ReplyFuture
from nexo.client.replies import Reply
from nexo.client.views import check_refused, pushed_ids
from nexo.errors import InvalidInput, LeaseLost, NexoError, QueueFull
from nexo.model import Buffer
from nexo.model.blocks import pack_block
from nexo.model.queue import ACK, RELEASE, JobOutcome
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    Begin,
    PushHead,
    PushReply,
    Settled,
    SettleJobs,
    decode,
    encode,
    encode_head,
)

T = TypeVar("T")

log = logging.getLogger("nexo.client")

RUN_BYTES = 1024 * 1024
RUN_JOBS = 10_000
"""A run of this size is sent without waiting for the end
of the turn; a larger job is sent alone.
"""
_JOB_BYTES = 8
_TEXT_BYTES = 5
"""The overhead of each job, and of each of its keys."""
WHOLE_LEASE = -1


class Pusher(RunSender["_Pushes"]):
    """Gathers single pushes of one client, in order."""

    def push(
        self, head: PushHead, value: bytes, key: str | None, dedup_key: str | None,
        headers: bytes | None = None,
    ) -> asyncio.Future[str]:  # fmt: skip
        """Push one job; ``head`` is what it shares with its neighbours."""
        size = len(value) + _JOB_BYTES
        if key is not None:
            size += len(key.encode()) + _TEXT_BYTES
        if dedup_key is not None:
            size += len(dedup_key.encode()) + _TEXT_BYTES
        if headers is not None:
            size += len(headers) + _TEXT_BYTES
        run = self.run
        if run is None or run.head != head or run.size_bytes + size > run.room_bytes:
            run = self.start(_Pushes(self, head))
        run.values.append(value)
        run.keys.append(key)
        run.dedup_keys.append(dedup_key)
        run.headers.append(headers)
        run.size_bytes += size
        receipt = run.receipt()
        if run.size_bytes >= run.room_bytes or len(run.values) >= RUN_JOBS:
            self.link.gatherer.leave(run)
        return receipt


class _Pushes(GatheredSends[str]):
    """Pushes with the same head that are sent together."""

    __slots__ = ("dedup_keys", "head", "headers", "keys", "pusher", "values")
    due_to_one = (InvalidInput, QueueFull)

    def __init__(self, pusher: Pusher, head: PushHead) -> None:
        super().__init__(pusher.link, RUN_BYTES)
        self.pusher = pusher
        self.head = head
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.dedup_keys: list[str | None] = []
        self.headers: list[bytes | None] = []

    def leaves(self) -> None:
        self.pusher.run = None

    def request(self) -> tuple[int, tuple[Buffer, ...]]:
        head = self.head
        full = PushHead(
            head.queue, head.priority, head.delay_ms, head.ttl_ms, _unless_empty(self.keys),
            _unless_empty(self.dedup_keys), head.replace, _unless_empty(self.headers),
        )  # fmt: skip
        return Op.Q_PUSH_MANY, (encode_head(full), pack_block(self.values))

    def part(self, which: slice) -> _Pushes:
        part = _Pushes(self.pusher, self.head)
        part.values = self.values[which]
        part.keys, part.dedup_keys = self.keys[which], self.dedup_keys[which]
        part.headers = self.headers[which]
        return part

    def results(self, reply: Reply) -> list[str]:
        pushed = decode(reply or b"", PushReply)
        return pushed_ids([pushed])


def _unless_empty(column: list[T | None]) -> list[T | None] | None:
    return None if column.count(None) == len(column) else column


class Settling(Protocol):
    """A job whose ack is in flight."""

    def reopen(self) -> None:
        """The ack failed: another settlement may be tried."""


class Settler(RunSender["_Acks"]):
    """Gathers the acks of one queue's jobs; other settlements are sent at once, after them."""

    def __init__(self, link: Link, queue: str) -> None:
        super().__init__(link)
        self.queue = queue
        self.last: ReplyFuture | None = None
        """The reply to the acks that were sent last."""
        self._begun: dict[int, list[int]] = {}

    def ack(
        self, token: int, job: int, result: bytes | None, owner: Settling
    ) -> asyncio.Future[bool]:
        """Finish one job; its ``result`` is kept if the queue keeps results.

        ``owner`` is notified if the server may not have received it.
        """
        run = self.run
        if run is None or (result is not None and run.size_bytes + len(result) > run.room_bytes):
            run = self.start(_Acks(self))
        if result is not None:
            run.size_bytes += len(result) + _JOB_BYTES
        run.owners.append(owner)
        run.add(token, job, result)
        return run.receipt()

    def post_ack(self, token: int, job: int, result: bytes | None, owner: Settling) -> None:
        """`ack` for callers that will not wait; a rejection is logged."""
        self.ack(token, job, result, owner)

    def begin(self, token: int, job: int) -> None:
        """Report to the server that a handler begins, before
        it does: its delivery counts from then.

        Those of one turn are sent together, before the first step of any task made after this.
        """
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._send_begun)
        _append_job(self._begun.setdefault(token, []), job)

    def _send_begun(self) -> None:
        begun, self._begun = self._begun, {}
        reply = self.link.call(Op.Q_BEGIN, encode(Begin(self.queue, [*begun.items()])))
        reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())
        self.link.flush()

    async def settle(
        self, how: JobOutcome, leases: list[Settled], error: str, delay_ms: int
    ) -> None:
        """Settle other than by single acks; raises `LeaseLost` if any was rejected."""
        request = SettleJobs(self.queue, how, leases, error, delay_ms)
        reply = await self.link.call(Op.Q_SETTLE, encode(request))
        check_refused(reply)

    def post_release(self, token: int) -> None:
        """Release all jobs of a lease, without waiting for the reply."""
        request = SettleJobs(self.queue, RELEASE, [Settled(token)])
        reply = self.link.call(Op.Q_SETTLE, encode(request))
        reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())

    async def drain(self) -> None:
        """Wait until all acks so far were answered, successfully or not."""
        self.link.gatherer.flush()
        if self.last is not None:
            await asyncio.wait({self.last})


class _Acks(GatheredSends[bool]):
    """Acks of one queue that are sent together."""

    __slots__ = ("acks", "named", "owners", "settler")
    due_to_one = ()
    raises_later = False  # a subscription acks too, and nobody calls it

    def __init__(self, settler: Settler) -> None:
        super().__init__(settler.link, RUN_BYTES)
        self.settler = settler
        self.acks: dict[int, Settled] = {}
        self.named: list[tuple[int, int]] = []
        self.owners: list[Settling] = []

    def add(self, token: int, job: int, result: bytes | None) -> None:
        self.named.append((token, job))
        settled = self.acks.get(token)
        if settled is None:
            settled = self.acks[token] = Settled(token, [], {})
        _append_job(settled.runs, job)
        if result is not None:
            settled.results[job] = result

    def leaves(self) -> None:
        self.settler.run = None

    def request(self) -> tuple[int, tuple[Buffer, ...]]:
        request = SettleJobs(self.settler.queue, ACK, list(self.acks.values()))
        return Op.Q_SETTLE, (encode(request),)

    def sent(self, reply: ReplyFuture) -> None:
        self.settler.last = reply

    def results(self, reply: Reply) -> list[bool | NexoError]:
        """True for each ack, or why it was rejected."""
        if not reply:
            return [True] * len(self.named)
        refused = set(decode(reply, list[tuple[int, int]]))
        queue = self.settler.queue
        log.warning("%d leases of queue %s were lost before the ack", len(refused), queue)
        return [
            LeaseLost("the lease ended before the ack; the job may run again elsewhere")
            if (token, job) in refused or (token, WHOLE_LEASE) in refused
            else True
            for token, job in self.named
        ]

    def fail(self, error: BaseException) -> None:
        """Fail every ack; a job can be settled again when its waiter gets the failure."""
        log.warning("%d acks of queue %s failed: %s", len(self.owners), self.settler.queue, error)
        for owner in self.owners:
            owner.reopen()
        super().fail(error)


def _append_job(runs: list[int] | None, job: int) -> None:
    assert runs is not None
    if runs and runs[-1] == job:
        runs[-1] = job + 1
    else:
        runs += (job, job + 1)
