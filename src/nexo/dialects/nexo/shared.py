"""What the sessions of our protocol share in one host."""

from __future__ import annotations

from collections.abc import Iterable

from nexo.dialects.dialect import Dialect, HostPort
from nexo.dialects.nexo.backup import Backups
from nexo.dialects.nexo.handlers import Answer, Handler, Peer
from nexo.dialects.nexo.timings import Timings
from nexo.dialects.session import BaseSession, DialectState
from nexo.errors import ShuttingDown, Unauthenticated
from nexo.protocol.ops import Op


class Table:
    """The handler of each opcode; without one, the session looks elsewhere."""

    __slots__ = ("answers", "handlers")

    def __init__(
        self, handlers: Iterable[Handler | None], answers: Iterable[Answer | None]
    ) -> None:
        self.handlers = list(handlers)
        self.answers = list(answers)
        """Tried before the handler of the same opcode."""

    def refuse_all(self) -> None:
        self.handlers[:] = [_stopping] * 256
        self.handlers[Op.HELLO] = _stopping_at_hello
        self.answers[:] = [None] * 256


def login_table() -> Table:
    """For connections that must log in: accepts only HELLO."""
    return Table((None if op == Op.HELLO else _login_first for op in range(256)), [None] * 256)


def _login_first(peer: Peer, request_id: int, payload: memoryview) -> None:
    raise Unauthenticated("log in with HELLO first, and wait for its reply")


def _stopping(peer: Peer, request_id: int, payload: memoryview) -> None:
    raise ShuttingDown("the server is stopping; reconnect in a moment")


def _stopping_at_hello(peer: Peer, request_id: int, payload: memoryview) -> None:
    peer.said_hello = True  # it reads coded errors: this one is not final
    _stopping(peer, request_id, payload)


class Shared(DialectState):
    """One per host: the tables of requests, the read buffer, and one flush for all sessions."""

    def __init__(self, dialect: Dialect, host: HostPort, table: Table) -> None:
        super().__init__(dialect, host)
        self.table = table
        self.before_login = login_table() if host.guard is not None else table
        self.timings = Timings(host.services)
        self.backups = Backups(host.loop)
        self._touched: list[BaseSession] = []

    def stop(self) -> None:
        self.table.refuse_all()
        self.before_login.refuse_all()

    def touched(self, session: BaseSession) -> None:
        """Flush the session at the end of this turn, together with all others."""
        if not self._touched:
            self.host.loop.call_soon(self._flush)
        self._touched.append(session)

    def _flush(self) -> None:
        touched, self._touched = self._touched, []
        for session in touched:
            session.flush()
        answered_ns = self.timings.written()
        if answered_ns:
            self.host.busy_poll.sent(answered_ns)
