"""A client as services see it, how they answer it, and what an operator sees of all of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeAlias, TypeVar

from nexo.access.grants import Extent
from nexo.access.login import Identity
from nexo.access.permit import ADMIN, READ, permit
from nexo.errors import NexoError
from nexo.model import Broker

S = TypeVar("S")
T = TypeVar("T")

Done: TypeAlias = Callable[[T | NexoError], None]
"""``done(result)`` or ``done(error)``, exactly once, now or later; on a closed connection the
dialect drops it. A use case may also raise a `NexoError` before it returns: then ``done`` is
not called."""


def then(step: Callable[[S], T], done: Done[T]) -> Done[S]:
    """Answer ``done`` with what ``step`` makes of an earlier result, or with the error."""

    def finished(found: S | NexoError) -> None:
        if isinstance(found, NexoError):
            done(found)
            return
        try:
            result = step(found)
        except NexoError as error:
            done(error)
        else:
            done(result)

    return finished


class Connection(Protocol):
    """One client, whatever protocol it speaks."""

    id: int
    """Unique in this process, never reused."""
    name: str
    """What the client called itself, or its address."""
    identity: Identity | None
    """The user it logged in as; None only while authentication is off."""
    closed: bool
    congested: bool
    """The client reads too slowly: its write buffer is over the limit."""
    resends: bool
    """The client sends a request again that was refused with `ShuttingDown`."""

    def kick(self, reason: str) -> None:
        """Close the connection, dropping unsent data."""


def user_of(connection: Connection) -> str:
    """The name of its user; empty while authentication is off."""
    return "" if connection.identity is None else connection.identity.user.name


SHOWN = 1_000
"""Connections in one list: the newest."""


class ShownConnection(Connection, Protocol):
    """A connection that describes itself."""

    def status(self) -> dict[str, Any]: ...


class HostOverview:
    """The use cases; for users who may read or administer all of a broker."""

    def __init__(
        self,
        status: Callable[[Broker], dict[str, Any]],
        connections: Collection[ShownConnection],
    ) -> None:
        self._status = status
        self._connections = connections

    def status(self, connection: Connection, broker: Broker) -> dict[str, Any]:
        """What the broker and its process say of themselves."""
        _permit(connection, broker)
        return self._status(broker)

    def connections(self, connection: Connection, broker: Broker) -> list[dict[str, Any]]:
        """The newest connections of the broker's process."""
        _permit(connection, broker)
        newest = heapq.nlargest(SHOWN, self._connections, key=lambda one: one.id)
        return [one.status() for one in newest]


def _permit(connection: Connection, broker: Broker) -> None:
    permit(connection.identity, broker, READ + ADMIN, "", Extent.PREFIX)
