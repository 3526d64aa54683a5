"""Sends pushes and settlements, each by itself; the async twin gathers those of one turn."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nexo.client._sync.link.duplex import Duplex
from nexo.client._sync.link.link import Link
from nexo.client.views import check_refused, pushed_id
from nexo.errors import LeaseLost, NexoError
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

if TYPE_CHECKING:
    from nexo.client._sync.queue.jobs import Job

log = logging.getLogger("nexo.client")


class Pusher:
    """Pushes on the link; any thread may call."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def push(
        self, head: PushHead, value: bytes, key: str | None, dedup_key: str | None,
        headers: bytes | None = None,
    ) -> str:  # fmt: skip
        """Push one job; returns its id."""
        full = PushHead(
            head.queue, head.priority, head.delay_ms, head.ttl_ms,
            None if key is None else [key], None if dedup_key is None else [dedup_key],
            head.replace, None if headers is None else [headers],
        )  # fmt: skip
        reply = self._link.call(Op.Q_PUSH_MANY, encode_head(full), pack_block([value]))
        return pushed_id(decode(reply or b"", PushReply), 0)


class Settler:
    """Settles jobs of one queue; any thread may call."""

    def __init__(self, link: Link | Duplex, queue: str) -> None:
        self._link = link
        self._queue = queue

    def ack(self, token: int, job: int, result: bytes | None, owner: Job[Any]) -> bool:
        """Finish one job; its ``result`` is kept if the queue keeps results.

        ``owner`` is told if the server may not have heard of it.
        """
        results = {} if result is None else {job: result}
        try:
            self.settle(ACK, [Settled(token, [job, job + 1], results)], "", -1)
        except LeaseLost:
            raise
        except BaseException:
            owner.reopen()
            raise
        return True

    def post_ack(self, token: int, job: int, result: bytes | None, owner: Job[Any]) -> None:
        """`ack` for callers that cannot do anything about a refusal; it is logged."""
        try:
            self.ack(token, job, result, owner)
        except NexoError as error:
            log.warning("an ack of queue %s failed: %s", self._queue, error)

    def post_release(self, token: int) -> None:
        """Give back all jobs of a lease."""
        self.settle(RELEASE, [Settled(token)], "", -1)

    def begin(self, token: int, job: int) -> None:
        """Report that a handler is about to begin: its delivery counts from then on."""
        assert isinstance(self._link, Duplex), "subscriptions have one"
        with suppress(NexoError):
            begun = Begin(self._queue, [(token, [job, job + 1])])
            self._link.poll(Op.Q_BEGIN, encode(begun), impatient=True)

    def settle(self, how: JobOutcome, leases: list[Settled], error: str, delay_ms: int) -> None:
        """Settle jobs; raises `LeaseLost` if any was rejected."""
        request = SettleJobs(self._queue, how, leases, error, delay_ms)
        check_refused(self._link.call(Op.Q_SETTLE, encode(request)))

    def drain(self) -> None:
        """Nothing is under way between calls."""
