"""A client as services see it, and how they answer it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from nexo.access.login import Identity
from nexo.errors import NexoError

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
