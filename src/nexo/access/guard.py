"""Logs connections in and watches over them while authentication is on.

The opcode rules below are what is left of the time before use cases asked `permit` themselves:
an opcode whose use case asks has the rule `LOGIN`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from nexo.access.door import Caller, Done, Door
from nexo.access.forbidden import forbidden
from nexo.access.internal import read_token
from nexo.access.login import Identity, Logins
from nexo.access.rules import LOGIN, NOBODY, RULES, Rule
from nexo.model import Broker, Clock
from nexo.protocol.hello import Hello
from nexo.protocol.ops import BROKER_OF, Op
from nexo.services.service import Handler, Peer

CHECK_S = 1.0


class Guard:
    """Authentication of one host."""

    def __init__(
        self, users: Path, clock: Clock, callers: Iterable[Caller], run_folder: Path | None
    ) -> None:
        """``callers`` is the live set of connections."""
        self._logins = Logins(users, read_token(run_folder))
        self._door = Door(self._logins, clock, run_folder)
        self._clock = clock
        self._callers = callers
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Read the users, keep up with their file, and close connections of who is gone."""
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

    def login(self, caller: Caller, asked: Hello, done: Done) -> None:
        """Find out who calls; ``done`` gets the error, now or a little later."""
        self._door.login(caller, asked, done)

    def login_linked(self, caller: Caller, asked: Hello, done: Done) -> None:
        """As `login`, for a client that another process of ours has logged in."""
        self._door.login_linked(caller, asked, done)

    def over(self, op: int, handler: Handler) -> Handler:
        """The handler behind its rule; the handler itself if its use case asks `permit`."""
        rule = RULES.get(Op(op), NOBODY)
        return handler if rule is LOGIN else _guarded(op, handler, rule)


def _guarded(op: int, handler: Handler, rule: Rule) -> Handler:
    broker = BROKER_OF[op]
    assert broker is not None

    def run(peer: Peer, request_id: int, payload: memoryview) -> None:
        identity = peer.identity
        assert identity is not None
        check(identity, broker, rule, payload)
        handler(peer, request_id, payload)

    return run


def check(identity: Identity, broker: Broker, rule: Rule, payload: memoryview) -> None:
    """Raise `Forbidden` unless the user may do this to every name in the request."""
    for name in rule.names(payload):
        if not _allows(identity, broker, rule, name):
            raise forbidden(identity.user.name, broker, rule.actions, rule.extent, name)


def _allows(identity: Identity, broker: Broker, rule: Rule, name: str) -> bool:
    return any(identity.allows(broker, action, rule.extent, name) for action in rule.actions)
