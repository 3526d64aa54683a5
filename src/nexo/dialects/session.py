"""What the sessions of all dialects have in common: how a connection begins, waits and ends.

Memory for requests over the usual size is bounded over all connections of a protocol. A request
takes its room before it arrives and gives it back once it is answered. Without room its connection
is not read from; connections get room in the order in which they asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from nexo import limits
from nexo.access.login import ClientCredentials, Identity
from nexo.dialects.dialect import Dialect, HostPort, Origin
from nexo.errors import NexoError, Unavailable
from nexo.model import Broker
from nexo.services.service import Service

if TYPE_CHECKING:
    from nexo.services.pubsub.service import PubSubService
    from nexo.services.queue.service import QueueService
    from nexo.services.store.service import StoreService
    from nexo.services.stream.service import StreamService


class LargeRequests:
    """The room that is taken, and who waits for some."""

    def __init__(self, limit_bytes: int = limits.LARGE_REQUESTS_BYTES) -> None:
        self._limit = limit_bytes
        self._taken = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for room."""
        return bool(self._waiting)

    def take(self, size: int, given: Callable[[], None]) -> bool:
        """Take room for a request. If there is none yet, ``given`` is called once it is taken."""
        if self._waiting or not self._fits(size):
            self._waiting.append((size, given))
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """A request was answered, or its connection is gone."""
        self._taken -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, given = self._waiting.popleft()
            self._taken += size
            given()

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limit


log = logging.getLogger("nexo.session")

READ_BYTES = 256 * 1024
"""The most that one connection may deliver per callback, for fairness between connections."""


class DialectState:
    """What the sessions of one dialect share in a process; dialects add their own."""

    def __init__(self, dialect: Dialect, host: HostPort) -> None:
        self.dialect = dialect
        self.host = host
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        """All connections are read into it: a read and its callback are never interleaved."""
        self.stranger_buffer = self.read_buffer[: limits.BEFORE_LOGIN_BYTES]
        """Smaller, for a client that has not logged in: what it sends after its login is kept."""
        self.large_requests = LargeRequests()
        self.stopping = False

    def stop(self) -> None:
        """Refuse requests from now on; those under way are still answered."""
        self.stopping = True

    @property
    def store(self) -> StoreService:
        """The store, if it runs in this process; `Unavailable` otherwise, as for the others."""
        return cast("StoreService", self._service(Broker.STORE))

    @property
    def pubsub(self) -> PubSubService:
        return cast("PubSubService", self._service(Broker.PUBSUB))

    @property
    def queues(self) -> QueueService:
        return cast("QueueService", self._service(Broker.QUEUE))

    @property
    def streams(self) -> StreamService:
        return cast("StreamService", self._service(Broker.STREAM))

    def _service(self, broker: Broker) -> Service:
        found = self.host.services.get(broker)
        if found is None:
            raise Unavailable(f"the {broker.label} broker runs in another process: connect to it")
        return found


S = TypeVar("S", bound=DialectState)
P = TypeVar("P", bound=asyncio.BaseProtocol)


class SessionSpeaker(Generic[S, P]):
    """Implements `nexo.dialects.dialect.Speaker`: one session of a class per connection."""

    def __init__(self, state: S, make: Callable[[S, Origin], P]) -> None:
        self.state = state
        self._make = make

    def session(self, origin: Origin) -> P:
        return self._make(self.state, origin)

    def stop(self) -> None:
        self.state.stop()


class BaseSession(ABC):
    """One connection, but for the protocol's own part.

    A dialect's session also derives from one of asyncio's protocols.
    """

    __slots__ = (
        "_client_leaves", "_closing", "_farewell", "_gone", "_holds", "_host", "_transport",
        "address", "closed", "congested", "id", "identity", "name", "opened_ms", "origin",
        "resends",
    )  # fmt: skip

    dialect = "other"
    """The name of the protocol."""

    def __init__(self, host: HostPort, origin: Origin) -> None:
        self._host = host
        self._transport: asyncio.Transport
        self._closing = False
        self._gone = False
        self._holds = 0
        """Reasons to run no requests, beside congestion."""
        self._farewell: asyncio.TimerHandle | None = None
        self.id = host.next_id()
        self.name = ""
        self.closed = False
        """Replies are dropped from now on."""
        self.congested = False
        self.resends = False
        self.opened_ms = host.clock.now_ms()
        self.address = "local"
        self.identity: Identity | None = None
        self.origin = origin
        self._client_leaves = False
        """The client was told to end the connection, which TLS cannot end half."""

    # -- the protocol's own part ----------------------------------------------------

    @property
    @abstractmethod
    def introduced(self) -> bool:
        """Has sent a request, or logged in where authentication is on."""

    def check(self, now_ms: int) -> None:  # noqa: B027 - many have nothing to check
        """Ping a silent client, or kick one that is stuck; called now and then."""

    def flush(self) -> int:
        """Write every reply gathered so far; returns the bytes. Many gather nothing."""
        return 0

    @abstractmethod
    def refuse(self, error: NexoError) -> None:
        """Say why no request can be taken, then `finish`."""

    # -- asyncio's side ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        transport.set_write_buffer_limits(high=self._host.settings.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = peer[0]
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else self.address
        try:
            self._host.opened(self)
        except NexoError as error:
            self.refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything this client held."""
        if self._gone:
            return
        self.closed = self._gone = True
        if self._farewell is not None:
            self._farewell.cancel()
        self._host.closed(self)

    def pause_writing(self) -> None:
        """The client reads too slowly: read no more of its requests."""
        self.congested = True
        if not self._closing:
            self._stop_reading()
        self._host.congested(self)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.congested = False
        self._read_on()
        if not self.congested:
            self._host.drained(self)

    def eof_received(self) -> bool:
        """The client sends no more; close, which releases what it held (SPEC D8)."""
        return False

    # -- requests that wait ---------------------------------------------------------

    def hold(self) -> None:
        """Run no more requests until `release`, which every hold needs."""
        self._holds += 1
        if not self._closing:
            self._stop_reading()

    def release(self) -> None:
        """Run requests again, unless something else holds them."""
        self._holds -= 1
        self._read_on()

    def log_in(self, given: ClientCredentials, done: Callable[[NexoError | None], None]) -> None:
        """Identify the client; ``done`` gets the error or None, now or later.

        Further requests wait until then, and guesses for the last one. While authentication is
        off, every login succeeds.
        """
        guard = self._host.guard
        if guard is None:
            done(None)
            return
        ended = held = False

        def end(error: NexoError | None) -> None:
            nonlocal ended
            ended = True
            done(error)
            if held:
                self.release()

        login = guard.login_linked if self.origin is Origin.LINK else guard.login
        login(self, given, end)
        if not ended:
            held = True
            self.hold()

    @property
    def _may_run(self) -> bool:
        return not (self.closed or self._closing or self.congested or self._holds)

    def _read_on(self) -> None:
        if self._may_run:
            self._start_reading()

    def _stop_reading(self) -> None:
        """Run no more requests, not even those that have arrived."""
        self._transport.pause_reading()

    def _start_reading(self) -> None:
        """Run those that have arrived, then read more."""
        self._transport.resume_reading()

    # -- ends -----------------------------------------------------------------------

    def kick(self, reason: str) -> None:
        """Close the connection now, dropping what was not sent."""
        if not self._gone:
            log.info("closing %s: %s", self.name, reason)
            self._closing = True
            self._transport.abort()

    def finish(self) -> None:
        """Take no more requests, send what was answered, then end the stream (FIN).

        What the client still sends is read and dropped for a moment: closing with unread data
        would send RST, and the client would lose the replies.
        """
        if self.closed or self._closing:
            return
        self._closing = True
        self.flush()
        self.closed = True
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError as error:  # its client reset it, which was not read yet
                self.kick(str(error))
                return
        elif not self._client_leaves:
            self._transport.close()
            return
        self._transport.resume_reading()
        self._await_farewell(self._unsent_bytes, limits.LONGEST_FAREWELL_S)

    def dismiss(self) -> None:
        """The server ends: `finish`."""
        self.finish()

    def _await_farewell(self, unsent: int, left_s: float) -> None:
        """Wait for the client's end as long as it reads what was sent."""

        def look() -> None:
            now = self._unsent_bytes
            if 0 < now < unsent and left_s > limits.FAREWELL_S:
                self._await_farewell(now, left_s - limits.FAREWELL_S)
            else:
                self._transport.abort()

        self._farewell = self._host.loop.call_later(limits.FAREWELL_S, look)

    @property
    def _unsent_bytes(self) -> int:
        """What the client's machine has not acknowledged."""
        queued = array("i", [0])
        with contextlib.suppress(OSError):
            ioctl(self._transport.get_extra_info("socket").fileno(), TIOCOUTQ, queued)
        return self._transport.get_write_buffer_size() + queued[0]

    def status(self) -> dict[str, Any]:
        """What the dashboard shows of the connection; a dialect adds what it counts."""
        return {
            "id": self.id,
            "dialect": self.dialect,
            "name": self.name,
            "address": self.address,
            "user": self.identity.user.name if self.identity else None,
            "opened_ms": self.opened_ms,
            "unsent_bytes": self._transport.get_write_buffer_size(),
            "slow": self.congested,
            "internal": self.origin is Origin.LINK,
            "heard_ms": self.opened_ms,
            "requests": 0,
            "bytes_in": 0,
            "bytes_out": 0,
            "in_flight": 0,
            "hello": False,
        }
