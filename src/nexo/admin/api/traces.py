"""The history of one message: published, delivered, finished, as far as the brokers know."""

from __future__ import annotations

from typing import Literal

import msgspec

from nexo.admin.api.groups import ordered_groups
from nexo.admin.api.pubsub import MOST_ROWS, OneTopic
from nexo.admin.api.records import RecordAsk
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes
from nexo.model.patterns import SHARE, check_topic, matches
from nexo.model.pubsub import SubscriptionInfo
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

routes = ApiRoutes("Traces")


class GroupTrace(msgspec.Struct):
    """The state of a record in one group."""

    group: str
    mode: Literal["shared", "ordered"]
    state: Literal["unread", "in_flight", "delayed", "waiting", "parked", "finished"]
    """``delayed`` and ``waiting`` are to be delivered again."""
    attempts: int = 0
    """Deliveries that counted; of a record in flight, with this one."""
    consumer: str | None = None
    """The consumer that holds it; in an ordered group, the one that reads its partition."""
    until_ms: int | None = None
    """When the lease ends, or the delay is over."""
    parked_ms: int | None = None
    reason: str = ""


class RecordTrace(msgspec.Struct):
    """A record on its way through the groups of its stream."""

    groups: list[GroupTrace]


class TopicTrace(msgspec.Struct):
    """The present receivers of a topic; deliveries of the past are not kept."""

    subscriptions: list[SubscriptionInfo]


@routes.get("/stream/trace")
async def record_trace(context: ApiContext, ask: RecordAsk) -> RecordTrace:
    """The state of one record in each group of its stream."""
    request = wire.GroupsAsk(stream=ask.stream, record=(ask.partition, ask.offset))
    infos = await context.ask(Op.S_GROUPS, request, list[wire.GroupInfo])
    shared = [_shared(info.name, info.record) for info in infos if info.record is not None]
    ordered = [
        GroupTrace(
            view.name, "ordered",
            "finished" if ask.offset < view.partitions[ask.partition].floor else "unread",
            consumer=view.partitions[ask.partition].owner,
        )
        for view in await ordered_groups(context, ask.stream)
    ]  # fmt: skip
    return RecordTrace(shared + ordered)


def _shared(group: str, found: wire.RecordState) -> GroupTrace:
    fields = msgspec.structs.asdict(found)
    return msgspec.convert({"group": group, "mode": "shared", **fields}, GroupTrace)


@routes.get("/pubsub/trace")
async def topic_trace(context: ApiContext, ask: OneTopic) -> TopicTrace:
    """The subscriptions whose pattern matches a topic."""
    check_topic(ask.topic)
    rows = await context.client.pubsub.subscriptions(limit=MOST_ROWS)
    found = [row for row in rows if matches(_bare(row.pattern), ask.topic)]
    return TopicTrace(found[:500])


def _bare(pattern: str) -> str:
    """The pattern of a shared subscription, without its group."""
    return pattern.split("/", 2)[-1] if pattern.startswith(SHARE) else pattern
