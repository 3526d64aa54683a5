"""Work over HTTP: fetch jobs under a lease, then ack, nack or extend them by its token."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from nexo.admin.api.jobs import JobAsk
from nexo.admin.api.queue import OneQueue
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, ChangeCount, Seconds, WaitSeconds
from nexo.admin.values import NewValue, Plain, plain, python_value
from nexo.errors import InvalidInput, LeaseLost
from nexo.model import Broker
from nexo.model.blocks import parse_id, unpack_id
from nexo.model.queue import ACK, NACK, REJECT, RELEASE, JobOutcome
from nexo.protocol.ops import Op
from nexo.protocol.queue import RenewLeases, Settled, SettleJobs, decode, encode
from nexo.protocol.values import encode_value

routes = ApiRoutes("Queue", "/queue")

LeaseToken: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,20}$")]


class FetchAsk(OneQueue):
    """The number of jobs to take, and for how long."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    wait_s: WaitSeconds = 0
    """How long to wait for the first."""
    lease_s: Seconds | None = None
    """How long they are the caller's; the queue's visibility timeout by default."""


class FetchedJob(msgspec.Struct):
    """A job that the caller holds until its lease ends."""

    id: str
    lease: str
    """The lease's token, which ack, nack and extend take."""
    value: Plain
    headers: dict[str, Any]
    key: str | None
    priority: int
    attempt: int
    """Which delivery this is, from 1."""
    pushed_ms: int


class Fetched(msgspec.Struct):
    """Jobs, none if none came in time. They share one lease."""

    jobs: list[FetchedJob]
    lease_ms: int
    """How long the lease lasts, from now."""


class HeldAsk(JobAsk):
    """A job to give back unworked."""

    lease: LeaseToken


class AckAsk(HeldAsk):
    """A job that is done."""

    result: NewValue | None = None
    """Kept for ``/queue/job`` if the queue keeps results."""


class NackAsk(HeldAsk):
    """A job that failed."""

    reason: Annotated[str, msgspec.Meta(max_length=65_536)] = ""
    delay_s: Seconds | None = None
    """Before the retry; the queue's back-off by default."""
    retry: bool = True
    """False: it can never succeed, and is a dead letter at once."""


class ExtendAsk(OneQueue):
    """A lease to extend, from now."""

    lease: LeaseToken
    lease_s: Seconds | None = None


@routes.post("/fetch", waits=True)
async def fetch(context: ApiContext, ask: FetchAsk) -> Fetched:
    """Lease jobs, waiting for the first; ack each before the lease ends, or it runs again."""
    queue = context.client.queue(ask.queue)
    found = await queue.pop(ask.limit, wait=ask.wait_s, lease=ask.lease_s or None)
    token = str(found.delivery.token)
    jobs = [
        FetchedJob(
            job.id, token, plain(job.encoded), job.headers, job.key, job.priority, job.attempt,
            job.pushed_ms,
        )
        for job in found
    ]  # fmt: skip
    return Fetched(jobs, found.delivery.lease_ms if jobs else 0)


@routes.post("/ack")
async def ack(context: ApiContext, ask: AckAsk) -> ChangeCount:
    """A job is done; the reply is sent once that is safe on disk. 409 if the lease has ended."""
    result = None if ask.result is None else encode_value(python_value(ask.result))
    return await _settle(context, ask, ACK, result=result)


@routes.post("/nack")
async def nack(context: ApiContext, ask: NackAsk) -> ChangeCount:
    """A job failed: it is retried or dies. 409 if the lease has ended."""
    delay_ms = -1 if ask.delay_s is None else int(ask.delay_s * 1_000)
    return await _settle(context, ask, NACK if ask.retry else REJECT, ask.reason, delay_ms)


@routes.post("/release")
async def release(context: ApiContext, ask: HeldAsk) -> ChangeCount:
    """Give a job back unworked, without counting an attempt."""
    return await _settle(context, ask, RELEASE)


@routes.post("/extend")
async def extend(context: ApiContext, ask: ExtendAsk) -> ChangeCount:
    """Let the lease of fetched jobs last longer. 409 if it has ended."""
    request = RenewLeases(ask.queue, [int(ask.lease)], int((ask.lease_s or 0) * 1_000))
    if await context.ask(Op.Q_RENEW, request, list[int]):
        raise LeaseLost("the lease has ended: the jobs may run again elsewhere")
    return ChangeCount()


async def _settle(
    context: ApiContext, ask: HeldAsk, how: JobOutcome, reason: str = "",
    delay_ms: int = -1, result: bytes | None = None,
) -> ChangeCount:  # fmt: skip
    if (token := int(ask.lease)) >= 2**64:
        raise InvalidInput("lease is not the token of a lease")
    _, number = unpack_id(parse_id(ask.id))
    results = {} if result is None else {number: result}
    settled = Settled(token, [number, number + 1], results)
    request = SettleJobs(ask.queue, how, [settled], reason, delay_ms)
    reply = await context.client.link(Broker.QUEUE).call(Op.Q_SETTLE, encode(request))
    if reply and decode(reply, list[Any]):
        raise LeaseLost("the lease has ended: the job may run again elsewhere")
    return ChangeCount()
