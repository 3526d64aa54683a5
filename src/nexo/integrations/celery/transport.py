"""The kombu transport ``nexo://``: one `nexo.Client` per connection (SPEC M1).

Threads receive; whoever drains events delivers. A socket pair wakes Celery's event loop, so that
all its pools work as they do with RabbitMQ.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from kombu.exceptions import ChannelError
from kombu.transport import virtual

from nexo.client._sync.client import Client
from nexo.client._sync.link.repeating import insist
from nexo.client._sync.queue.leases import HeldLeases
from nexo.client._sync.queue.queue import Queue
from nexo.client.address import DEFAULT_PORT
from nexo.errors import (
    AlreadyExists,
    ClientClosed,
    ConnectionLost,
    NexoError,
    RequestTimeout,
    Unavailable,
)
from nexo.integrations.celery.channel import Arrived, Channel
from nexo.integrations.celery.intake import Mailbox
from nexo.integrations.celery.messages import OutgoingMessage
from nexo.integrations.celery.publisher import BackgroundPublisher
from nexo.integrations.celery.routes import CeleryRoutes
from nexo.integrations.jobs import MAX_RETRIES, Settlements
from nexo.model import Broker
from nexo.model.names import name_of
from nexo.version import __version__

_CLIENT_OPTIONS = (
    "ca_file", "cert_file", "client", "connect_timeout", "ping", "timeout", "token", "verify",
)  # fmt: skip
_RESTART_S = 10.0
"""How long a server that answered before is waited for: Celery's own retries end after 0.6 s."""
_lost: dict[str, float] = {}
"""When this process lost its connection to a server, by URL."""
_QUEUE_OPTIONS = (
    "max_jobs", "max_retries", "persistence", "rate", "time_limit", "visibility_timeout",
)  # fmt: skip


class Transport(virtual.Transport):
    """A connection to a Nexo server."""

    Channel = Channel
    driver_type = driver_name = "nexo"
    scheme = "nexo"
    can_parse_url = True
    default_port = DEFAULT_PORT
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (ConnectionLost, RequestTimeout, Unavailable, ClientClosed, OSError)
    channel_errors = (ChannelError, NexoError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        self._prefix = options.get("prefix", "")
        self._queue_options = {"max_retries": MAX_RETRIES} | _some(options, _QUEUE_OPTIONS)
        self._pid = os.getpid()
        self._arrived: deque[Arrived] = deque()
        self._failure: Exception | None = None
        self._rung = False
        """Whether the draining thread is about to check."""
        self._loop: Any = None
        self._bell: socket.socket
        self._ringer: socket.socket
        self._url = url_of(client, self.scheme)
        self._established = False
        self.nexo = Client(self._url, **self._client_options(client))
        link = self.nexo.link(Broker.QUEUE)
        self.routes = CeleryRoutes(self.nexo, self._prefix)
        self.leases = HeldLeases(link, "nexo-leases")
        self.settlements = Settlements(link, self.leases)
        self.events = BackgroundPublisher()
        self.mailboxes: dict[str, Mailbox] = {}
        self.undecided: set[str] = set()
        """Auto-deleted queues that have not been bound or used yet."""
        self.created: set[str] = set()
        self.ttls_ms: dict[str, int] = {}

    def _client_options(self, client: Any) -> dict[str, Any]:
        given = _some(client.transport_options, _CLIENT_OPTIONS)
        if client.connect_timeout:
            given.setdefault("connect_timeout", float(client.connect_timeout))
        given.setdefault("client", f"celery {os.getpid()}@{socket.gethostname()}")
        return {"while_down": "fail"} | given

    def driver_version(self) -> str:
        return __version__

    # -- connections

    def establish_connection(self) -> Transport:
        """Connect; if the only server was there a moment ago, it may be restarting."""
        lost_s = _lost.get(self._url)
        wait_s = 0.0
        if lost_s is not None and len(self.client.alt or ()) < 2:
            wait_s = max(0.0, lost_s + _RESTART_S - time.monotonic())
        insist(lambda: self.nexo.ping(Broker.QUEUE), (ConnectionLost, Unavailable), wait_s)
        _lost.pop(self._url, None)
        self._established = True
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        return self

    def create_channel(self, connection: Any) -> Any:
        """A channel of ``connection``: after a failover, kombu asks the transport that failed."""
        channel = connection.Channel(connection)
        connection.channels.append(channel)
        return channel

    def close_connection(self, connection: Any) -> None:
        """Give back what is held and disconnect."""
        for channel in list(self.channels):
            channel.close()
        self._end()

    def _collect(self, connection: Any) -> None:
        """The connection failed, or this process was forked and it is the parent's."""
        if os.getpid() != self._pid:
            return
        if self._established:
            _lost.setdefault(self._url, time.monotonic())
        for channel in list(self.channels):
            channel.abandon()
        self._end()

    def _end(self) -> None:
        self.unregister_from_event_loop(self, self._loop)
        for mailbox in self.mailboxes.values():
            with suppress(NexoError):
                mailbox.close()
        self.mailboxes.clear()
        self.events.close()
        self.settlements.close()
        self.leases.close()
        with suppress(NexoError):
            self.nexo.close()
        self._bell.close()
        self._ringer.close()

    # -- queues

    def name(self, queue: str) -> str:
        """The name of a queue on the server."""
        return name_of(self._prefix + queue)

    def queue(self, queue: str) -> Queue[Any]:
        """A queue, which may not exist."""
        return self.nexo.queue(self.name(queue))

    def create(self, queue: str, *, again: bool = False) -> None:
        """Make sure that a queue exists; one that does keeps its options."""
        if queue in self.created and not again:
            return
        found = self.queue(queue)
        if not found.exists():
            with suppress(AlreadyExists):  # another client was quicker
                found.create(**self._queue_options)
        self.created.add(queue)

    def push(self, queue: str, sent: OutgoingMessage) -> None:
        """Store a message; one that is published again is stored once."""
        limits = [ttl for ttl in (sent.ttl_ms, self.ttls_ms.get(queue, 0)) if ttl]
        self.queue(queue).push(
            sent.body,
            priority=sent.priority,
            delay=sent.delay_ms / 1_000,
            ttl=min(limits, default=0) / 1_000,
            dedup_key=sent.tag,
            headers=sent.headers,
        )

    # -- events: threads bring them, whoever drains them delivers

    def arrive(self, arrived: Arrived) -> None:
        """A message is there; any thread may call."""
        self._arrived.append(arrived)
        self._ring()

    def fail(self, error: Exception) -> None:
        """Nothing more will come: raise ``error`` where events are drained."""
        self._failure = error
        self._ring()

    def withdraw(self, channel: object) -> list[Arrived]:
        """Take back what has arrived for a channel that closes."""
        found: list[Arrived] = []
        for _ in range(len(self._arrived)):  # others may be adding to it
            arrived = self._arrived.popleft()
            (found if arrived.channel is channel else self._arrived).append(arrived)
        return found

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message, waiting up to ``timeout``; ``socket.timeout`` if none comes."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_next():
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not select.select([self._bell], [], [], left_s)[0]:
                raise TimeoutError("no message came in time")
            self._hush()

    def _deliver_next(self) -> bool:
        try:
            arrived = self._arrived.popleft()
        except IndexError:
            if self._failure is not None:
                raise self._failure from None
            return False
        arrived.channel.deliver(arrived)
        return True

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop = loop
        loop.add_reader(self._bell.fileno(), self.on_readable, self._bell.fileno())

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        if loop is not None and self._bell.fileno() >= 0:
            loop.remove(self._bell.fileno())
        self._loop = None

    def on_readable(self, *_: Any) -> None:
        self._hush()
        try:
            while self._deliver_next():
                pass
        finally:
            if self._arrived:
                self._ring()

    def _ring(self) -> None:
        if self._rung:
            return
        self._rung = True
        with suppress(BlockingIOError, OSError):  # it rings already, or all is over
            self._ringer.send(b"\x01")

    def _hush(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._bell.recv(4_096)
        self._rung = False  # before looking: what comes from here on rings again


class TLSTransport(Transport):
    """The same over TLS: ``nexos://``."""

    scheme = "nexos"


def url_of(client: Any, scheme: str) -> str:
    """The server's URL, which kombu hands over whole, or in parts after a failover."""
    host = client.hostname or ""
    if "://" in host:
        parts = urlsplit(host)
        if parts.hostname:
            return parts._replace(scheme=scheme, path="").geturl()
        return f"{scheme}://127.0.0.1"
    login = ""
    if client.userid:
        login = quote(client.userid, safe="") + ":" + quote(client.password or "", safe="") + "@"
    return f"{scheme}://{login}{host or '127.0.0.1'}:{client.port or DEFAULT_PORT}"


def _some(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
