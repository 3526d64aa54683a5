"""Polls for a group's records: answered now, after asking the lake, or when some arrive."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.services.connection import Connection
from nexo.services.stream.core import Core
from nexo.services.stream.replay import InLake
from nexo.services.waiting import ELSEWHERE, Wait, WaitKey


class Polling:
    """Answers polls whose records may be in the lake."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fetching: dict[WaitKey, Wait] = {}
        """Polls that left the waiting room because the lake was asked."""

    def start(self, wait: Wait, stream: OpenStream) -> None:
        """Answer a poll, or let it wait; its attempt may raise `InLake`.

        An earlier one of that ticket ends with nothing, as in the waiting room.
        """
        self.cancel(wait.connection, wait.ticket)
        look = wait.attempt

        def attempt() -> Any:
            self._core.check_there(stream)
            try:
                return look()
            except InLake as found:
                self._fetching[wait.key] = wait
                self._core.replay.fetch(found.place, lambda error: self._fetched(wait, error))
                return ELSEWHERE

        wait.attempt = attempt
        self._core.answer_or_wait(wait)

    def cancel(self, connection: Connection, ticket: Hashable) -> None:
        """Answer a poll that asked the lake with nothing."""
        wait = self._fetching.pop((connection.id, ticket), None)
        if wait is not None and not connection.closed:
            wait.give_up()

    def give_up(self, channel: Hashable) -> None:
        """Answer the polls of a channel with nothing."""
        self._core.waits.give_up(channel)
        for wait in list(self._fetching.values()):
            if channel in wait.channels:
                self.cancel(wait.connection, wait.ticket)

    def _fetched(self, wait: Wait, error: NexoError | None) -> None:
        """The lake has answered: deliver what it has."""
        if self._fetching.get(wait.key) is not wait:
            return
        del self._fetching[wait.key]
        if wait.connection.closed:
            return
        try:
            if error is not None:
                raise error
            self._core.answer_or_wait(wait)
        except NexoError as failure:
            wait.done(failure)
