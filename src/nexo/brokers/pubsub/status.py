"""What pub/sub reports about itself: totals, subscriptions, retained messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

from nexo.brokers.pubsub.engine import PubSubEngine
from nexo.brokers.pubsub.subscriber import PatternSubscription, Subscriber
from nexo.model.patterns import covers, parse_pattern

Shows: TypeAlias = Callable[[str], bool]
"""Whether a topic or pattern may be listed."""

MOST_LOOKED = 100_000
"""Retained messages that one listing examines; hidden ones would otherwise delay others."""
_SLOWEST = 20


def summary(engine: PubSubEngine) -> dict[str, Any]:
    """Totals since the start, and slow clients."""
    slow = [client for client in engine.slowed if client.dropped or client.behind]
    return {
        "subscribers": len(engine.subscribers),
        "subscriptions": engine.subscriptions,
        "retained": engine.retained.count,
        "retained_bytes": engine.retained.size_bytes,
        "wills": len(engine.wills),
        "published": engine.published,
        "delivered": engine.delivered,
        "dropped": engine.dropped,
        "slow": [_slow(c) for c in heapq.nlargest(_SLOWEST, slow, key=lambda c: c.dropped)],
    }


def subscriptions(engine: PubSubEngine, limit: int, shows: Shows = bool) -> list[dict[str, Any]]:
    """Each client's subscriptions, with waiting and dropped messages."""
    every = (s for client in engine.subscribers for s in client.subscriptions.values())
    found = (subscription for subscription in every if shows(subscription.pattern))
    return [_subscription(subscription) for subscription in islice(found, limit)]


def topics(
    engine: PubSubEngine, pattern: str, limit: int, shows: Shows = bool
) -> list[dict[str, Any]]:
    """Topics that match a pattern and had messages, most recently used first."""
    wanted = parse_pattern(pattern).levels
    found = (row for row in engine.traffic.latest() if covers(wanted, row[0]) and shows(row[0]))
    return [{"topic": topic, "messages": count} for topic, count in islice(found, limit)]


def retained(
    engine: PubSubEngine, pattern: str, limit: int, now_ms: int, shows: Shows = bool
) -> list[dict[str, Any]]:
    every = engine.retained.matching(parse_pattern(pattern).levels, now_ms)
    found = (one for one in islice(every, MOST_LOOKED) if shows(one.topic))
    return [
        {"topic": one.topic, "bytes": one.message.size_bytes, "expires_ms": one.expires_ms or None}
        for one in islice(found, limit)
    ]


def _slow(client: Subscriber) -> dict[str, Any]:
    waiting = sum(len(subscription.outbox) for subscription in client.subscriptions.values())
    return {"client": client.name, "waiting": waiting, "dropped": client.dropped}


def _subscription(subscription: PatternSubscription) -> dict[str, Any]:
    outbox = subscription.outbox
    return {
        "client": subscription.subscriber.name,
        "pattern": subscription.pattern,
        "policy": outbox.limits.policy.value,
        "waiting": len(outbox),
        "waiting_bytes": outbox.size_bytes,
        "dropped": outbox.dropped,
    }
