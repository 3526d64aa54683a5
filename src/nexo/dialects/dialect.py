"""What a protocol brings to the server, and what the server gives to its sessions.

A dialect has a name, recognises its own connections by their first bytes, and makes a session
for each of them. The gate asks every dialect in turn and passes the socket to the broker's
process together with the dialect's name. See ``docs/design/adding-a-dialect.md``.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from nexo.access.guard import Guard
from nexo.config import Settings
from nexo.dialects.busy_poll import BusyPoll
from nexo.errors import NexoError
from nexo.model import Broker, Clock
from nexo.services.backup import Backups
from nexo.services.connection import Connection, HostOverview
from nexo.services.service import Service


class Claim(enum.Enum):
    """What a dialect answers to first bytes that name no broker."""

    MORE = enum.auto()
    """Too few to decide."""
    NO = enum.auto()
    """Not this protocol."""


class Origin(enum.Enum):
    """Where a connection comes from."""

    CLIENT = enum.auto()
    ADMIN = enum.auto()
    """The dashboard's process, which names the address of the browser it speaks for."""
    LINK = enum.auto()
    """Another broker's process, which has logged in the client it speaks for."""


class Session(Connection, Protocol):
    """One connection as the host sees it; also the asyncio protocol of its transport."""

    address: str
    """The client's IP address, ``local`` for a unix socket."""
    opened_ms: int
    origin: Origin
    dialect: str

    @property
    def introduced(self) -> bool:
        """Has sent a request, or logged in where authentication is on."""

    def check(self, now_ms: int) -> None:
        """Ping a silent client, or kick one that is stuck; called now and then."""

    def finish(self) -> None:
        """Take no more requests, send what was answered, then end the stream (FIN)."""

    def dismiss(self) -> None:
        """The server ends: `finish`, and say what has not run if the protocol has words for it."""

    def status(self) -> dict[str, Any]:
        """What the dashboard shows of the connection."""


class TurnPort(Protocol):
    """The current turn of the loop."""

    reading: bool
    """Requests of a connection are being run."""
    asked: bool
    """Something is to be done at the end of the turn."""

    def reply(self, step: Callable[[], None]) -> None:
        """Call once at the end of the turn, after all that may answer requests."""

    def read(self, reader: object) -> None:
        """The requests of ``reader`` have run and asked for something; a lone one's turn ends."""


class HostPort(Protocol):
    """What a session may ask of the host."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    guard: Guard | None
    """Logs connections in; None while authentication is off."""
    busy_poll: BusyPoll
    backups: Backups
    overview: HostOverview

    @property
    def clock(self) -> Clock:
        """The time that services see."""

    @property
    def turn(self) -> TurnPort:
        """The end of this turn of the loop."""

    @property
    def services(self) -> Mapping[Broker, Service]:
        """The services of this process."""

    def next_id(self) -> int:
        """A number that no other connection of this process has had."""

    def opened(self, session: Session) -> None:
        """Count a connection; raises `Overloaded` if there are too many."""

    def closed(self, session: Session) -> None:
        """The connection ended: let the services release what it held."""

    def congested(self, session: Session) -> None:
        """The client's write buffer went over its limit."""

    def drained(self, session: Session) -> None:
        """The client's write buffer is below its low mark again."""

    def link_path(self, broker: Broker) -> str:
        """The unix socket of another broker's process; raises `Unavailable` if there is none."""


class Speaker(Protocol):
    """A dialect at work in one host."""

    def session(self, origin: Origin) -> asyncio.BaseProtocol:
        """A session for a new connection."""

    def stop(self) -> None:
        """Refuse requests from now on; those under way are still answered."""


class Dialect(Protocol):
    """One protocol."""

    name: str
    home: Broker
    """Where connections go that do not say which broker they are for."""

    def claim(self, first: bytes) -> Broker | Claim:
        """The broker of a connection that begins like this, if it is ours."""

    def claim_alpn(self, names: Sequence[str]) -> Broker | None:
        """The broker of a TLS connection that offers these protocol names; None if none is ours."""
        return None

    def refusal(self, first: bytes, error: NexoError) -> bytes:
        """What a rejected client reads; ``first`` is the beginning of its request.

        Empty if the protocol has no words for it: then the connection is closed.
        """

    def serves(self, brokers: Collection[Broker]) -> bool:
        """Whether it has connections in a process with these brokers."""
        return True

    def start(self, host: HostPort) -> Speaker:
        """Begin to serve; called once per process, before the first connection."""
