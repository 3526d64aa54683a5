"""Stands before every handler while authentication is on; costs nothing while it is off.

Who has not said HELLO with valid credentials can do nothing else. A request that is relayed
is checked where it runs, as the user that the relaying process has logged in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from nexo.access.door import Caller, Done, Door
from nexo.access.forbidden import forbidden
from nexo.access.grants import Extent
from nexo.access.internal import read_token
from nexo.access.login import Identity, Logins
from nexo.access.narrowed import Narrowed
from nexo.access.partly import RUNS, Partly
from nexo.access.rules import NOBODY, RULES, Rule
from nexo.errors import Forbidden, Unauthenticated
from nexo.model import Broker, Clock
from nexo.protocol.hello import Hello
from nexo.protocol.ops import BROKER_OF, Op
from nexo.services.service import Handler, Peer

CHECK_S = 1.0
LOGIN_MS = 10_000
"""A connection that has not logged in by then is closed."""

Fallback: TypeAlias = Callable[[int, Peer, int, memoryview], None]
"""``other(op, peer, request_id, payload)``: what no handler of this host serves."""


class Guard:
    """Authentication and permissions of one host."""

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
        """Read the users, keep up with their file, and drop who may not stay."""
        now_ms = self._clock.now_ms()
        self._logins.refresh(now_ms)
        for caller in list(self._callers):
            if caller.identity is None:
                if now_ms - caller.opened_ms >= LOGIN_MS:
                    caller.kick("did not log in")
            elif not caller.identity.valid:
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

    def over(
        self, handlers: Sequence[Handler | None], here: Iterable[Broker], other: Fallback
    ) -> list[Handler | None]:
        """The handlers, each behind its rule; ``here`` are the brokers that this host serves."""
        served = frozenset(here)
        return [
            _guarded(op, handler, served, other) if op != Op.HELLO else None
            for op, handler in enumerate(handlers)
        ]


def _guarded(op: int, handler: Handler | None, here: frozenset[Broker], other: Fallback) -> Handler:
    rule, broker = rule_of(op), BROKER_OF[op]

    def run(peer: Peer, request_id: int, payload: memoryview) -> None:
        identity = cast("Caller", peer).identity
        if identity is None or not identity.valid:
            raise Unauthenticated("log in with HELLO first, and wait for its reply")
        about = broker or _named_broker(payload)
        if rule is not None and about is not None and about in here:
            try:
                check(identity, about, rule, payload)
            except Forbidden:
                less = _less(op, peer, payload, identity, about, rule)
                if less is None:
                    raise
                peer, payload = less
        if handler is not None:
            handler(peer, request_id, payload)
        else:
            other(op, peer, request_id, payload)

    return run


def _less(
    op: int, peer: Peer, payload: memoryview, identity: Identity, broker: Broker, rule: Rule
) -> tuple[Peer, memoryview] | None:
    """As much of the request as the user may have; None if that is nothing."""
    if op in RUNS:
        partly = Partly(peer, op, payload)
        rest = partly.permitted(lambda name: _allows(identity, broker, rule, name))
        return None if rest is None else (cast("Peer", partly), rest)
    user, rows = identity.user, rule.rows
    if rows is None or not user.may_some(broker, rule.actions) or _single(rule, payload):
        return None

    def shows(name: str) -> bool:
        # Not by the identity, which would remember every name there is.
        return any(user.allows(broker, action, rows, name) for action in rule.actions)

    return cast("Peer", Narrowed(peer, shows)), payload


def _single(rule: Rule, payload: memoryview) -> bool:
    """Whether the list is of one topic, which is refused like any other request for it."""
    return rule.extent is Extent.TOPICS and not any(
        set(name) & {"+", "#"} for name in rule.names(payload)
    )


def rule_of(op: int) -> Rule | None:
    """The rule of an opcode; None if there is no such opcode."""
    return RULES.get(Op(op), NOBODY) if op in set(Op) else None


def _named_broker(payload: memoryview) -> Broker | None:
    """The broker STATUS and CANCEL name; a wrong one is refused where the request runs."""
    number = payload[0] if len(payload) else 0
    return Broker(number) if number in set(Broker) else None


def check(identity: Identity, broker: Broker, rule: Rule, payload: memoryview) -> None:
    """Raise `Forbidden` unless the user may do this to every name in the request."""
    for name in rule.names(payload):
        if not _allows(identity, broker, rule, name):
            raise forbidden(identity.user.name, broker, rule.actions, rule.extent, name)


def _allows(identity: Identity, broker: Broker, rule: Rule, name: str) -> bool:
    return any(identity.allows(broker, action, rule.extent, name) for action in rule.actions)
