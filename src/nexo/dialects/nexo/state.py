"""What the sessions of our protocol share in one host."""

from __future__ import annotations

from typing import Protocol

from nexo.dialects.dialect import Dialect, HostPort
from nexo.dialects.nexo.meter import Timings
from nexo.dialects.nexo.movable import Stand
from nexo.dialects.nexo.requests import build_table, login_table
from nexo.dialects.session import DialectState

FLUSHED_BYTES = 4 * 1024**2
"""Handed to the kernel in one turn of the loop; it copies so much in a few milliseconds."""


class Flushed(Protocol):
    """A session that gathers what it sends."""

    def flush(self) -> int:
        """Write it; returns the bytes."""

    def postponed(self) -> None:
        """Others are flushed before: what waits meanwhile is to be bounded."""


class NexoState(DialectState):
    """One per host: the tables of requests, the read buffer, and one flush for all sessions."""

    def __init__(self, dialect: Dialect, host: HostPort) -> None:
        super().__init__(dialect, host)
        self.table = build_table(host.services)
        self.before_login = login_table() if host.guard is not None else self.table
        self.timings = Timings(host.services)
        self.linked: dict[str, Stand] = {}
        """Sessions that represent clients of other processes, by the tokens of their links."""
        self._touched: list[Flushed] = []

    def stop(self) -> None:
        self.table.refuse_all()
        self.before_login.refuse_all()

    def touched(self, session: Flushed) -> None:
        """Flush the session at the end of this turn, together with all others."""
        if not self._touched:
            self.host.turn.reply(self._flush)
        self._touched.append(session)

    def _flush(self) -> None:
        """Write what is gathered; what is too much for one turn follows in the next ones."""
        touched, self._touched = self._touched, []
        room = FLUSHED_BYTES
        for number, session in enumerate(touched, 1):
            room -= session.flush()
            if room < 0 and number < len(touched):
                self._postpone(touched[number:])
                break
        answered_ns = self.timings.written()
        if answered_ns:
            self.host.busy_poll.sent(answered_ns)

    def _postpone(self, sessions: list[Flushed]) -> None:
        self._touched = sessions + self._touched
        self.host.loop.call_soon(self._flush)
        for session in sessions:
            session.postponed()
