"""Queues: their jobs, dead letters and schedules."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nexo.admin.api.paging import Limit, Name, Search, Seconds, Skip, matching
from nexo.admin.desk import Desk
from nexo.admin.routes import Done, Routes
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown
from nexo.client.queue_views import QueueInfo, Schedule
from nexo.errors import NotFound
from nexo.model import Broker, check_name
from nexo.protocol.ops import Op
from nexo.protocol.queue import Declare, Jobs, Page, Update, decode, encode

routes = Routes("Queue", "/queue")

Sort: TypeAlias = Literal["name", "waiting", "working", "scheduled", "dead", "pushed_total"]
Id: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class QueuesAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which queues."""

    search: Search = ""
    sort: Sort = "name"
    limit: Limit = 50
    offset: Skip = 0


class QueueRow(msgspec.Struct):
    """A queue now."""

    info: QueueInfo
    pushed_per_s: float | None
    finished_per_s: float | None
    pushed: list[float | None]
    """Pushes per second of the last minute."""


class QueuePage(msgspec.Struct):
    """Queues."""

    queues: list[QueueRow]
    total: int


class OneQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue."""

    queue: Name


class JobsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which jobs."""

    queue: Name
    state: Literal["waiting", "scheduled", "dead"] = "waiting"
    limit: Limit = 50
    offset: Skip = 0


class JobRow(msgspec.Struct):
    """A job that waits, is scheduled or is dead."""

    id: str
    value: Value
    priority: int
    key: str | None
    pushed_ms: int
    due_ms: int
    attempts: int
    history: list[tuple[int, str]]
    reason: str | None = None
    """Why it is dead: ``nack``, ``rejected`` or ``timeout``."""
    died_ms: int | None = None
    error: str | None = None


class JobPage(msgspec.Struct):
    """Jobs: waiting in their order, scheduled the soonest first, dead the newest first."""

    jobs: list[JobRow]
    total: int


class JobAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A job."""

    queue: Name
    id: Id


class JobView(msgspec.Struct):
    """Where a job is."""

    state: str
    failures: int
    error: str | None
    progress: Any
    result: Any


class OptionsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A queue's options, named as ``/queue`` shows them."""

    queue: Name
    options: dict[str, Any] = {}


class PushAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A job to push."""

    queue: Name
    value: NewValue
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    delay_s: Seconds = 0
    ttl_s: Seconds = 0
    key: Annotated[str, msgspec.Meta(max_length=1_024)] | None = None
    dedup_key: Annotated[str, msgspec.Meta(max_length=1_024)] | None = None


class Pushed(msgspec.Struct):
    """The new job."""

    id: str


class IdsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Some jobs, or all for null."""

    queue: Name
    ids: Annotated[list[Id], msgspec.Meta(max_length=10_000)] | None


class SomeIds(msgspec.Struct, forbid_unknown_fields=True):
    """Some jobs."""

    queue: Name
    ids: Annotated[list[Id], msgspec.Meta(max_length=10_000)]


class ScheduleAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule, which replaces one of the same name."""

    queue: Name
    name: Name
    cron: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """Five fields, in UTC."""
    value: NewValue
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    key: Annotated[str, msgspec.Meta(max_length=1_024)] | None = None


class ScheduleName(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule of a queue."""

    queue: Name
    name: Name


class Scheduled(msgspec.Struct):
    """When a schedule fires next."""

    next_ms: int


# -- looking --------------------------------------------------------------------------


@routes.get("/list")
async def queues(desk: Desk, ask: QueuesAsk) -> QueuePage:
    """A page of queues with their counts."""
    found = matching(await desk.client.queues(), ask.search, lambda info: info.name)
    if ask.sort != "name":
        found.sort(key=lambda info: (-getattr(info, ask.sort), info.name))
    shown_rows = found[ask.offset : ask.offset + ask.limit]
    return QueuePage([_row(desk, info) for info in shown_rows], len(found))


def _row(desk: Desk, info: QueueInfo) -> QueueRow:
    watch = desk.sampler.queues.get(info.name)
    if watch is None:
        return QueueRow(info, None, None, [])
    pushed = watch.pushed.series
    return QueueRow(info, pushed.last, watch.finished.series.last, pushed.tail(60))


@routes.get("/info")
async def info(desk: Desk, ask: OneQueue) -> QueueRow:
    """A queue's options and counts."""
    return _row(desk, await desk.client.queue(ask.queue).info())


@routes.get("/jobs")
async def jobs(desk: Desk, ask: JobsAsk) -> JobPage:
    """A page of waiting, scheduled or dead jobs with the beginning of their values."""
    counts = await desk.client.queue(ask.queue).info()
    link = desk.link(Broker.QUEUE)
    if ask.state == "dead":
        request = encode(Page(ask.queue, ask.limit, ask.offset))
        page = decode(await link.call(Op.Q_DLQ_LIST, request) or b"", dict[str, Any])
        return JobPage([_job(row) for row in page["jobs"]], page["total"])
    request = encode(Page(ask.queue, ask.limit, ask.offset, ask.state))
    rows = decode(await link.call(Op.Q_PEEK, request) or b"", list[dict[str, Any]])
    return JobPage([_job(row) for row in rows], getattr(counts, ask.state))


def _job(row: dict[str, Any]) -> JobRow:
    history = [(at_ms, error) for at_ms, error in row["history"]]
    return JobRow(**row | {"value": shown(row["value"], WHOLE_BYTES // 32), "history": history})


@routes.get("/job")
async def job(desk: Desk, ask: JobAsk) -> JobView:
    """Where a job is, what it said of itself and what it returned."""
    state = await desk.client.queue(ask.queue).job(ask.id)
    return JobView(
        state.state, state.failures, state.error, _plain(state.progress), _plain(state.result)
    )


def _plain(value: Any) -> Any:
    return f"{len(value)} bytes" if isinstance(value, bytes) else value


@routes.get("/schedules")
async def schedules(desk: Desk, ask: OneQueue) -> list[Schedule]:
    """The queue's cron schedules."""
    return await desk.client.queue(ask.queue).cron.list()


# -- the queue ------------------------------------------------------------------------


@routes.post("/create")
async def create(desk: Desk, ask: OptionsAsk) -> Done:
    """Create a queue."""
    request = Declare(check_name(ask.queue, "queue name"), ask.options)
    await desk.link(Broker.QUEUE).call(Op.Q_DECLARE, encode(request))
    return Done()


@routes.post("/update")
async def update(desk: Desk, ask: OptionsAsk) -> Done:
    """Change options while the queue runs."""
    await desk.link(Broker.QUEUE).call(Op.Q_UPDATE, encode(Update(ask.queue, ask.options)))
    return Done()


@routes.post("/delete")
async def delete(desk: Desk, ask: OneQueue) -> Done:
    """Remove a queue with all its jobs."""
    if not await desk.client.queue(ask.queue).delete():
        raise NotFound(f"there is no queue {ask.queue!r}")
    return Done()


@routes.post("/purge")
async def purge(desk: Desk, ask: OneQueue) -> Done:
    """Remove every job that waits or is scheduled."""
    return Done(await desk.client.queue(ask.queue).purge())


@routes.post("/pause")
async def pause(desk: Desk, ask: OneQueue) -> Done:
    """Deliver nothing until it is resumed."""
    await desk.client.queue(ask.queue).pause()
    return Done()


@routes.post("/resume")
async def resume(desk: Desk, ask: OneQueue) -> Done:
    """Deliver again."""
    await desk.client.queue(ask.queue).resume()
    return Done()


# -- jobs -----------------------------------------------------------------------------


@routes.post("/push")
async def push(desk: Desk, ask: PushAsk) -> Pushed:
    """Push a job."""
    job_id = await desk.client.queue(ask.queue).push(
        python_value(ask.value),
        priority=ask.priority,
        delay=ask.delay_s,
        ttl=ask.ttl_s,
        key=ask.key,
        dedup_key=ask.dedup_key,
    )
    return Pushed(job_id)


@routes.post("/cancel")
async def cancel(desk: Desk, ask: SomeIds) -> Done:
    """Remove jobs that have not started."""
    return await _act(desk, Op.Q_CANCEL_JOB, ask)


@routes.post("/replay")
async def replay(desk: Desk, ask: IdsAsk) -> Done:
    """Let dead letters run again, from the first attempt."""
    return await _act(desk, Op.Q_DLQ_REPLAY, ask)


@routes.post("/discard")
async def discard(desk: Desk, ask: IdsAsk) -> Done:
    """Remove dead letters for good."""
    return await _act(desk, Op.Q_DLQ_DELETE, ask)


async def _act(desk: Desk, op: Op, ask: IdsAsk | SomeIds) -> Done:
    reply = await desk.link(Broker.QUEUE).call(op, encode(Jobs(ask.queue, ask.ids)))
    return Done(decode(reply or b"", int))


# -- schedules ------------------------------------------------------------------------


@routes.post("/schedule")
async def schedule(desk: Desk, ask: ScheduleAsk) -> Scheduled:
    """Push a job whenever a cron expression matches."""
    crons = desk.client.queue(ask.queue).cron
    value = python_value(ask.value)
    return Scheduled(await crons.set(ask.name, ask.cron, value, priority=ask.priority, key=ask.key))


@routes.post("/unschedule")
async def unschedule(desk: Desk, ask: ScheduleName) -> Done:
    """Remove a schedule."""
    await desk.client.queue(ask.queue).cron.delete(ask.name)
    return Done()
