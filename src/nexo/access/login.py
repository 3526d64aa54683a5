"""Checks credentials against the users file, which may change while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from nexo import limits
from nexo.access.grants import Action, Extent, Grant
from nexo.access.scram import Exchange
from nexo.access.users import NOBODYS, User, UsersFile, hash_token, new_token
from nexo.errors import ConfigError, Unauthenticated
from nexo.model import Broker

log = logging.getLogger("nexo.access")

INTERNAL = User("(nexo)", grants=(Grant(action=Action.READ),))
"""The identity of the server's own processes, such as the dashboard's: they read and change
nothing. No user can have this name, which `check_name` rejects.
"""
_TOKEN_FILE = "internal.token"
"""In the run folder, which only this server's user may enter: how its processes log in to each
other. It is new in every run.
"""


def write_internal_token(run_folder: Path) -> None:
    path = run_folder / _TOKEN_FILE
    path.touch(mode=0o600)
    path.write_text(new_token(), encoding="ascii")


def read_internal_token(run_folder: Path | None) -> str | None:
    try:
        return (run_folder / _TOKEN_FILE).read_text("ascii") if run_folder else None
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The credentials of a client, in whatever protocol: a user and password, or a token."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


class Identity:
    """A user as proved by one credential. Sessions hold it, and notice when it is revoked."""

    __slots__ = ("_decisions", "credential", "user", "valid")

    def __init__(self, user: User, credential: str | None) -> None:
        self.user = user
        self.credential = credential
        """The stored hash; None for clients that another of our processes logged in."""
        self.valid = True
        self._decisions: dict[tuple[Broker, Action, Extent, str], bool] = {}

    def allows(self, broker: Broker, action: Action, extent: Extent, name: str) -> bool:
        """Whether the user may; cached until its permissions change."""
        key = (broker, action, extent, name)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self.user.allows(broker, action, extent, name)
            if len(name) <= limits.DECISION_NAME_CHARS:
                if len(self._decisions) >= limits.DECISIONS:
                    self._decisions.clear()
                self._decisions[key] = allowed
        return allowed

    def update(self, now: User | None) -> None:
        """Apply a changed file: a removed credential ends the identity, new permissions apply."""
        self._decisions.clear()
        self.valid = (
            now is not None
            and set(self.user.grants) <= set(now.grants)
            and (self.credential is None or self.credential in now.credentials)
        )
        self.user = now or self.user


class Logins:
    """Users of a running server.

    A password's slow hash is computed once per credential: verified ones are remembered under a
    key that only this process knows.
    """

    def __init__(self, path: Path, internal_token: str | None = None) -> None:
        self._file = UsersFile(path)
        self._internal = hash_token(internal_token) if internal_token else None
        self.users: dict[str, User] = {}
        self._by_token: dict[str, User] = {}
        self._identities: dict[tuple[str, str | None], Identity] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._key = os.urandom(32)
        self._verified: set[bytes] = set()

    # -- who is it ---------------------------------------------------------------

    def by_token(self, token: str) -> Identity:
        """The owner of a token, or `Unauthenticated`."""
        hashed = hash_token(token)
        if hashed == self._internal:
            return self._identity(INTERNAL, hashed)
        user = self._by_token.get(hashed)
        if user is None:
            raise wrong()
        return self._identity(user, hashed)

    def known(self, name: str, password: str) -> Identity | None:
        """The user if this password was verified before; cheap."""
        user = self.users.get(name)
        if user is None or user.password is None:
            return None
        proof = self._proof(name, user.password, password)
        return self._identity(user, user.password) if proof in self._verified else None

    def stored_password(self, name: str) -> str:
        """The hash to compare a password with; for an unknown user, one that matches nothing."""
        user = self.users.get(name)
        return (user.password if user else None) or NOBODYS

    def verified(self, name: str, password: str, stored: str) -> Identity:
        """The user whose password matched ``stored``; `Unauthenticated` if the file has changed."""
        user = self.users.get(name)
        if user is None or user.password != stored:
            raise wrong()
        self._verified.add(self._proof(name, stored, password))
        return self._identity(user, stored)

    def scram_challenge(self, exchange: Exchange, mechanism: str) -> bytes:
        """The answer to a client's first SCRAM message, for unknown users too."""
        user = self.users.get(exchange.user)
        return exchange.challenge(user.scram.get(mechanism) if user else None, self._key)

    def scram_verified(self, exchange: Exchange, final: bytes) -> tuple[Identity, bytes]:
        """The user and the last answer, or `Unauthenticated`."""
        answer = exchange.verify(final)
        user = self.users.get(exchange.user)
        if user is None or user.password is None:
            raise wrong()
        return self._identity(user, user.password), answer

    def linked(self, name: str | None) -> Identity:
        """A user that another of our processes has verified; None is that process itself."""
        if name is None:
            return self._identity(INTERNAL, None)
        user = self.users.get(name)
        if user is None:
            raise wrong()
        return self._identity(user, None)

    def _identity(self, user: User, credential: str | None) -> Identity:
        key = (user.name, credential)
        return self._identities.setdefault(key, Identity(user, credential))

    def _proof(self, name: str, stored: str, password: str) -> bytes:
        message = f"{name}\0{stored}\0{password}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).digest()

    # -- the file ------------------------------------------------------------------

    def refresh(self) -> bool:
        """Reread the file if it changed; returns whether it did."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._take(self._file.load())
        except ConfigError as error:
            log.error("%s; the users stay as they were", error.message)
            return False
        return True

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self._file.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _take(self, users: dict[str, User]) -> None:
        self.users = users
        self._by_token = {
            hashed: user for user in users.values() for hashed in user.tokens.values()
        }
        self._verified.clear()
        for identity in self._identities.values():
            if identity.user is not INTERNAL:
                identity.update(users.get(identity.user.name))
        self._identities = {key: one for key, one in self._identities.items() if one.valid}


def wrong() -> Unauthenticated:
    """The error does not say which part was wrong."""
    return Unauthenticated("the user, password or token is wrong")
