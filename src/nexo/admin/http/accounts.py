"""What the dashboard knows of users: who they are and what they may do; no I/O.

The brokers decide about every request themselves. This only shows it to people in advance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from nexo.model import Broker


@dataclass(frozen=True, slots=True)
class Credentials:
    """With which requests are sent to the brokers."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    caller: str | None = None
    """Where they are: the brokers count failed logins by address."""


NOBODY = Credentials()
"""Whoever asks while authentication is off."""


class May(msgspec.Struct, frozen=True):
    """What a user may do to a thing, or without its name to some thing of a broker."""

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
        """What a user may do to ``name``; for an empty one, to anything at all."""
