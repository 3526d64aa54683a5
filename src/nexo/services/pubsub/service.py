"""The pub/sub broker's requests: decode, ask the engine, reply, and keep clients' pace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nexo.brokers.pubsub import status
from nexo.brokers.pubsub.engine import LastWill, PubSub
from nexo.brokers.pubsub.outbox import Limits, Policy
from nexo.brokers.pubsub.subscriber import Subscriber
from nexo.brokers.pubsub.topics import check_topic, parse_pattern
from nexo.errors import InvalidOption, NexoError
from nexo.model import Broker
from nexo.protocol import pubsub as wire
from nexo.protocol.frames import Reader, pack_str
from nexo.protocol.ops import Op
from nexo.protocol.values import check_value
from nexo.services.connection import Connection
from nexo.services.pubsub.journal import RetainedJournal
from nexo.services.service import Answer, Handler, Peer, Runtime, shown_to
from nexo.storage.journal import shown

log = logging.getLogger("nexo.pubsub")

MAX_LISTED = 10_000
MAX_TTL_MS = 100 * 365 * 86_400_000


class PubSubService:
    """Implements `nexo.services.service.Service` for pub/sub."""

    broker = Broker.PUBSUB

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._engine = PubSub()
        self._journal = RetainedJournal(runtime, self._engine.retained)
        self._clients: dict[int, Subscriber] = {}
        self._lagging: set[Subscriber] = set()
        self.answers: Mapping[int, Answer] = {}
        self.handlers: Mapping[int, Handler] = {
            Op.PUB: self._on_pub,
            Op.SUB: self._on_sub,
            Op.UNSUB: self._on_unsub,
            Op.PUBLISH_RUN: self._on_publish_run,
            Op.PUBLISH: self._on_publish,
            Op.SUBSCRIBE: self._on_subscribe,
            Op.WILL: self._on_will,
            Op.PS_SUBSCRIPTIONS: self._on_subscriptions,
            Op.PS_RETAINED: self._on_retained,
            Op.PS_TOPICS: self._on_topics,
        }

    # -- life (Service) -------------------------------------------------------------

    def open(self) -> None:
        """Bring retained messages back."""
        self._journal.open()
        self._wake()

    def tick(self, now_ms: int) -> None:
        """Expire retained messages; send the next chunk to clients that catch up."""
        self._engine.retained.expire(now_ms)
        for client in list(self._lagging):
            self._catch_up(client)
        self._wake()

    def cancel(self, peer: Connection, request_id: int) -> None:
        """Nothing waits here."""

    def peer_congested(self, peer: Connection) -> None:
        """From now on, messages wait in the client's outboxes."""
        if client := self._clients.get(peer.id):
            self._engine.congest(client)

    def peer_drained(self, peer: Connection) -> None:
        """Send what waited."""
        if client := self._clients.get(peer.id):
            client.drain()
            self._catch_up(client)

    def peer_closed(self, peer: Connection) -> None:
        """End its subscriptions; without a goodbye, publish its last will (SPEC C5)."""
        client = self._clients.pop(peer.id, None)
        if client is None:
            return
        self._lagging.discard(client)
        if will := self._engine.leave(client):
            self._publish_will(client, will)

    def status(self) -> dict[str, Any]:
        """Totals."""
        return status.summary(self._engine) | {"lost": shown(self._journal.losses)}

    def close(self) -> None:
        """A graceful stop is no reason for last wills."""
        self._engine.wills.clear()
        self._journal.close()

    # -- publishing -----------------------------------------------------------------

    def _on_publish_run(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        counts = self._engine.publish(wire.parse_run(bytes(payload)))
        peer.data(request_id, wire.pack_receivers(counts))

    def _on_publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        options, run = wire.parse_publish(payload)
        _check_ttl(options.ttl_ms, options.retain)

        def reply(counts: bytes) -> None:
            peer.data(request_id, counts)

        self._publish(run, options, reply, lambda error: peer.fail(request_id, error))

    def _on_pub(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        topic = reader.text().encode()
        options = self._classic_options(reader.text())
        value = bytes(reader.rest()) or b"\0"  # an absent value counts as empty bytes
        check_value(value)
        run = wire.run_of(topic, value, self._runtime.clock.now_ms())
        self._publish(
            run, options, lambda _: peer.ok(request_id), lambda error: peer.fail(request_id, error)
        )

    def _classic_options(self, text: str) -> wire.Publish:
        given = wire.parse_classic_publish(text)
        if not given.retain:
            return wire.Publish()
        if given.ttl is None:
            return wire.Publish(True, self._runtime.settings.retained_ttl_ms or None)
        _check_ttl(given.ttl * 1000, True)
        return wire.Publish(True, int(given.ttl * 1000))

    def _publish(
        self,
        run: wire.Run,
        options: wire.Publish,
        reply: Callable[[bytes], None],
        fail: Callable[[NexoError], None],
    ) -> None:
        """Deliver, and reply: at once, or when what is retained is safe."""
        if options.retain:
            self._runtime.check_writable()
        counts = wire.pack_receivers(self._engine.publish(run))
        if not options.retain:
            reply(counts)
            return
        records = self._retain(run, options.ttl_ms)
        self._journal.append(records, lambda error: fail(error) if error else reply(counts))
        self._wake()

    def _retain(self, run: wire.Run, ttl_ms: int | None) -> list[bytes]:
        expires_ms = self._runtime.clock.now_ms() + ttl_ms if ttl_ms else 0
        records: list[bytes] = []
        for message in run.part(0, len(run.topics)).messages(True):
            topic = wire.topic_of(message).decode()
            self._journal.remember(topic)
            if not wire.is_empty(message):
                records.append(self._engine.retain(topic, message, expires_ms))
            elif record := self._engine.clear(topic):
                records.append(record)
        return records

    # -- last wills -------------------------------------------------------------------

    def _on_will(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        will = wire.parse_will(payload)
        client = self._client(peer)
        if will is None:
            self._engine.wills.pop(client, None)
        else:
            check_topic(will.topic)
            if will.value:
                check_value(will.value)
            _check_ttl(will.ttl_ms, will.retain)
            self._engine.wills[client] = LastWill(
                will.topic.encode(), will.value, will.retain, will.ttl_ms
            )
        peer.ok(request_id)

    def _publish_will(self, client: Subscriber, will: LastWill) -> None:
        def failed(error: NexoError) -> None:
            log.warning("the last will of %s was not retained: %s", client.name, error)

        run = wire.run_of(will.topic, will.value, self._runtime.clock.now_ms())
        try:
            self._publish(run, wire.Publish(will.retain, will.ttl_ms), lambda _: None, failed)
        except NexoError as error:
            failed(error)

    # -- subscribing ------------------------------------------------------------------

    def _on_sub(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        command = wire.Subscribe(reader.text())
        reader.end()
        self._subscribe(peer, request_id, command)

    def _on_subscribe(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._subscribe(peer, request_id, wire.parse_subscribe(payload))

    def _subscribe(self, peer: Peer, request_id: int, command: wire.Subscribe) -> None:
        limits = self._limits(command)
        client = self._client(peer)
        self._engine.subscribe(client, command.pattern, limits)
        peer.ok(request_id)
        if not command.no_retained:
            self._send_retained(client, command)

    def _limits(self, command: wire.Subscribe) -> Limits:
        settings = self._runtime.settings
        messages, size = command.max_messages, command.max_bytes
        if (messages is not None and messages < 1) or (size is not None and size < 1):
            raise InvalidOption("max_messages and max_bytes must be at least 1")
        if command.policy not in set(Policy):
            raise InvalidOption(
                f"policy {command.policy!r} is not known; use one of {', '.join(Policy)}"
            )
        return Limits(
            messages or settings.subscriber_queue_messages,
            size or settings.subscriber_queue_bytes,
            Policy(command.policy),
        )

    def _send_retained(self, client: Subscriber, command: wire.Subscribe) -> None:
        pattern = parse_pattern(command.pattern)
        if pattern.group is not None:
            return  # a group's members share new messages; the past belongs to none of them
        found = list(self._engine.retained.matching(pattern.levels, self._runtime.clock.now_ms()))
        if found:
            messages = [one.message for one in found]
            self._engine.replay(client, _encoded(client, command.address or pattern.text, messages))
            self._catch_up(client)

    def _on_unsub(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        pattern = reader.text()
        reader.end()
        self._engine.unsubscribe(self._client(peer), pattern)
        peer.ok(request_id)

    def _client(self, peer: Peer) -> Subscriber:
        client = self._clients.get(peer.id)
        if client is None:
            client = Subscriber(peer, peer.name, coded=peer.said_hello, congested=peer.congested)
            self._clients[peer.id] = client
        return client

    def _catch_up(self, client: Subscriber) -> None:
        if client.catch_up():
            self._lagging.discard(client)
        else:
            self._lagging.add(client)
            self._runtime.wake_at(self._runtime.clock.now_ms())

    def _wake(self) -> None:
        due_ms = self._engine.retained.next_due_ms()
        if due_ms is not None:
            self._runtime.wake_at(due_ms)

    # -- listings ---------------------------------------------------------------------

    def _on_subscriptions(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.parse_listing(payload)
        listed = status.subscriptions(self._engine, _listed(asked), shown_to(peer))
        peer.data(request_id, wire.pack_rows(listed))

    def _on_retained(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.parse_listing(payload)
        now_ms = self._runtime.clock.now_ms()
        limit = _listed(asked)
        listed = status.retained(self._engine, asked.pattern, limit, now_ms, shown_to(peer))
        peer.data(request_id, wire.pack_rows(listed))

    def _on_topics(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.parse_listing(payload)
        listed = status.topics(self._engine, asked.pattern, _listed(asked), shown_to(peer))
        peer.data(request_id, wire.pack_rows(listed))


def _encoded(client: Subscriber, address: str, messages: list[bytes]) -> Iterator[bytes]:
    """Retained messages as a client gets them, each made when it is sent."""
    if not client.coded:
        return map(wire.classic_frame, messages)
    field = pack_str(address)
    return (wire.addressed_frame(message, field, wire.RETAINED) for message in messages)


def _listed(asked: wire.Listing) -> int:
    return max(0, min(asked.limit, MAX_LISTED))


def _check_ttl(ttl_ms: float | None, retain: bool) -> None:
    if ttl_ms is None:
        return
    if not retain:
        raise InvalidOption("a ttl is for retained messages: others are not kept at all")
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise InvalidOption("ttl must be positive and at most 100 years; leave it out for none")
