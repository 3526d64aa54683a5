"""The use cases of pub/sub: publish, subscribe, last wills, lists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nexo.access.grants import Action, Extent
from nexo.access.login import Identity
from nexo.access.permit import READ, WRITE, forbidden, may, permit, visible
from nexo.brokers.pubsub import status
from nexo.brokers.pubsub.engine import PubSubEngine
from nexo.brokers.pubsub.message import Encoding, Publication, PubSubMessage
from nexo.brokers.pubsub.outbox import OutboxLimits
from nexo.brokers.pubsub.subscriber import MessageSink, Subscriber
from nexo.errors import InvalidOption, NexoError
from nexo.limits import PAGE_BYTES
from nexo.model import Broker, Policy
from nexo.model.patterns import check_topic, is_reply, parse_pattern
from nexo.model.pubsub import Subscribe, Will
from nexo.model.store import check_ttl, check_value
from nexo.services.connection import Connection, Done
from nexo.services.pubsub.journal import RetainedJournal
from nexo.services.service import Runtime
from nexo.services.ticking import for_each
from nexo.storage.journal import shown

log = logging.getLogger("nexo.pubsub")

MAX_LISTED = 10_000
_LISTERS = (Action.READ, Action.ADMIN)


@dataclass(frozen=True, slots=True)
class Receivers:
    """The result of a publish."""

    counts: Sequence[tuple[int, int]]
    """``(receivers, messages)`` for each run of the published messages."""
    refused: Sequence[int] = ()
    """Indexes of the messages that the user may not publish."""


class PubSubService:
    """Implements `nexo.services.service.Service` for pub/sub."""

    broker = Broker.PUBSUB

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.now_ms = runtime.clock.now_ms
        self.default_ttl_ms = runtime.settings.retained_ttl_ms
        """The lifetime of retained messages whose clients cannot set one; 0 for no limit."""
        self._check_leads = runtime.check_leads if runtime.settings.replicate else None
        """Called before every message that is not retained: it needs no disk."""
        self._engine = PubSubEngine()
        self._journal = RetainedJournal(runtime, self._engine.retained)
        self._clients: dict[int, Subscriber] = {}
        self._lagging: dict[Subscriber, None] = {}

    # -- publishing -----------------------------------------------------------------

    def publish(
        self,
        connection: Connection,
        publication: Publication,
        done: Done[Receivers],
        *,
        retain: bool = False,
        ttl_ms: int | None = None,
    ) -> None:
        """Deliver messages; answers at once, or when retained messages are durable.

        Messages that the user may not publish are left out; the others are published (SPEC C2,
        A10).
        """
        refused: Sequence[int] = ()
        if connection.identity is not None:
            publication, refused = _permitted(connection.identity, publication, retain)
        _check_retained_ttl(ttl_ms, retain)
        if retain:
            self._runtime.check_writable()
        elif self._check_leads is not None:
            self._check_leads()
        receivers = Receivers(self._engine.publish(publication), refused)
        if not retain:
            done(receivers)
            return
        changes = self._retain(publication.messages, ttl_ms)
        self._journal.append(changes, lambda error: done(error or receivers))
        self._wake()

    def _retain(self, messages: Sequence[PubSubMessage], ttl_ms: int | None) -> list[bytes]:
        expires_ms = self.now_ms() + ttl_ms if ttl_ms else 0
        changes: list[bytes] = []
        for message in messages:
            self._journal.remember(message.topic)
            if not message.is_empty:
                changes.append(self._engine.retain(message, expires_ms))
            elif change := self._engine.clear(message.topic):
                changes.append(change)
        return changes

    # -- last wills -------------------------------------------------------------------

    def set_will(self, connection: Connection, will: Will) -> None:
        """Publish this if the connection ends without a goodbye (SPEC C5)."""
        _permit_topic(connection.identity, WRITE, will.topic, will.retain)
        check_topic(will.topic)
        if will.value:
            check_value(will.value)
        _check_retained_ttl(will.ttl_ms, will.retain)
        self._engine.wills[connection.id] = will

    def clear_will(self, connection: Connection) -> None:
        """Withdraw the last will, which is how a client says goodbye."""
        self._engine.wills.pop(connection.id, None)

    def _publish_will(self, connection: Connection, will: Will) -> None:
        def done(result: Receivers | NexoError) -> None:
            if isinstance(result, NexoError):
                log.warning("the last will of %s was not published: %s", connection.name, result)

        identity = connection.identity
        if identity is not None and not identity.valid:
            log.info("the last will of %s ends with its login", connection.name)
            return
        message = PubSubMessage(will.topic, will.value or b"\0", self.now_ms(), will.headers)
        try:
            self.publish(
                connection, Publication.of([message]), done, retain=will.retain, ttl_ms=will.ttl_ms
            )
        except NexoError as error:
            done(error)

    # -- subscribing ------------------------------------------------------------------

    def subscribe(
        self,
        connection: Connection,
        asked: Subscribe,
        sink: MessageSink,
        encoding: Encoding,
        done: Done[None],
    ) -> None:
        """Send matching messages to ``sink`` from now on, retained ones first.

        The sink and the encoding of a connection's first subscription serve all of them. ``done``
        is called before the first message is sent.
        """
        _permit_topic(connection.identity, READ, asked.pattern)
        limits = self._limits(asked)
        client = self._clients.get(connection.id)
        if client is None:
            client = Subscriber(sink, connection.name, encoding, congested=connection.congested)
            self._clients[connection.id] = client
        self._engine.subscribe(client, asked.pattern, limits)
        done(None)
        if not asked.no_retained:
            self._send_retained(client, asked)

    def unsubscribe(self, connection: Connection, pattern: str) -> None:
        """End a subscription, if there is one."""
        _permit_topic(connection.identity, READ, pattern)
        if client := self._clients.get(connection.id):
            self._engine.unsubscribe(client, pattern)

    def _limits(self, asked: Subscribe) -> OutboxLimits:
        settings = self._runtime.settings
        messages, size = asked.max_messages, asked.max_bytes
        if (messages is not None and messages < 1) or (size is not None and size < 1):
            raise InvalidOption("max_messages and max_bytes must be at least 1")
        if asked.policy not in set(Policy):
            raise InvalidOption(
                f"policy {asked.policy!r} is not known; use one of {', '.join(Policy)}"
            )
        return OutboxLimits(
            messages or settings.subscriber_queue_messages,
            size or settings.subscriber_queue_bytes,
            Policy(asked.policy),
        )

    def _send_retained(self, client: Subscriber, asked: Subscribe) -> None:
        pattern = parse_pattern(asked.pattern)
        if pattern.group is not None:
            # members of a group share new messages only; retained ones belong to none of them
            return
        found = list(self._engine.retained.matching(pattern.levels, self.now_ms()))
        if found:
            encode, address = client.encoding.retained, asked.address or pattern.text
            # each is encoded when it is sent
            self._engine.replay(client, (encode(one.message, address) for one in found))
            self._catch_up(client)

    def _catch_up(self, client: Subscriber) -> None:
        if client.catch_up():
            self._lagging.pop(client, None)
        else:
            self._lagging[client] = None
            self._runtime.wake_at(self.now_ms())

    def _give_up(self, client: Subscriber) -> None:
        """Disconnect a client that has missed messages, so that it learns of it."""
        self._lagging.pop(client, None)
        client.kick("its messages could not be sent")

    def _wake(self) -> None:
        due_ms = self._engine.retained.next_due_ms()
        if due_ms is not None:
            self._runtime.wake_at(due_ms)

    # -- lists --------------------------------------------------------------------------

    def subscriptions(self, connection: Connection, limit: int) -> list[dict[str, Any]]:
        shows = _shown(connection.identity, _LISTERS, "#")
        return _bounded(status.subscriptions(self._engine, _listed(limit), shows), "pattern")

    def retained(self, connection: Connection, pattern: str, limit: int) -> list[dict[str, Any]]:
        shows = _shown(connection.identity, READ, pattern)
        rows = status.retained(self._engine, pattern, _listed(limit), self.now_ms(), shows)
        return _bounded(rows, "topic")

    def topics(self, connection: Connection, pattern: str, limit: int) -> list[dict[str, Any]]:
        shows = _shown(connection.identity, READ, pattern)
        return _bounded(status.topics(self._engine, pattern, _listed(limit), shows), "topic")

    # -- the host's calls -----------------------------------------------------------------

    def open(self) -> None:
        self._journal.open()
        self._wake()

    def tick(self, now_ms: int) -> None:
        """Expire retained messages; send the next chunk to clients that catch up."""
        self._engine.retained.expire(now_ms)
        for_each(list(self._lagging), self._catch_up, self._give_up)
        self._wake()

    def cancel(self, connection: Connection, ticket: int) -> None:
        """Nothing waits here."""

    def connection_congested(self, connection: Connection) -> None:
        """Queue messages in the client's outboxes from now on."""
        if client := self._clients.get(connection.id):
            self._engine.congest(client)

    def connection_drained(self, connection: Connection) -> None:
        if client := self._clients.get(connection.id):
            client.drain()
            self._catch_up(client)

    def connection_closed(self, connection: Connection) -> None:
        """End its subscriptions; without a goodbye, publish its last will (SPEC C5)."""
        client = self._clients.pop(connection.id, None)
        if client is not None:
            self._lagging.pop(client, None)
            self._engine.leave(client)
        if will := self._engine.wills.pop(connection.id, None):
            self._publish_will(connection, will)

    def status(self) -> dict[str, Any]:
        return status.summary(self._engine) | {"lost": shown(self._journal.losses)}

    def wind_down(self) -> None:
        """Nothing is lent, and no request waits."""

    def lent(self) -> int:
        return 0

    def close(self) -> None:
        """Close without publishing last wills: a graceful stop does not trigger them."""
        self._engine.wills.clear()
        self._journal.close()


def _permit_topic(
    identity: Identity | None, actions: Sequence[Action], topic: str, retain: bool = False
) -> None:
    if identity is not None and (retain or not is_reply(topic)):
        permit(identity, Broker.PUBSUB, actions, topic, Extent.TOPICS)


def _permitted(
    identity: Identity, publication: Publication, retain: bool
) -> tuple[Publication, list[int]]:
    """What the user may publish, and the indexes of the rest; `Forbidden` if nothing is left."""

    def allowed(topic: str) -> bool:
        reply = is_reply(topic) and not retain
        return reply or may(identity, Broker.PUBSUB, WRITE, topic, Extent.TOPICS)

    names = {topic: topic.decode("utf-8", "replace") for topic in set(publication.topics)}
    permitted = {topic for topic, name in names.items() if allowed(name)}
    if len(permitted) == len(names):
        return publication, []
    kept = [at for at, topic in enumerate(publication.topics) if topic in permitted]
    refused = [at for at, topic in enumerate(publication.topics) if topic not in permitted]
    if not kept:
        name = names[publication.topics[0]]
        raise forbidden(identity.user.name, Broker.PUBSUB, WRITE, Extent.TOPICS, name)
    return publication.only(kept), refused


def _shown(
    identity: Identity | None, actions: Sequence[Action], pattern: str
) -> Callable[[str], bool]:
    """Which rows of a listing a user may see: all, some, or `Forbidden`.

    Listing a single topic is rejected like any other request for it.
    """
    if may(identity, Broker.PUBSUB, actions, pattern, Extent.TOPICS):
        return bool
    assert identity is not None
    if not set(pattern) & {"+", "#"} or not identity.user.may_some(Broker.PUBSUB, actions):
        raise forbidden(identity.user.name, Broker.PUBSUB, actions, Extent.TOPICS, pattern)
    return visible(identity, Broker.PUBSUB, actions, Extent.TOPICS)


def _listed(limit: int) -> int:
    return max(0, min(limit, MAX_LISTED))


def _bounded(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """As many rows as have `PAGE_BYTES` of names: a topic may be long."""
    size = 0
    for at, row in enumerate(rows):
        size += len(row[name])
        if size > PAGE_BYTES:
            return rows[: at + 1]
    return rows


def _check_retained_ttl(ttl_ms: int | None, retain: bool) -> None:
    if ttl_ms is None:
        return
    if not retain:
        raise InvalidOption("a ttl applies only to retained messages: others are not kept")
    check_ttl(ttl_ms, InvalidOption)
