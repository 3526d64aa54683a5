"""Checks credentials against the users file, which may change while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from pathlib import Path

from nexo.errors import Unauthenticated
from nexo.server.access import secrets
from nexo.server.access.users import User, UsersFile

log = logging.getLogger("nexo.access")

RECHECK_MS = 1_000
FAILURES = 5
LOCKOUT_MS = 10_000
_MOST_ADDRESSES = 10_000


class Logins:
    """Users of a running server. Failed tries are limited per address.

    A password's slow hash is computed once per credential: what has been verified is
    remembered under a key only this process knows.
    """

    def __init__(self, path: Path) -> None:
        self._file = UsersFile(path)
        self._users: dict[str, User] = {}
        self._by_token: dict[str, User] = {}
        self._stamp: tuple[int, int] | None = None
        self._checked_ms = -RECHECK_MS
        self._key = os.urandom(32)
        self._verified: set[bytes] = set()
        self._failures: dict[str, tuple[int, int]] = {}
        self.version = 0
        """Rises whenever the file changed, so that cached decisions can be dropped."""

    def by_password(self, name: str, password: str, address: str, now_ms: int) -> User:
        """The user, or `Unauthenticated`."""
        self.refresh(now_ms)
        self._check_limit(address, now_ms)
        user = self._users.get(name)
        if user is None or user.password is None or not self._matches(user, password):
            raise self._failed(address, now_ms)
        return user

    def by_token(self, token: str, address: str, now_ms: int) -> User:
        """The user, or `Unauthenticated`."""
        self.refresh(now_ms)
        self._check_limit(address, now_ms)
        user = self._by_token.get(secrets.hash_token(token))
        if user is None:
            raise self._failed(address, now_ms)
        return user

    def current(self, user: User) -> User | None:
        """The user as the file has it now; None if it was removed."""
        return self._users.get(user.name)

    def refresh(self, now_ms: int) -> None:
        """Reread the file if it changed; looked at once a second at most."""
        if now_ms - self._checked_ms < RECHECK_MS:
            return
        self._checked_ms = now_ms
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._users = self._file.load()
            self._by_token = {
                hashed: user for user in self._users.values() for hashed in user.tokens.values()
            }
            self._verified.clear()
            self.version += 1

    def _look(self) -> tuple[int, int] | None:
        try:
            stat = self._file.path.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    def _matches(self, user: User, password: str) -> bool:
        assert user.password is not None
        message = f"{user.name}\0{user.password}\0{password}".encode()
        proof = hmac.new(self._key, message, hashlib.sha256).digest()
        if proof in self._verified:
            return True
        if not secrets.password_matches(password, user.password):
            return False
        self._verified.add(proof)
        return True

    def _check_limit(self, address: str, now_ms: int) -> None:
        count, last_ms = self._failures.get(address, (0, 0))
        if count >= FAILURES and now_ms - last_ms < LOCKOUT_MS:
            raise Unauthenticated("too many failed logins; wait 10 seconds")

    def _failed(self, address: str, now_ms: int) -> Unauthenticated:
        if len(self._failures) >= _MOST_ADDRESSES:
            self._failures.clear()
        count, last_ms = self._failures.get(address, (0, 0))
        fresh = now_ms - last_ms < LOCKOUT_MS
        self._failures[address] = (count + 1 if fresh else 1, now_ms)
        log.warning("failed login from %s", address)
        return Unauthenticated("the user, password or token is wrong")
