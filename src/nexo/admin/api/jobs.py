"""The jobs of a queue: waiting, working, scheduled and dead ones; push."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nexo.admin.api.connections import ConnectionRow, peers
from nexo.admin.api.queue import OneQueue
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, ChangeCount, JobKey, Limit, Priority, Seconds, Skip
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown
from nexo.client.views import read_headers
from nexo.errors import Forbidden
from nexo.model import Broker
from nexo.model.queue import JobState
from nexo.protocol.ops import Op
from nexo.protocol.queue import Jobs, PeekJobs

routes = ApiRoutes("Queue", "/queue")

JobId: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
JobIds: TypeAlias = Annotated[list[JobId], msgspec.Meta(max_length=10_000)]
State: TypeAlias = Literal["waiting", "working", "scheduled", "dead"]


class JobsAsk(OneQueue):
    """Which jobs."""

    state: State = "waiting"
    limit: Limit = 50
    offset: Skip = 0


class JobRow(msgspec.Struct):
    """A job that is not done."""

    id: str
    value: Value
    priority: int
    key: str | None
    pushed_ms: int
    due_ms: int
    attempts: int
    history: list[tuple[int, str]]
    headers: dict[str, Any]
    """The headers that it was pushed with."""
    cause: str | None = None
    """How it died: ``nack``, ``rejected``, ``timeout``, or ``lost`` with its worker."""
    died_ms: int | None = None
    reason: str | None = None
    """Why it failed the last time."""
    holder: str | None = None
    """Of a job in work: who holds it."""
    holder_id: int | None = None
    """The connection's number, as ``/connections`` lists it."""
    lease_ms: int | None = None
    expires_ms: int | None = None
    """When its holder loses it, unless renewed."""


class JobPage(msgspec.Struct):
    """Jobs: waiting in their order, in work the longest first, scheduled the soonest first, dead
    the newest first.
    """

    jobs: list[JobRow]
    total: int


class JobAsk(OneQueue):
    """A job."""

    id: JobId


class PushAsk(OneQueue):
    """A job to push."""

    value: NewValue
    priority: Priority = 0
    delay_s: Seconds = 0
    ttl_s: Seconds = 0
    key: JobKey | None = None
    dedup_key: JobKey | None = None
    headers: dict[str, Any] | None = None


class PushedJob(msgspec.Struct):
    """The new job."""

    id: str


class IdsAsk(OneQueue):
    """Some jobs, or all for null."""

    ids: JobIds | None


class SomeIds(OneQueue):
    """Some jobs."""

    ids: JobIds


@routes.get("/jobs")
async def jobs(context: ApiContext, ask: JobsAsk) -> JobPage:
    """A page of waiting, working, scheduled or dead jobs with the beginning of their values."""
    counts = await context.client.queue(ask.queue).info()
    if ask.state == "dead":
        request = PeekJobs(ask.queue, ask.limit, ask.offset)
        page = await context.ask(Op.Q_DLQ_LIST, request, dict[str, Any])
        return JobPage([_job(row) for row in page["jobs"]], page["total"])
    request = PeekJobs(ask.queue, ask.limit, ask.offset, ask.state)
    rows = await context.ask(Op.Q_PEEK, request, list[dict[str, Any]])
    found = [_job(row) for row in rows]
    if ask.state == "working" and found:
        await _name_holders(context, found)
    return JobPage(found, getattr(counts, ask.state))


def _job(row: dict[str, Any]) -> JobRow:
    history = [(at_ms, reason) for at_ms, reason in row["history"]]
    given = row | {"value": shown(row["value"], WHOLE_BYTES // 32), "history": history}
    given["headers"] = read_headers(row["headers"])
    given["holder_id"] = given.pop("holder", None)
    return JobRow(**given)


async def _name_holders(context: ApiContext, found: list[JobRow]) -> None:
    """Connections have names, if the caller may see them."""
    try:
        known = {peer.id: peer for peer in await peers(context, Broker.QUEUE)}
    except Forbidden:
        known = {}
    for row in found:
        peer = known.get(row.holder_id or 0)
        row.holder = _holder(peer) if peer else f"connection {row.holder_id}"


def _holder(peer: ConnectionRow) -> str:
    return f"{peer.user}@{peer.name}" if peer.user else peer.name


@routes.get("/job")
async def job(context: ApiContext, ask: JobAsk) -> JobState:
    """The state of a job, its progress and its result."""
    state = await context.client.queue(ask.queue).job(ask.id)
    return replace(state, progress=_plain(state.progress), result=_plain(state.result))


def _plain(value: Any) -> Any:
    return f"{len(value)} bytes" if isinstance(value, bytes) else value


@routes.post("/push")
async def push(context: ApiContext, ask: PushAsk) -> PushedJob:
    """Push a job."""
    job_id = await context.client.queue(ask.queue).push(
        python_value(ask.value),
        priority=ask.priority,
        delay=ask.delay_s,
        ttl=ask.ttl_s,
        key=ask.key,
        dedup_key=ask.dedup_key,
        headers=ask.headers,
    )
    return PushedJob(job_id)


@routes.post("/cancel")
async def cancel(context: ApiContext, ask: SomeIds) -> ChangeCount:
    """Remove jobs that have not started."""
    return await _act(context, Op.Q_CANCEL_JOB, ask, ask.ids)


@routes.post("/dlq/replay")
async def replay_dead(context: ApiContext, ask: IdsAsk) -> ChangeCount:
    """Let dead letters run again, from the first attempt."""
    return await _act(context, Op.Q_DLQ_REPLAY, ask, ask.ids)


@routes.post("/dlq/delete")
async def delete_dead(context: ApiContext, ask: SomeIds) -> ChangeCount:
    """Delete dead letters for good."""
    return await _act(context, Op.Q_DLQ_DELETE, ask, ask.ids)


@routes.post("/dlq/purge")
async def purge_dead(context: ApiContext, ask: OneQueue) -> ChangeCount:
    """Delete all dead letters for good."""
    return await _act(context, Op.Q_DLQ_DELETE, ask, None)


async def _act(context: ApiContext, op: Op, ask: OneQueue, ids: list[str] | None) -> ChangeCount:
    return ChangeCount(await context.ask(op, Jobs(ask.queue, ids), int))
