"""The whole server at a glance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, Nothing
from nexo.admin.watching.alerts import Alert
from nexo.admin.watching.history import step
from nexo.admin.watching.request_times import RequestView
from nexo.admin.watching.survey import BrokerSurvey
from nexo.admin.watching.watch import BrokerWatch
from nexo.model import Broker
from nexo.version import __version__

routes = ApiRoutes("Overview")

TOP = 8
POINTS = 360


class BrokerView(msgspec.Struct):
    """One broker now."""

    name: str
    up: bool
    error: str | None
    changed_ms: int
    """When it last went up or down."""
    numbers: dict[str, float | None]
    """Rates per second and levels, by name."""
    disk: dict[str, Any]
    pid: int | None
    requests: list[RequestView]
    """Kinds of requests in the last minute, the most frequent first."""


class TopQueue(msgspec.Struct):
    """A queue with much to do."""

    name: str
    waiting: int
    working: int
    scheduled: int
    dead: int
    paused: bool
    pushed_per_s: float
    finished_per_s: float


class TopStream(msgspec.Struct):
    """A stream with much traffic."""

    name: str
    partitions: int
    offsets: int
    """From the first to the next of each partition: no fewer than it has records."""
    bytes: int
    groups: int
    lag: int
    published_per_s: float


class TopGroup(msgspec.Struct):
    """A group that is far behind."""

    stream: str
    name: str
    kind: str
    lag: int
    in_flight: int
    parked: int
    consumers: int
    finished_per_s: float
    lags: list[float | None]
    """The lag in each second of the last minute."""


class Overview(msgspec.Struct):
    """The server now."""

    version: str
    now_ms: int
    user: str | None
    brokers: list[BrokerView]
    alerts: list[Alert]
    alerts_total: int
    """Higher than the number listed where one alert sums up many."""
    round_s: float | None
    """How often each queue and stream is checked for alerts; null before the first round."""
    queues: list[TopQueue]
    streams: list[TopStream]
    groups: list[TopGroup]
    replica_role: str | None = None
    """``leader``, ``standby`` or ``starting``; null if this server does not replicate."""


class HistoryAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which numbers, and how far back."""

    broker: Literal["store", "pubsub", "queue", "stream"]
    names: str = ""
    """Comma-separated; all of the broker if left out."""
    seconds: Annotated[int, msgspec.Meta(ge=1, le=3_600)] = 3_600
    points: Annotated[int, msgspec.Meta(ge=1, le=POINTS)] = 180


class History(msgspec.Struct):
    """Numbers over time, oldest first; null where they were not known."""

    end_ms: int
    step_s: int
    """How much time one point covers."""
    series: dict[str, list[float | None]]


@routes.get("/overview")
async def overview(context: ApiContext, ask: Nothing) -> Overview:
    """The server now: brokers, alerts, the busiest queues and streams."""
    return await current(context)


@routes.live("/live")
async def live(context: ApiContext, ask: Nothing) -> AsyncIterator[Overview]:
    """The overview, once a second, as server-sent events."""
    while True:
        yield await current(context)
        await context.sampler.next_sample()


@routes.get("/history")
async def history(context: ApiContext, ask: HistoryAsk) -> History:
    """The last hour of a broker's numbers."""
    broker = Broker[ask.broker.upper()]
    await context.check_watchable(broker)
    watch = context.sampler.brokers[broker]
    names = [name for name in ask.names.split(",") if name in watch.series]
    chosen = names if ask.names else watch.series
    series = {name: watch.series[name].means(ask.seconds, ask.points) for name in chosen}
    step_s = step(len(watch.series["connections"].tail(ask.seconds)), ask.points)
    return History(context.sampler.sampled_ms, step_s, series)


async def current(context: ApiContext) -> Overview:
    """The newest overview, as far as the caller may see it."""
    sampler, allowed = context.sampler, await context.watchable()
    labels = {broker.label for broker in allowed}
    alerts = [alert for alert in sampler.alerts if alert.broker in labels]
    return Overview(
        __version__,
        sampler.sampled_ms,
        context.user,
        [_broker(watch) for broker, watch in sampler.brokers.items() if broker in allowed],
        alerts,
        sum(alert.count for alert in alerts),
        sampler.survey.round_s,
        _queues(sampler.survey, await context.visible(Broker.QUEUE)),
        _streams(sampler.survey, await context.visible(Broker.STREAM)),
        _groups(context) if Broker.STREAM in allowed else [],
        sampler.replica.role if sampler.replica is not None else None,
    )


def _broker(watch: BrokerWatch) -> BrokerView:
    numbers = {name: series.last for name, series in watch.series.items()}
    status = watch.status if watch.up else {}
    pid = status.get("process", {}).get("pid")
    name = watch.broker.label
    disk, requests = status.get("disk", {}), watch.requests.rows() if watch.up else []
    return BrokerView(name, watch.up, watch.error, watch.changed_ms, numbers, disk, pid, requests)


def _queues(survey: BrokerSurvey, visible: frozenset[str] | None) -> list[TopQueue]:
    return [
        TopQueue(
            watch.info.name, watch.info.waiting, watch.info.working, watch.info.scheduled,
            watch.info.dead, watch.info.paused, watch.pushed.series.last or 0.0,
            watch.finished.series.last or 0.0,
        )
        for watch in survey.top_queues(TOP, visible)
    ]  # fmt: skip


def _streams(survey: BrokerSurvey, visible: frozenset[str] | None) -> list[TopStream]:
    return [
        TopStream(
            watch.info.name, watch.info.partitions, watch.info.offsets, watch.info.bytes,
            watch.info.groups, survey.lags.get(watch.info.name, 0),
            watch.published.series.last or 0.0,
        )
        for watch in survey.top_streams(TOP, visible)
    ]  # fmt: skip


def _groups(context: ApiContext) -> list[TopGroup]:
    return [
        TopGroup(
            watch.info.stream, watch.info.name, watch.info.kind, watch.info.lag,
            watch.info.in_flight, watch.info.parked, watch.info.consumers,
            watch.finished.series.last or 0.0, watch.lag.tail(60),
        )
        for watch in context.sampler.survey.late_groups[:TOP]
    ]  # fmt: skip
