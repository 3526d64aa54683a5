"""The context of an endpoint: the brokers as the caller may use them, and the caller.

The brokers decide about every request themselves. Permissions are known here only to
show users in advance what they may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from nexo import limits
from nexo.client._async.client import AsyncClient
from nexo.client._async.requests import request as send
from nexo.client.address import Address
from nexo.config import Settings
from nexo.errors import Forbidden, Overloaded
from nexo.model import Broker
from nexo.protocol.ops import BROKER_OF, Op

if TYPE_CHECKING:
    from nexo.admin.watching.sampler import Sampler

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Credentials:
    """With which requests are sent to the brokers."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    caller: str | None = None
    """The caller's address: the brokers count failed logins by it."""


NOBODY = Credentials()
"""Whoever asks while authentication is off."""


class May(msgspec.Struct, frozen=True):
    """A user's permissions on a thing, or without its name on some thing of a broker."""

    read: bool = True
    write: bool = True
    admin: bool = True


class Account(msgspec.Struct, frozen=True):
    """A user of ``nexo user``."""

    name: str
    grants: list[str]
    """``broker:action:pattern``."""
    tokens: list[str]
    """The labels of the user's tokens."""
    password: bool
    """Whether the user can log in with a password."""


class Accounts(Protocol):
    """The users of a server."""

    def who(self, credentials: Credentials) -> str | None:
        """The name of the user that these credentials belong to."""

    def every(self) -> list[Account]:
        """Every user, by name."""

    def may(self, user: str, broker: Broker, name: str) -> May:
        """A user's permissions on ``name``; for an empty one, on anything at all."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The server this process belongs to."""

    settings: Settings
    brokers: Address
    """The addresses of its brokers."""
    credentials: Credentials = NOBODY
    """The identity of this process."""
    accounts: Accounts | None = None
    """Its users; None while authentication is off."""
    url: str = ""
    """The address that users open."""

    @property
    def run_folder(self) -> Path | None:
        """The folder of the state that this server's processes share; None for one process."""
        folder = self.brokers.door_folder
        return Path(folder) if folder else None

    def client(self, who: Credentials) -> AsyncClient:
        """A new client of the brokers; a request that cannot be sent fails at once."""
        return AsyncClient(
            replace(self.brokers, caller=who.caller),
            client="dashboard",
            user=who.user,
            password=who.password,
            token=who.token,
            while_down="fail",
            timeout=10.0,
        )


class LoginSeen(msgspec.Struct):
    """One login to this dashboard."""

    id: str
    user: str
    how: str
    """``password`` or ``token``."""
    address: str | None
    since_ms: int
    used_ms: int


class DashboardLogins(Protocol):
    """The logins of this dashboard."""

    def seen(self) -> list[LoginSeen]:
        """Every login, the newest first."""

    async def end(self, user: str, login: str) -> int:
        """End one login of a user, or all without its id; says how many."""


Watchable: TypeAlias = Callable[[], Awaitable[frozenset[Broker]]]
Names: TypeAlias = Callable[[Broker], Awaitable[frozenset[str]]]


async def _everything() -> frozenset[Broker]:
    return frozenset(Broker)


async def _unasked(broker: Broker) -> frozenset[str]:
    raise AssertionError("a caller who may read everything needs no names")


@dataclass(slots=True)
class ApiContext:
    """The brokers as one caller may use them, and what is sampled of them for all callers."""

    place: ServerAccess
    client: AsyncClient
    sampler: Sampler
    stopping: asyncio.Event
    """Set when long replies must end."""
    tails: set[object]
    """Live views that are open, shared by all callers."""
    ending: set[asyncio.Task[None]] = field(default_factory=set)
    """Clean-up of live views that were left, shared by all callers."""
    who: Credentials = NOBODY
    user: str | None = None
    """The caller's name; None while authentication is off."""
    logins: DashboardLogins | None = None
    """The logins of this dashboard; None while nobody has to log in."""
    watchable: Watchable = _everything
    """Which brokers the caller may read as a whole; asked again for every use."""
    names: Names = _unasked
    """The queues or streams that the caller may see, of a broker they may not read as a whole."""

    async def visible(self, broker: Broker) -> frozenset[str] | None:
        """The queues or streams that the caller may see; None if that is all."""
        return None if broker in await self.watchable() else await self.names(broker)

    async def ask(self, op: Op, request: object, reply: type[T]) -> T:
        """The reply to a request that the client does not offer."""
        broker = BROKER_OF[op]
        assert broker is not None
        return await send(self.client.link(broker).call, op, request, reply)

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end even if its caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def check_watchable(self, *brokers: Broker) -> None:
        """Raise `Forbidden` unless the caller may read these brokers as a whole."""
        missing = set(brokers) - await self.watchable()
        if missing:
            names = ", ".join(sorted(broker.label for broker in missing))
            raise Forbidden(f"this takes permission to read everything of {names}")

    @asynccontextmanager
    async def own_client(self) -> AsyncIterator[AsyncClient]:
        """A connection for one live view; `Overloaded` if too many are open."""
        if len(self.tails) >= limits.HTTP_LIVE_VIEWS:
            raise Overloaded(f"{limits.HTTP_LIVE_VIEWS} live views are open; close one")
        mark = object()
        self.tails.add(mark)
        try:
            async with self.place.client(self.who) as client:
                yield client
        finally:
            self.tails.discard(mark)
