"""Logs connections in and monitors them while authentication is on.

A dialect accepts no other request before the login; use cases check permissions with
`permit`. How often a client may try is limited.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple, Protocol, TypeAlias

from nexo import limits
from nexo.access.attempts import Attempts, LoginReports
from nexo.access.login import ClientCredentials, Identity, Logins, read_internal_token, wrong
from nexo.access.scram import Exchange
from nexo.access.users import password_matches
from nexo.errors import LockedOut, NexoError, Overloaded, Unauthenticated
from nexo.model import Clock

log = logging.getLogger("nexo.access")

CHECK_S = 1.0
"""How often the users file is checked for changes."""
MOST_CHECKS = 64
"""Password checks waiting at once; beyond that, logins are rejected rather than queued."""

_TOKEN = "\0token"
"""Replaces the user name of token logins in the count of failures: no user has this name, and
arbitrary names would push others out of a bounded count.
"""

_SHOWN_CHARS = 64
_jitter = SystemRandom()
"""Not the module's generator, which a program around an embedded server may have seeded."""

LoginDone: TypeAlias = Callable[[NexoError | None], None]


class _Check(NamedTuple):
    """A password to be checked."""

    caller: AccessCaller
    given: ClientCredentials
    done: LoginDone


_HOW_TO_LOG_IN = (
    "this server requires a login: set NEXO_TOKEN, or NEXO_USER and NEXO_PASSWORD, "
    "or connect to nexo://user:password@host or nexo://host?token=..."
)


class AccessCaller(Protocol):
    """A connection as access control sees it."""

    identity: Identity | None
    address: str

    def kick(self, reason: str) -> None: ...


class Guard:
    """Authentication of one host. Passwords are checked in a thread, because their hash is slow
    on purpose.
    """

    def __init__(
        self, users: Path, clock: Clock, callers: Iterable[AccessCaller], run_folder: Path | None
    ) -> None:
        """``callers`` is the live set of connections."""
        self._logins = Logins(users, read_internal_token(run_folder))
        self._clock = clock
        self._callers = callers
        self._timer: asyncio.TimerHandle | None = None
        self._attempts = Attempts()
        self._reports = LoginReports(run_folder, self._heard) if run_folder else None
        self._loop = asyncio.get_running_loop()
        self._hashing = ThreadPoolExecutor(1, "nexo-login")
        self._checks: deque[_Check] = deque()
        """The first one runs, the others wait."""

    def _heard(self, report: bytes) -> None:
        self._attempts.heard(report, self._clock.now_ms())

    def open(self) -> None:
        """Read the users, follow changes of their file, and close connections of removed users."""
        if self._logins.refresh():
            for caller in list(self._callers):
                if caller.identity is not None and not caller.identity.valid:
                    caller.kick("its user, credential or a permission was taken away")
        self._timer = self._loop.call_later(CHECK_S, self.open)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reports is not None:
            self._reports.close()
        self._hashing.shutdown(wait=False, cancel_futures=True)

    def login(self, caller: AccessCaller, given: ClientCredentials, done: LoginDone) -> None:
        """Identify the caller; ``done`` gets the error or None, now or later."""
        if caller.identity is not None:
            done(_again(caller.identity, given))
            return
        now_ms = self._clock.now_ms()
        locked = self._attempts.locked(caller.address, given.user or "", now_ms)
        if locked is not None and given.token is None:
            # Checked even for a known password: comparing it is quick, so it could be guessed
            # quickly.
            self._refuse(locked, done)
            return
        try:
            caller.identity = self._identify(given)
        except Unauthenticated as error:
            self._failed(caller, given, error, done)
            return
        if caller.identity is None:
            self._check_password(caller, given, done)
        else:
            done(None)

    def login_linked(self, caller: AccessCaller, given: ClientCredentials, done: LoginDone) -> None:
        """Accept a client that another of our processes logged in; without a user, that process."""
        try:
            caller.identity = self._logins.linked(given.user)
        except Unauthenticated as error:
            done(error)
        else:
            done(None)

    def scram_begin(
        self, caller: AccessCaller, mechanism: str, first: bytes
    ) -> tuple[Exchange, bytes]:
        """Take a client's first SCRAM message; returns the exchange and the answer."""
        exchange = Exchange(mechanism, first)
        if caller.identity is not None:
            raise Unauthenticated("this connection is logged in; open another one")
        locked = self._attempts.locked(caller.address, exchange.user, self._clock.now_ms())
        if locked is not None:
            raise locked
        return exchange, self._logins.scram_challenge(exchange, mechanism)

    def scram_end(self, caller: AccessCaller, exchange: Exchange, final: bytes) -> bytes:
        """Identify the caller by its last SCRAM message; returns the answer."""
        try:
            caller.identity, answer = self._logins.scram_verified(exchange, final)
        except Unauthenticated as error:
            given = ClientCredentials(user=exchange.user, password="")
            raise self._count(caller, given) or error from None
        return answer

    def _identify(self, given: ClientCredentials) -> Identity | None:
        """The identity, or None if a password must be checked first."""
        if given.token is not None:
            return self._logins.by_token(given.token)
        if given.user is None or given.password is None:
            raise Unauthenticated(_HOW_TO_LOG_IN)
        return self._logins.known(given.user, given.password)

    def _check_password(
        self, caller: AccessCaller, given: ClientCredentials, done: LoginDone
    ) -> None:
        if len(self._checks) >= MOST_CHECKS:
            self._refuse(Overloaded("too many logins at once; try again"), done)
            return
        self._checks.append(_Check(caller, given, done))
        if len(self._checks) == 1:
            self._check_next()

    def _check_next(self) -> None:
        """Run the next check; reject the guesses of clients that are locked out by now."""
        while self._checks:
            caller, given, done = self._checks[0]
            name, password = given.user or "", given.password or ""
            locked = self._attempts.locked(caller.address, name, self._clock.now_ms())
            if locked is None:
                stored = self._logins.stored_password(name)
                job = self._loop.run_in_executor(self._hashing, password_matches, password, stored)
                job.add_done_callback(partial(self._hashed, stored))
                return
            self._checks.popleft()
            self._refuse(locked, done)

    def _hashed(self, stored: str, result: asyncio.Future[bool]) -> None:
        if result.cancelled():
            return
        caller, given, done = self._checks.popleft()
        try:
            if not result.result():
                raise wrong()
            caller.identity = self._logins.verified(given.user or "", given.password or "", stored)
        except Unauthenticated as error:
            self._failed(caller, given, error, done)
        else:
            done(None)
        self._check_next()

    def _failed(
        self,
        caller: AccessCaller,
        given: ClientCredentials,
        error: Unauthenticated,
        done: LoginDone,
    ) -> None:
        if given.token is not None or given.password is not None:
            error = self._count(caller, given) or error
        self._refuse(error, done)

    def _refuse(self, error: NexoError, done: LoginDone) -> None:
        """Answer clients that guess after a random pause, so that many do not retry at once."""
        if isinstance(error, LockedOut | Overloaded):
            pause_s = limits.LOCKED_OUT_PAUSE_S * _jitter.uniform(0.5, 1.5)
            self._loop.call_later(pause_s, done, error)
        else:
            done(error)

    def _count(self, caller: AccessCaller, given: ClientCredentials) -> LockedOut | None:
        """Count a failure; the client must wait after too many, whatever it tries."""
        user = given.user if given.user and given.token is None else _TOKEN
        now_ms = self._clock.now_ms()
        locked = self._attempts.locked(caller.address, user, now_ms)
        report = self._attempts.failed(caller.address, user, now_ms)
        if report and self._reports is not None:
            self._reports.send(report)
        who = "with a token" if given.token is not None else f"of user {user[:_SHOWN_CHARS]!r}"
        log.warning("failed login %s from %s", who, caller.address)
        return locked


def _again(identity: Identity, given: ClientCredentials) -> NexoError | None:
    """A second HELLO may not change the user of the connection."""
    if given.user in (None, identity.user.name):
        return None
    return Unauthenticated("this connection is logged in; open another one for another user")
