"""Where an exchange's messages go: bindings that all clients share, and topics for the rest.

A queue that is to keep messages is bound by a retained pub/sub message without content, whose
topic names exchange, queue and routing key: it survives restarts, and can be listed. A queue that
lives with its consumer (events, remote control, replies) subscribes to the exchange's topics.

    <prefix>kombu/bound/<exchange>/<its type>/<queue>/<routing key>
    <prefix>kombu/exchange/<exchange>/<word>/<word>/…
    <prefix>kombu/queue/<queue>
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from nexo.client._sync.client import Client

_MOST = 10_000
"""Bindings of one exchange."""


class CeleryRoutes:
    """The bindings and topics of one server, below a prefix."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._root = f"{_level(prefix)}/kombu" if prefix else "kombu"

    # -- queues that keep messages

    def bind(self, queue: str, exchange: str, kind: str, key: str) -> None:
        """Store an exchange's messages with ``key`` in ``queue``."""
        self._client.pubsub.publish(self._bound(queue, exchange, kind, key), b"\x01", retain=True)

    def unbind(self, queue: str, exchange: str, key: str) -> None:
        self._clear(self._bound(queue, exchange, None, key))

    def forget_queue(self, queue: str) -> None:
        self._clear(f"{self._root}/bound/+/+/{_level(queue)}/+")

    def forget_exchange(self, exchange: str) -> None:
        self._clear(f"{self._root}/bound/{_level(exchange)}/#")

    def bindings(self, exchange: str) -> list[tuple[str, str, str]]:
        """Queue, routing key and the exchange's type, of each binding of an exchange."""
        pattern = f"{self._root}/bound/{_level(exchange)}/+/+/+"
        rows = self._client.pubsub.retained(pattern, limit=_MOST)
        found = (map(unquote, row.topic.split("/")[-3:]) for row in rows)
        return [(queue, key, kind) for kind, queue, key in found]

    def queues(self, exchange: str, key: str) -> set[str]:
        """The queues that keep a message of an exchange."""
        return {
            queue
            for queue, bound, kind in self.bindings(exchange)
            if kind == "fanout" or (matches(bound, key) if kind == "topic" else bound == key)
        }

    def _clear(self, pattern: str) -> None:
        for row in self._client.pubsub.retained(pattern, limit=_MOST):
            self._client.pubsub.publish(row.topic, b"", retain=True)

    def _bound(self, queue: str, exchange: str, kind: str | None, key: str) -> str:
        """The topic of a binding; a pattern if the type is not given."""
        levels = [_level(exchange), kind or "+", _level(queue), _level(key)]
        return "/".join([f"{self._root}/bound", *levels])

    # -- queues that live with their consumer

    def topic(self, exchange: str, key: str) -> str:
        """Where an exchange's messages with ``key`` are published."""
        return "/".join([f"{self._root}/exchange", _level(exchange), *map(_level, key.split("."))])

    def pattern(self, exchange: str, kind: str, key: str) -> str:
        """The pattern of a queue bound with ``key``; `matches` decides where # is not last."""
        if kind == "fanout":
            return f"{self._root}/exchange/{_level(exchange)}/#"
        if kind == "direct":
            return self.topic(exchange, key)
        levels = [f"{self._root}/exchange", _level(exchange)]
        for word in key.split("."):
            if word == "#":
                levels.append("#")
                break
            levels.append("+" if word == "*" else _level(word))
        return "/".join(levels)

    def queue_topic(self, queue: str) -> str:
        """Where messages for one queue are published, if it lives with its consumer."""
        return f"{self._root}/queue/{_level(queue)}"


def _level(text: str) -> str:
    """Any text as one level of a topic."""
    return quote(text, safe="")


def matches(bound: str, key: str) -> bool:
    """Whether a topic exchange gives a message with ``key`` to a queue bound by ``bound``.

    Words are separated by dots; ``*`` stands for one, ``#`` for any number, also none.
    """
    return _match(bound.split("."), key.split("."))


def _match(bound: list[str], words: list[str]) -> bool:
    if not bound:
        return not words
    first, rest = bound[0], bound[1:]
    if first == "#":
        return any(_match(rest, words[start:]) for start in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and _match(rest, words[1:])
