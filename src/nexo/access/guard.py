"""Logs connections in and monitors them while authentication is on.

A dialect accepts no other request before the login; use cases check permissions with
`permit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from nexo.access.door import AccessCaller, Done, Door
from nexo.access.internal import read_token
from nexo.access.login import Logins
from nexo.access.scram import Exchange
from nexo.model import Clock
from nexo.protocol.hello import Hello

CHECK_S = 1.0


class Guard:
    """Authentication of one host."""

    def __init__(
        self, users: Path, clock: Clock, callers: Iterable[AccessCaller], run_folder: Path | None
    ) -> None:
        """``callers`` is the live set of connections."""
        self._logins = Logins(users, read_token(run_folder))
        self._door = Door(self._logins, clock, run_folder)
        self._clock = clock
        self._callers = callers
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Read the users, follow changes of their file, and close connections of removed users."""
        if self._logins.refresh(self._clock.now_ms()):
            for caller in list(self._callers):
                if caller.identity is not None and not caller.identity.valid:
                    caller.kick("its user, credential or a permission was taken away")
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self.open)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        self._door.close()

    def login(self, caller: AccessCaller, asked: Hello, done: Done) -> None:
        """Identify the caller; ``done`` gets the error or None, now or later."""
        self._door.login(caller, asked, done)

    def scram_begin(
        self, caller: AccessCaller, mechanism: str, first: bytes
    ) -> tuple[Exchange, bytes]:
        """Take a client's first SCRAM message; returns the exchange and the answer."""
        return self._door.scram_begin(caller, mechanism, first)

    def scram_end(self, caller: AccessCaller, exchange: Exchange, final: bytes) -> bytes:
        """Identify the caller by its last SCRAM message; returns the answer."""
        return self._door.scram_end(caller, exchange, final)

    def login_linked(self, caller: AccessCaller, asked: Hello, done: Done) -> None:
        """Like `login`, for a client that another process of ours has logged in."""
        self._door.login_linked(caller, asked, done)
