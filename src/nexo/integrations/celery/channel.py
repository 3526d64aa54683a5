"""A kombu channel on Nexo: queues are queues, what nobody keeps is pub/sub.

A queue that lives with its consumer (exclusive, or auto-deleted and expiring, or auto-deleted and
bound to a fanout exchange) is a `Mailbox` of its connection; every other one is a Nexo queue.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from nexo.client._sync.queue.jobs import Job
from nexo.client.pubsub_message import Message
from nexo.errors import NotFound
from nexo.integrations.celery import messages, routes
from nexo.integrations.celery.intake import Intake, Mailbox, Window
from nexo.integrations.celery.messages import OutgoingMessage
from nexo.integrations.jobs import HeldJob, Settlement
from nexo.model.queue import ACK, REJECT, RELEASE, RETURN, JobOutcome


class ChannelConsumer(NamedTuple):
    """Who gets a queue's messages."""

    queue: str
    no_ack: bool
    callback: Callable[[Any], None]


class Arrived(NamedTuple):
    """A message on its way from a thread that received it to the one that drains events."""

    channel: Channel
    tag: str
    message: dict[str, Any]
    place: HeldJob | None


class Channel(virtual.Channel):
    """The channel that producers publish on and consumers read from."""

    supports_fanout = True
    do_restore = False
    default_priority = 0
    from_transport_options = ("deadletter_queue",)

    _tags = count(1)

    closed: bool

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._window = Window()
        self._unacked: dict[int, HeldJob] = {}
        self._by_tag: dict[str, ChannelConsumer] = {}
        self._intakes: dict[str, Intake] = {}

    # -- queues and exchanges

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **kwargs: Any
    ) -> queue_declare_ok_t:
        queue = queue or f"amq.gen-{uuid()}"
        if passive and not self._has_queue(queue):
            raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "queue_declare", "404")
        if not passive:
            self._new_queue(queue, **kwargs)
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **options: Any
    ) -> dict[str, Any]:
        """A queue's options by the names that RabbitMQ gives them."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **options)
        return prepared

    def _new_queue(
        self,
        queue: str,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        transport, given = self.connection, arguments or {}
        if ttl_ms := given.get("x-message-ttl"):
            transport.ttls_ms[queue] = int(ttl_ms)
        if exclusive or (auto_delete and given.get("x-expires")):
            self._mailbox(queue).auto_delete |= auto_delete
        elif auto_delete:
            transport.undecided.add(queue)  # its first binding or use decides what it is
        else:
            transport.create(queue)

    def _mailbox(self, queue: str) -> Mailbox:
        mailboxes: dict[str, Mailbox] = self.connection.mailboxes
        if queue not in mailboxes:
            mailboxes[queue] = Mailbox(self.connection.ttls_ms.get(queue, 0))
            self._subscribe(queue, self.connection.routes.queue_topic(queue), "", "")
        return mailboxes[queue]

    def _subscribe(self, queue: str, pattern: str, exchange: str, key: str) -> None:
        mailbox: Mailbox = self.connection.mailboxes[queue]

        def receive(message: Message[Any]) -> None:
            arrived = messages.incoming(message.value, message.headers, next(self._tags))
            sent = arrived["properties"]["delivery_info"].get("routing_key") or ""
            if not exchange or "#" not in key or routes.matches(key, sent):
                mailbox.put(arrived)

        subscribe = self.connection.nexo.pubsub.subscribe
        mailbox.subscriptions[exchange, key] = subscribe(pattern, receive, retained=False)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any
    ) -> None:
        exchange, transport = exchange or "amq.direct", self.connection
        kind = self.typeof(exchange).type
        if queue in transport.undecided and kind == "fanout":
            self._mailbox(queue).auto_delete = True
        if queue in transport.mailboxes:
            if (exchange, routing_key) not in transport.mailboxes[queue].subscriptions:
                pattern = transport.routes.pattern(exchange, kind, routing_key)
                self._subscribe(queue, pattern, exchange, routing_key)
            return
        transport.create(queue)
        transport.routes.bind(queue, exchange, kind, routing_key)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any
    ) -> None:
        exchange = exchange or "amq.direct"
        if (mailbox := self.connection.mailboxes.get(queue)) is None:
            self.connection.routes.unbind(queue, exchange, routing_key)
        elif subscription := mailbox.subscriptions.pop((exchange, routing_key), None):
            subscription.close()

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        if if_empty and self._size(queue):
            return
        if (mailbox := self.connection.mailboxes.pop(queue, None)) is not None:
            mailbox.close()
            return
        self.connection.routes.forget_queue(queue)
        self.connection.queue(queue).delete()
        self.connection.created.discard(queue)

    def exchange_delete(self, exchange: str, **_: Any) -> None:
        """Remove an exchange with its bindings; the queues stay."""
        self.connection.routes.forget_exchange(exchange)
        self.state.exchanges.pop(exchange, None)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        """Queue, exchange and routing key of the bindings of exchanges declared here."""
        return [
            (queue, exchange, key)
            for exchange in self.state.exchanges
            for queue, key, _ in self.connection.routes.bindings(exchange)
        ]

    def after_reply_message_received(self, queue: str) -> None:
        """A queue for replies may get more of them."""

    def _has_queue(self, queue: str, **_: Any) -> bool:
        found: bool = queue in self.connection.mailboxes or self.connection.queue(queue).exists()
        return found

    def _size(self, queue: str) -> int:
        if queue in self.connection.mailboxes:
            return len(self.connection.mailboxes[queue])
        self._settle_all()
        try:
            waiting: int = self.connection.queue(queue).info().waiting
        except NotFound:
            return 0
        return waiting

    def _purge(self, queue: str) -> int:
        if queue in self.connection.mailboxes:
            cleared: int = self.connection.mailboxes[queue].clear()
            return cleared
        self._settle_all()
        try:
            purged: int = self.connection.queue(queue).purge()
        except NotFound:
            return 0
        return purged

    # -- publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any
    ) -> None:
        """Store a message in the queues it is for, and publish it to those who listen."""
        sent = messages.outgoing(message, exchange or "", routing_key or "")
        if not exchange:
            self._send(routing_key, sent)
        elif sent.transient and self.typeof(exchange).type == "topic":  # an event
            self.connection.events.add(lambda: self._route(exchange, routing_key or "", sent))
        else:
            self._route(exchange, routing_key or "", sent)

    def _route(self, exchange: str, routing_key: str, sent: OutgoingMessage) -> None:
        """Send to all queues that are bound to an exchange."""
        routed = self.connection.routes
        queues = routed.queues(exchange, routing_key)
        for queue in queues:
            self.connection.push(queue, sent)
        heard = self._publish(routed.topic(exchange, routing_key), sent)
        if not heard and not queues and self.deadletter_queue:
            self.connection.create(self.deadletter_queue)
            self.connection.push(self.deadletter_queue, sent)

    def _send(self, queue: str, sent: OutgoingMessage) -> None:
        """Send to one queue, which may be a mailbox of whoever waits for a reply."""
        topic = self.connection.routes.queue_topic(queue)
        if (sent.transient or queue in self.connection.mailboxes) and self._publish(topic, sent):
            return
        try:
            self.connection.push(queue, sent)
        except NotFound:
            if sent.transient or self._publish(topic, sent):
                return  # as with any broker, a message that no queue takes is dropped
            self.connection.create(queue)
            self.connection.push(queue, sent)

    def _publish(self, topic: str, sent: OutgoingMessage) -> int:
        heard: int = self.connection.nexo.pubsub.publish(topic, sent.body, headers=sent.headers)
        return heard

    # -- consuming

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many messages this channel holds unacknowledged; 0 is no limit."""
        self._window.resize(prefetch_count)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], None],
        consumer_tag: str,
        **_: Any,
    ) -> None:
        """Call ``callback`` with each message, on the thread that drains events."""
        self._by_tag[consumer_tag] = ChannelConsumer(queue, no_ack, callback)
        self._consumers.add(consumer_tag)
        transport = self.connection
        if queue in transport.mailboxes:
            arrive = transport.arrive
            transport.mailboxes[queue].attach(
                lambda message: arrive(Arrived(self, consumer_tag, message, None))
            )
            return
        transport.create(queue)
        intake = self._intakes[consumer_tag] = Intake(
            transport.nexo,
            transport.name(queue),
            self._window,
            transport.leases,
            lambda: transport.create(queue, again=True),
            lambda job: transport.arrive(self._arrived(consumer_tag, job)),
            transport.fail,
        )
        intake.start()

    def _arrived(self, consumer_tag: str, job: Job[Any]) -> Arrived:
        message = messages.incoming(
            job.value, job.headers, next(self._tags), redelivered=job.redelivered
        )
        return Arrived(self, consumer_tag, message, HeldJob.of(job))

    def deliver(self, arrived: Arrived) -> None:
        """Call the consumer with a message, on the thread that drains events."""
        consumer = self._by_tag.get(arrived.tag)
        place, tag = arrived.place, arrived.message["properties"]["delivery_tag"]
        if consumer is None:
            if place is not None:
                self._settle(place, RELEASE)
            return
        if place is not None:
            self._unacked[tag] = place
            if consumer.no_ack:
                self.basic_ack(tag)
        consumer.callback(self.Message(arrived.message, channel=self))

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer; it keeps what it holds."""
        consumer = self._by_tag.pop(consumer_tag, None)
        self._consumers.discard(consumer_tag)
        if consumer is None:
            return
        if intake := self._intakes.pop(consumer_tag, None):
            intake.stop()
        elif (mailbox := self.connection.mailboxes.get(consumer.queue)) is not None:
            mailbox.attach(None)
            if mailbox.auto_delete:
                self.queue_delete(consumer.queue)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        transport = self.connection
        if queue in transport.mailboxes:
            message = transport.mailboxes[queue].take()
            return message and self.Message(message, channel=self)
        self._settle_all()
        try:
            jobs = transport.queue(queue).pop(1)
        except NotFound:
            return None
        if not jobs:
            return None
        arrived = self._arrived("", jobs[0])
        transport.leases.hold(jobs, {jobs[0].number})
        self._window.hold()
        tag = arrived.message["properties"]["delivery_tag"]
        self._unacked[tag] = HeldJob.of(jobs[0])
        if no_ack:
            self.basic_ack(tag)
        return self.Message(arrived.message, channel=self)

    # -- settling

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        for tag in self._tags_to(delivery_tag, multiple):
            self._settle_tag(tag, ACK)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Put a message back in its place, or among the dead letters."""
        self._settle_tag(delivery_tag, RETURN if requeue else REJECT)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all that is not acknowledged."""
        for tag in list(self._unacked):
            self._settle_tag(tag, RETURN)

    def _tags_to(self, tag: int, multiple: bool) -> list[int]:
        return [each for each in list(self._unacked) if each <= tag] if multiple else [tag]

    def _settle_tag(self, tag: int, how: JobOutcome) -> None:
        place = self._unacked.pop(tag, None)
        if place is not None:
            self._settle(place, how)

    def _settle(self, place: HeldJob, how: JobOutcome) -> None:
        error = "rejected by its consumer" if how == REJECT else ""
        if how in (
            RELEASE,
            RETURN,
        ):  # the job is in its place again before the next one is asked for
            self.connection.settlements.add(Settlement(place, how, error, self._window.free))
            return
        self.connection.settlements.add(Settlement(place, how, error))
        self._window.free()

    def _settle_all(self) -> None:
        """Let the server know of all settlements, so that one sees what one gave back."""
        self.connection.settlements.flush()

    def close(self) -> None:
        """End all consumers and give back what is not acknowledged."""
        if self.closed:
            return
        self.closed = True
        transport = self.connection
        for tag in list(self._by_tag):
            self.basic_cancel(tag)
        for arrived in transport.withdraw(self):
            if arrived.place is not None:
                self._settle(arrived.place, RELEASE)
        self.basic_recover()
        transport.events.flush()
        transport.settlements.flush()
        transport.close_channel(self)

    def abandon(self) -> None:
        """Forget what was held: it is lost with the connection."""
        self.closed = True
        for intake in self._intakes.values():
            intake.stop()
        self._intakes, self._by_tag, self._unacked = {}, {}, {}
