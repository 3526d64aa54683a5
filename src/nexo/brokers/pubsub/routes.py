"""Routes: subscriptions by pattern, and the receivers of each topic, cached.

A route is found once per topic and kept until a subscription changes that could affect it.
Topics with the same receivers share one `Route`, so that a run of messages over many topics
is still one run.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from nexo.brokers.pubsub.message import Encoding, Part
from nexo.brokers.pubsub.subscriber import PatternSubscription, Subscriber
from nexo.brokers.pubsub.trie import Trie
from nexo.errors import InvalidName
from nexo.model.patterns import Pattern, check_topic

MAX_CACHED = 65_536
_MAX_CACHED_TOPIC = 512
"""Longer topics are looked up each time: caching them could exhaust memory."""


class ShareGroup:
    """The members of one ``$share/group/pattern``; one of them gets each message (SPEC C5)."""

    __slots__ = ("_members", "_turn", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._members: list[PatternSubscription] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member: PatternSubscription) -> None:
        self._members.append(member)

    def leave(self, member: PatternSubscription) -> None:
        """Remove a member and drop its waiting messages."""
        self._members.remove(member)

    def deliver(self, part: Part) -> None:
        """Distribute the messages, each member's in one piece."""
        shares: dict[PatternSubscription, list[int]] = {}
        for index in range(part.count):
            shares.setdefault(self._next(), []).append(index)
        for member, share in shares.items():
            client = member.subscriber
            shared = client.encoding.shared
            messages = [shared(part.messages[index], self.pattern) for index in share]
            if client.behind:
                member.keep(messages)
            else:
                client.push(b"".join(messages))

    def _next(self) -> PatternSubscription:
        """The next member that keeps up; if none does, simply the next."""
        members, count = self._members, len(self._members)
        for step in range(count):
            member = members[(self._turn + step) % count]
            if not member.subscriber.behind:
                self._turn += step + 1
                return member
        self._turn += 1
        return members[(self._turn - 1) % count]


class Route:
    """The receivers of a topic: one subscription per client, and one member per group."""

    __slots__ = ("__weakref__", "direct", "groups", "receivers")

    def __init__(
        self, direct: tuple[PatternSubscription, ...], groups: tuple[ShareGroup, ...]
    ) -> None:
        self.direct = direct
        self.groups = groups
        self.receivers = len(direct) + len(groups)

    def deliver(self, part: Part) -> None:
        encoding: Encoding | None = None
        data = b""
        for subscription in self.direct:
            client = subscription.subscriber
            if client.behind:
                subscription.keep(part.alone(client.encoding))
                continue
            if client.encoding is not encoding:  # usually all receivers have the same
                encoding = client.encoding
                data = part.joined(encoding)
            client.push(data)
        for group in self.groups:
            if len(group):  # the line above may have disconnected a member
                group.deliver(part)


class _Place:
    """The subscriptions under one pattern."""

    __slots__ = ("direct", "groups")

    def __init__(self) -> None:
        self.direct: dict[Subscriber, PatternSubscription] = {}
        self.groups: dict[str, ShareGroup] = {}


class Routes:
    """All subscriptions."""

    def __init__(self, max_cached: int = MAX_CACHED) -> None:
        self._places: Trie[_Place] = Trie()
        self._cache: dict[bytes, Route] = {}
        self._alike: WeakValueDictionary[tuple[object, ...], Route] = WeakValueDictionary()
        self._max_cached = max_cached
        self.cached = self._cache.get
        """The route of a topic if it is known already."""

    def add(self, pattern: Pattern, subscription: PatternSubscription) -> None:
        place = self._places.get(pattern.levels)
        if place is None:
            place = _Place()
            self._places.put(pattern.levels, place)
        if pattern.group is None:
            place.direct[subscription.subscriber] = subscription
        else:
            place.groups.setdefault(pattern.group, ShareGroup(pattern.text)).join(subscription)
        self._forget(pattern)

    def remove(self, pattern: Pattern, subscription: PatternSubscription) -> None:
        place = self._places.get(pattern.levels)
        assert place is not None
        if pattern.group is None:
            del place.direct[subscription.subscriber]
        else:
            place.groups[pattern.group].leave(subscription)
            if not place.groups[pattern.group]:
                del place.groups[pattern.group]
        if not place.direct and not place.groups:
            self._places.remove(pattern.levels)
        self._forget(pattern)

    def find(self, topic: bytes) -> Route:
        """The route of a topic; `InvalidName` if the topic is invalid."""
        route = self._cache.get(topic)
        if route is None:
            route = self._resolve(topic)
            self._remember(topic, route)
        return route

    def _remember(self, topic: bytes, route: Route) -> None:
        if len(topic) > _MAX_CACHED_TOPIC:
            return
        if len(self._cache) >= self._max_cached:
            self._cache.clear()
        self._cache[topic] = route

    def _resolve(self, topic: bytes) -> Route:
        places = self._places.by_topic(check_topic(_text(topic)))
        direct = {c: s for place in reversed(places) for c, s in place.direct.items()}
        groups = tuple(group for place in places for group in place.groups.values())
        key = (*direct.values(), *groups)
        route = self._alike.get(key)
        if route is None:
            route = self._alike[key] = Route(tuple(direct.values()), groups)
        return route

    def _forget(self, pattern: Pattern) -> None:
        if "+" in pattern.levels or pattern.levels[-1] == "#":
            self._cache.clear()
        else:
            self._cache.pop("/".join(pattern.levels).encode(), None)


def _text(topic: bytes) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        raise InvalidName(f"topic {topic[:64]!r} is not UTF-8") from None
