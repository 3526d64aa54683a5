"""The cron schedules of a queue."""

from __future__ import annotations

from typing import Annotated

import msgspec

from nexo.admin.api.paging import JobKey, Name, Priority
from nexo.admin.api.queue import OneQueue
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, Done
from nexo.admin.values import NewValue, python_value
from nexo.model.queue import Schedule

routes = ApiRoutes("Queue", "/queue")


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


@routes.get("/schedules")
async def schedules(context: ApiContext, ask: OneQueue) -> list[Schedule]:
    """The queue's cron schedules."""
    return await context.client.queue(ask.queue).cron.list()


@routes.post("/schedule")
async def schedule(context: ApiContext, ask: ScheduleAsk) -> NextFiring:
    """Push a job whenever a cron expression matches."""
    crons = context.client.queue(ask.queue).cron
    value = python_value(ask.value)
    next_ms = await crons.set(
        ask.name, ask.cron, value, priority=ask.priority, key=ask.key, timezone=ask.timezone
    )
    return NextFiring(next_ms)


@routes.post("/unschedule")
async def unschedule(context: ApiContext, ask: ScheduleName) -> Done:
    """Remove a schedule."""
    await context.client.queue(ask.queue).cron.delete(ask.name)
    return Done()
