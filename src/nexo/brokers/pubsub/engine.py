"""The rules of pub/sub: subscribe, publish, retain, last wills (SPEC C).

The engine decides who receives a message; each receiver's dialect encodes it.
Fire-and-forget: a message that matches nobody and is not retained leaves no trace, but is
counted: a bounded number of recently used topics have counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nexo.brokers.pubsub import records
from nexo.brokers.pubsub.message import Publication, PubSubMessage
from nexo.brokers.pubsub.outbox import OutboxLimits
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.brokers.pubsub.routes import Route, Routes
from nexo.brokers.pubsub.subscriber import PatternSubscription, Subscriber
from nexo.model.patterns import parse_pattern
from nexo.model.pubsub import Will

MOST = 4_096
"""Topics remembered."""
LONGEST = 512
"""Longer topics are not counted: they could exhaust memory."""


class Traffic:
    """Counts every message, so it does little for each.

    New counts are collected separately and merged when read, or when there are as many as are
    remembered; the topics merged longest ago are then dropped.
    """

    __slots__ = ("_kept", "_most", "_new")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._new: dict[bytes, int] = {}
        self._kept: dict[bytes, int] = {}

    def count(self, topics: list[bytes]) -> None:
        new, first, size = self._new, topics[0], len(topics)
        if size == 1 or topics.count(first) == size:
            if len(first) <= LONGEST:
                new[first] = new.get(first, 0) + size
        else:
            for topic, count in Counter(topics).items():
                if len(topic) <= LONGEST:
                    new[topic] = new.get(topic, 0) + count
        if len(new) > self._most:
            self._merge()

    def _merge(self) -> None:
        kept = self._kept
        for topic, count in self._new.items():
            kept[topic] = kept.pop(topic, 0) + count
        self._new.clear()
        for topic in list(kept)[: max(0, len(kept) - self._most)]:
            del kept[topic]

    def latest(self) -> Iterator[tuple[str, int]]:
        """Topics with their counts since they are remembered, most recently used first."""
        self._merge()
        return ((topic.decode(), count) for topic, count in reversed(self._kept.items()))


class PubSubEngine:
    """All subscriptions, retained messages and last wills of one broker."""

    def __init__(self) -> None:
        self.routes = Routes()
        self.retained = RetainedMessages()
        self.subscribers: set[Subscriber] = set()
        self.subscriptions = 0
        self.slowed: set[Subscriber] = set()
        """Clients that have been behind: only they can have lost messages."""
        self.wills: dict[int, Will] = {}
        """By the number of the connection."""
        self.traffic = Traffic()
        self.published = 0
        self.delivered = 0
        """Copies handed to clients, those that a slow one lost later included."""
        self._dropped_before = 0

    @property
    def dropped(self) -> int:
        """Copies dropped for slow clients, including clients that have left (SPEC C4)."""
        return self._dropped_before + sum(client.dropped for client in self.slowed)

    def subscribe(
        self, client: Subscriber, pattern: str, limits: OutboxLimits
    ) -> PatternSubscription:
        """Subscribe ``client`` to a pattern; repeated, it only changes the limits.

        Raises `InvalidName` if the pattern is invalid.
        """
        parsed = parse_pattern(pattern)
        subscription = client.subscriptions.get(pattern)
        if subscription is None:
            subscription = client.subscriptions[pattern] = PatternSubscription(
                client, pattern, limits
            )
            self.routes.add(parsed, subscription)
            self.subscribers.add(client)
            self.subscriptions += 1
            if client.behind:
                self.slowed.add(client)
        subscription.outbox.limits = limits
        return subscription

    def unsubscribe(self, client: Subscriber, pattern: str) -> bool:
        """End a subscription and drop its waiting messages; False if there was none."""
        subscription = client.subscriptions.pop(pattern, None)
        if subscription is None:
            return False
        self.subscriptions -= 1
        client.dropped_before += subscription.outbox.dropped
        self.routes.remove(parse_pattern(pattern), subscription)
        if not client.subscriptions:
            self._forget(client)
        return True

    def leave(self, client: Subscriber) -> None:
        """End all subscriptions of a client that is gone."""
        for pattern in list(client.subscriptions):
            self.unsubscribe(client, pattern)

    def congest(self, client: Subscriber) -> None:
        """The client's connection is full: queue its messages."""
        self.slowed.add(client)
        client.congest()

    def replay(self, client: Subscriber, messages: Iterator[bytes]) -> None:
        self.slowed.add(client)
        client.replay(messages)

    def publish(self, publication: Publication) -> list[tuple[int, int]]:
        """Deliver messages; returns ``(receivers, messages)`` for each run of them.

        Raises `InvalidName`, before anything is delivered, if a topic is invalid.
        """
        counts = []
        for route, first, last in self._stretches(publication.topics):
            if route.receivers:
                route.deliver(publication.part(first, last))
            counts.append((route.receivers, last - first))
            self.delivered += route.receivers * (last - first)
        self.published += len(publication.topics)
        self.traffic.count(publication.topics)
        return counts

    def retain(self, message: PubSubMessage, expires_ms: int) -> bytes:
        """Keep a message as its topic's last; returns the record to log."""
        retained = Retained(message, expires_ms)
        self.retained.put(retained)
        return records.kept(retained)

    def clear(self, topic: str) -> bytes | None:
        """Remove a topic's last message; returns the record to log, None if nothing changed."""
        return records.cleared(topic) if self.retained.clear(topic) else None

    def _forget(self, client: Subscriber) -> None:
        self.subscribers.discard(client)
        self.slowed.discard(client)
        self._dropped_before += client.dropped_before
        client.dropped_before = 0

    def _stretches(self, topics: list[bytes]) -> list[tuple[Route, int, int]]:
        routes = [self.routes.cached(topic) or self.routes.find(topic) for topic in topics]
        if routes.count(routes[0]) == len(routes):
            return [(routes[0], 0, len(routes))]
        stretches, first = [], 0
        for index in range(1, len(routes) + 1):
            if index == len(routes) or routes[index] is not routes[first]:
                stretches.append((routes[first], first, index))
                first = index
        return stretches
