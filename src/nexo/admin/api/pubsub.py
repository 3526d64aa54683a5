"""Topics: subscribers, retained messages, live messages; publish."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypeAlias

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, ChangeCount, SearchAsk, Seconds, matching, page
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown
from nexo.client._async.pubsub.subscription import Subscription
from nexo.client.pubsub_message import Message
from nexo.errors import InvalidInput, NotFound
from nexo.model import Broker
from nexo.model.patterns import check_topic
from nexo.model.pubsub import SubscriptionInfo
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Listing

routes = ApiRoutes("Pub/Sub", "/pubsub")

MOST_ROWS = 10_000
_MOST_ACTIVE = 1_000
"""Topics in use that are shown; asking for them must not hold the broker up."""
_PAUSE_S = 0.25
"""A live view gets its messages in groups, at most this often."""
_PATIENCE_S = 15.0
"""A live view with nothing to show says so this often, so that a lost reader is noticed."""
_PER_EVENT = 200

TopicName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]


class TopicRow(msgspec.Struct):
    """A topic that had messages or retains one, or a pattern with subscribers."""

    topic: str
    messages: int | None = None
    """Published as far as the broker remembers; null for patterns."""
    per_s: float | None = None
    """As of the last two looks."""
    subscribers: int = 0
    waiting: int = 0
    dropped: int = 0
    retained_bytes: int | None = None
    expires_ms: int | None = None


class LevelRow(msgspec.Struct):
    """A level of topics, with the sums of all topics and patterns at it and below."""

    path: str
    topics: int = 0
    messages: int | None = None
    per_s: float | None = None
    subscribers: int = 0
    dropped: int = 0


class TopicPage(msgspec.Struct):
    """Topics and patterns in order."""

    topics: list[TopicRow]
    total: int
    levels: list[LevelRow]
    """Every level above the topics of this page; the sums are over all pages."""
    complete: bool
    """Whether these are all topics; if not, they are those that were used last."""


class SubscriptionPage(msgspec.Struct):
    """Subscriptions, the most troubled first."""

    subscriptions: list[SubscriptionInfo]
    total: int


class OneTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic."""

    topic: TopicName


class MessageView(msgspec.Struct):
    """A message."""

    topic: str
    value: Value
    timestamp_ms: int
    retained: bool
    headers: dict[str, Any] = {}


class PublishMessageAsk(OneTopic):
    """A message to publish."""

    value: NewValue
    retain: bool = False
    ttl_s: Seconds | None = None
    """Of a retained message."""
    headers: dict[str, Any] | None = None


class TailAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A pattern to watch."""

    pattern: TopicName = "#"
    retained: bool = False
    """Begin with the retained messages that match."""


class Tail(msgspec.Struct):
    """Messages that came since the last event."""

    messages: list[MessageView]
    skipped: int
    """Messages since the start that arrived too fast to be shown."""


@routes.get("/topics")
async def topics(context: ApiContext, ask: SearchAsk) -> TopicPage:
    """Topics in use, topics that retain a message, patterns that someone subscribes to."""
    rows: dict[str, TopicRow] = {}
    used = await context.ask(Op.PS_TOPICS, Listing(limit=_MOST_ACTIVE), list[dict[str, Any]])
    counts: dict[str, int] = {row["topic"]: row["messages"] for row in used}
    # Rates compare with the last look of any caller, so only looks at all topics count.
    whole = Broker.PUBSUB in await context.watchable()
    rates = context.sampler.topics.looked(counts, time.monotonic()) if whole else {}
    for topic, messages in counts.items():
        rows[topic] = TopicRow(topic, messages, rates.get(topic))
    for one in await context.client.pubsub.retained("#", limit=MOST_ROWS):
        row = rows.setdefault(one.topic, TopicRow(one.topic))
        row.retained_bytes, row.expires_ms = one.bytes, one.expires_ms
    for each in await context.client.pubsub.subscriptions(limit=MOST_ROWS):
        row = rows.setdefault(each.pattern, TopicRow(each.pattern))
        row.subscribers += 1
        row.waiting += each.waiting
        row.dropped += each.dropped
    found = matching(sorted(rows.values(), key=_topic), ask.search, _topic)
    shown = found[ask.offset : ask.offset + ask.limit]
    complete = len(counts) < _MOST_ACTIVE and len(rows) < MOST_ROWS
    return TopicPage(shown, len(found), _levels(found, shown), complete)


def _levels(found: list[TopicRow], page: list[TopicRow]) -> list[LevelRow]:
    """The sums of the levels that a page shows, over everything found."""
    levels = {path: LevelRow(path) for row in page for path in _above(row.topic)}
    for row in found:
        for path in _above(row.topic):
            if path in levels:
                _add(levels[path], row)
    return list(levels.values())


def _above(topic: str) -> Iterator[str]:
    """The topic itself and every level above it."""
    yield topic
    while "/" in topic:
        topic = topic.rpartition("/")[0]
        yield topic


def _add(level: LevelRow, row: TopicRow) -> None:
    level.topics += 1
    level.subscribers += row.subscribers
    level.dropped += row.dropped
    if row.messages is not None:
        level.messages = (level.messages or 0) + row.messages
        level.per_s = (level.per_s or 0.0) + (row.per_s or 0.0)


def _topic(row: TopicRow) -> str:
    return row.topic


@routes.get("/subscriptions")
async def subscriptions(context: ApiContext, ask: SearchAsk) -> SubscriptionPage:
    """All subscriptions, with those that are too slow."""
    rows = await context.client.pubsub.subscriptions(limit=MOST_ROWS)
    rows.sort(key=lambda row: (-row.dropped, -row.waiting, row.pattern))
    return SubscriptionPage(*page(rows, ask, lambda row: f"{row.pattern} {row.client}"))


@routes.get("/retained")
async def retained(context: ApiContext, ask: OneTopic) -> MessageView:
    """The retained message of a topic."""
    check_topic(ask.topic)
    if not await context.client.pubsub.retained(ask.topic, limit=1):
        raise NotFound(f"topic {ask.topic[:64]!r} retains nothing")
    async with context.own_client() as client:
        subscription = await client.pubsub.subscribe(ask.topic)
        try:
            return _view(await subscription.get(1.0), WHOLE_BYTES)
        except TimeoutError:
            raise NotFound(f"topic {ask.topic[:64]!r} retains nothing") from None


@routes.post("/publish")
async def publish(context: ApiContext, ask: PublishMessageAsk) -> ChangeCount:
    """Publish a message; the count is how many received it."""
    if ask.ttl_s is not None and not ask.retain:
        raise InvalidInput("ttl_s is for retained messages: others are not kept at all")
    ttl = None if ask.ttl_s is None else max(ask.ttl_s, 0.001)
    value = python_value(ask.value)
    receivers = await context.client.pubsub.publish(
        ask.topic, value, headers=ask.headers, retain=ask.retain, ttl=ttl
    )
    return ChangeCount(receivers)


@routes.post("/clear")
async def clear(context: ApiContext, ask: OneTopic) -> ChangeCount:
    """Remove a topic's retained message."""
    check_topic(ask.topic)
    held = await context.client.pubsub.retained(ask.topic, limit=1)
    await context.client.pubsub.publish(ask.topic, b"", retain=True)
    return ChangeCount(len(held))


@routes.live("/tail")
async def tail(context: ApiContext, ask: TailAsk) -> AsyncIterator[Tail]:
    """Messages as they come, as server-sent events."""
    async with context.own_client() as client:
        subscription = await client.pubsub.subscribe(
            ask.pattern, retained=ask.retained, buffer=10 * _PER_EVENT
        )
        while True:
            yield await _gathered(subscription)


async def _gathered(subscription: Subscription[Any]) -> Tail:
    """The next messages: all that arrive within a quarter of a second."""
    found: list[Message[Any]] = []
    until_s = time.monotonic() + _PATIENCE_S
    try:
        while len(found) < _PER_EVENT:
            found.append(await subscription.get(max(0.0, until_s - time.monotonic())))
            until_s = min(until_s, time.monotonic() + _PAUSE_S)
    except TimeoutError:
        pass
    return Tail([_view(message) for message in found], subscription.dropped)


def _view(message: Message[Any], limit: int = 2_048) -> MessageView:
    value = shown(message.encoded, limit)
    return MessageView(
        message.topic, value, message.timestamp_ms, message.retained, message.headers
    )
