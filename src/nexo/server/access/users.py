"""The users file: names, hashed secrets and permissions, as JSON that people may read.

Written aside and renamed, mode 0600, so a server that rereads it never sees half of it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from nexo.errors import AlreadyExists, ConfigError, InvalidInput, NotFound
from nexo.model import Broker, check_name
from nexo.server.access import secrets


class Action(enum.StrEnum):
    """What a request does to the thing it names."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    """Create, change and delete queues, streams and groups; read anything's status."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for one action (or ``*``) on one broker (or ``*``), for names that match."""

    broker: str = "*"
    action: str = "*"
    pattern: str = "*"

    def allows(self, broker: Broker, action: Action, name: str) -> bool:
        """Whether this grant covers the request."""
        return (
            self.broker in ("*", broker.label)
            and self.action in ("*", action)
            and fnmatchcase(name, self.pattern)
        )

    def __str__(self) -> str:
        return f"{self.broker}:{self.action}:{self.pattern}"


def parse_grant(text: str) -> Grant:
    """A grant written ``broker:action:pattern``, as in ``queue:write:jobs.*`` or ``*:read:*``."""
    parts = text.split(":", 2)
    brokers = {"*", *(broker.label for broker in Broker)}
    if len(parts) != 3 or parts[0] not in brokers or parts[1] not in {"*", *Action} or not parts[2]:
        raise InvalidInput(
            f"grant {text!r} is not broker:action:pattern; "
            f"brokers are {', '.join(sorted(brokers))}, actions are *, {', '.join(Action)}"
        )
    return Grant(*parts)


@dataclass(frozen=True, slots=True)
class User:
    """One user; secrets are hashes."""

    name: str
    password: str | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    """Label to hash."""
    grants: tuple[Grant, ...] = ()

    def allows(self, broker: Broker, action: Action, name: str) -> bool:
        """Whether any grant covers the request."""
        return any(grant.allows(broker, action, name) for grant in self.grants)


class UsersFile:
    """Reads and writes the file; every change is saved at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, User]:
        """All users by name; none if there is no file."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            users = msgspec.json.decode(raw, type=list[User])
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self.path} is not a users file: {error}") from None
        return {user.name: user for user in users}

    def add(self, name: str, password: str | None, grants: Iterable[Grant]) -> None:
        """Create a user."""
        users = self.load()
        if check_name(name, "user") in users:
            raise AlreadyExists(f"user {name!r} exists; change it with passwd, grant or token")
        hashed = secrets.hash_password(password) if password else None
        self._save(users | {name: User(name, hashed, {}, tuple(grants))})

    def remove(self, name: str) -> None:
        """Delete a user."""
        users = self.load()
        self._get(users, name)
        self._save({key: user for key, user in users.items() if key != name})

    def set_password(self, name: str, password: str) -> None:
        """Replace the password."""
        users = self.load()
        changed = replace(self._get(users, name), password=secrets.hash_password(password))
        self._save(users | {name: changed})

    def set_grants(self, name: str, grants: Iterable[Grant]) -> None:
        """Replace the permissions."""
        users = self.load()
        self._save(users | {name: replace(self._get(users, name), grants=tuple(grants))})

    def add_token(self, name: str, label: str) -> str:
        """Give the user a new token and return it; it cannot be shown again."""
        users = self.load()
        user = self._get(users, name)
        token = secrets.new_token()
        tokens = user.tokens | {check_name(label, "token"): secrets.hash_token(token)}
        self._save(users | {name: replace(user, tokens=tokens)})
        return token

    def revoke_token(self, name: str, label: str) -> None:
        """Take a token back."""
        users = self.load()
        user = self._get(users, name)
        if label not in user.tokens:
            raise NotFound(f"user {name!r} has no token {label!r}")
        tokens = {key: hashed for key, hashed in user.tokens.items() if key != label}
        self._save(users | {name: replace(user, tokens=tokens)})

    @staticmethod
    def _get(users: dict[str, User], name: str) -> User:
        if name not in users:
            raise NotFound(f"there is no user {name!r}")
        return users[name]

    def _save(self, users: dict[str, User]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".new")
        text = msgspec.json.format(msgspec.json.encode(list(users.values())), indent=2)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self.path)
