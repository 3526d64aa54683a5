"""Queues as a whole: their counts, options and cron schedules."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import (
    ApiRoutes,
    ChangeCount,
    JobKey,
    Limit,
    Name,
    Nothing,
    Priority,
    SearchAsk,
    page,
)
from nexo.admin.options import Known, Option
from nexo.admin.values import NewValue, python_value
from nexo.admin.watching.survey import queue_rank
from nexo.admin.watching.watch import QueueWatch
from nexo.errors import NotFound
from nexo.model import Broker, check_name
from nexo.model.queue import QueueInfo, QueueSurvey, Schedule
from nexo.options.queue import QueueOptions
from nexo.protocol.ops import Op
from nexo.protocol.queue import Declare, Update
from nexo.protocol.server import SurveyAsk

routes = ApiRoutes("Queue", "/queue")

OPTIONS = Known(QueueOptions, "queue")

QueueSort: TypeAlias = Literal[
    "name", "activity", "waiting", "working", "scheduled", "dead", "pushed_total"
]


class QueuesAsk(SearchAsk):
    """Which queues."""

    sort: QueueSort = "name"
    limit: Limit = 50


class QueueRow(msgspec.Struct):
    """A queue now."""

    info: QueueInfo
    pushed_per_s: float | None
    finished_per_s: float | None
    pushed: list[float | None]
    """Pushes per second of the last minute."""
    finished: list[float | None]
    """Jobs per second that ended, well or not."""


class QueuePage(msgspec.Struct):
    """Queues."""

    queues: list[QueueRow]
    total: int


class OneQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue."""

    queue: Name


class OptionsAsk(OneQueue):
    """Some options of a queue; the others stay, or are the defaults."""

    options: Annotated[dict[str, Any], OPTIONS.schema] = {}
    """As ``/queue/options`` describes them; durations may be written as ``30s`` or ``7d``."""


@routes.get("/list")
async def queues(context: ApiContext, ask: QueuesAsk) -> QueuePage:
    """A page of queues with their counts; sorted by a count, as of the last few seconds.

    ``activity`` is what happens most: pushes, then waiting jobs.
    """
    match ask.sort:
        case "activity" if context.sampler.survey.round_s is not None:
            infos, total = await _by_activity(context, ask)
        case "name" | "activity":
            infos, total = await _by_name(context, ask)
        case _:
            infos, total = await _by_count(context, ask)
    return QueuePage([_row(context, info) for info in infos], total)


async def _by_name(context: ApiContext, ask: QueuesAsk) -> tuple[list[QueueInfo], int]:
    request = SurveyAsk(position=ask.offset, limit=ask.limit, by_name=True, search=ask.search)
    found = await context.ask(Op.Q_SURVEY, request, QueueSurvey)
    return found.queues, found.total


async def _by_count(context: ApiContext, ask: QueuesAsk) -> tuple[list[QueueInfo], int]:
    watches = context.sampler.survey.queues.of(await context.visible(Broker.QUEUE))
    infos = [watch.info for watch in watches]
    infos.sort(key=lambda info: (-getattr(info, ask.sort), info.name))
    return page(infos, ask, lambda info: info.name)


async def _by_activity(context: ApiContext, ask: QueuesAsk) -> tuple[list[QueueInfo], int]:
    """The order is that of a moment ago, what is shown is of now."""
    watches = context.sampler.survey.queues.of(await context.visible(Broker.QUEUE))
    watches.sort(key=lambda watch: watch.info.name)
    watches.sort(key=queue_rank, reverse=True)
    chosen, total = page([watch.info.name for watch in watches], ask, str)
    infos = await asyncio.gather(*(_info(context, name) for name in chosen))
    return [info for info in infos if info is not None], total


async def _info(context: ApiContext, name: str) -> QueueInfo | None:
    try:
        return await context.client.queue(name).info()
    except NotFound:
        return None  # deleted meanwhile


def _row(context: ApiContext, info: QueueInfo) -> QueueRow:
    watch = context.sampler.survey.queues.watches.get(info.name) or QueueWatch(info)
    pushed, finished = watch.pushed.series, watch.finished.series
    return QueueRow(info, pushed.last, finished.last, pushed.tail(60), finished.tail(60))


@routes.get("/info")
async def info(context: ApiContext, ask: OneQueue) -> QueueRow:
    """A queue's options and counts."""
    return _row(context, await context.client.queue(ask.queue).info())


@routes.get("/options")
async def options(context: ApiContext, ask: Nothing) -> list[Option]:
    """The options that queues have."""
    return OPTIONS.shown(context.place.settings.queue_options)


@routes.post("/create")
async def create(context: ApiContext, ask: OptionsAsk) -> ChangeCount:
    """Create a queue."""
    with OPTIONS.refusals():
        request = Declare(check_name(ask.queue, "queue name"), OPTIONS.read(ask.options))
        await context.ask(Op.Q_DECLARE, request, QueueInfo)
    return ChangeCount()


@routes.post("/update")
async def update(context: ApiContext, ask: OptionsAsk) -> ChangeCount:
    """Change options while the queue runs."""
    with OPTIONS.refusals():
        await context.ask(Op.Q_UPDATE, Update(ask.queue, OPTIONS.read(ask.options)), QueueInfo)
    return ChangeCount()


@routes.post("/delete")
async def delete(context: ApiContext, ask: OneQueue) -> ChangeCount:
    """Remove a queue with all its jobs."""
    if not await context.client.queue(ask.queue).delete():
        raise NotFound(f"queue {ask.queue!r} not found")
    return ChangeCount()


@routes.post("/purge")
async def purge(context: ApiContext, ask: OneQueue) -> ChangeCount:
    """Remove every job that waits or is scheduled."""
    return ChangeCount(await context.client.queue(ask.queue).purge())


@routes.post("/pause")
async def pause(context: ApiContext, ask: OneQueue) -> ChangeCount:
    """Deliver nothing until it is resumed."""
    await context.client.queue(ask.queue).pause()
    return ChangeCount()


@routes.post("/resume")
async def resume(context: ApiContext, ask: OneQueue) -> ChangeCount:
    """Deliver again."""
    await context.client.queue(ask.queue).resume()
    return ChangeCount()


# -- cron schedules ------------------------------------------------------------------


class ScheduleName(OneQueue):
    """A schedule of a queue."""

    name: Name


class ScheduleAsk(ScheduleName):
    """A schedule, which replaces one of the same name."""

    cron: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """Five fields."""
    value: NewValue
    priority: Priority = 0
    key: JobKey | None = None
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Whose local time it is in, such as ``Europe/Rome``; empty for UTC."""


class NextFiring(msgspec.Struct):
    """When a schedule fires next."""

    next_ms: int


@routes.get("/cron/list")
async def list_crons(context: ApiContext, ask: OneQueue) -> list[Schedule]:
    """The queue's cron schedules."""
    return await context.client.queue(ask.queue).cron.list()


@routes.post("/cron/set")
async def set_cron(context: ApiContext, ask: ScheduleAsk) -> NextFiring:
    """Push a job whenever a cron expression matches."""
    crons = context.client.queue(ask.queue).cron
    value = python_value(ask.value)
    next_ms = await crons.set(
        ask.name, ask.cron, value, priority=ask.priority, key=ask.key, timezone=ask.timezone
    )
    return NextFiring(next_ms)


@routes.post("/cron/delete")
async def delete_cron(context: ApiContext, ask: ScheduleName) -> ChangeCount:
    """Delete a schedule."""
    if not await context.client.queue(ask.queue).cron.delete(ask.name):
        raise NotFound(f"queue {ask.queue!r} has no schedule {ask.name!r}")
    return ChangeCount()
