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
        """Answer a poll, or let it wait; its attempt may raise `InLake`."""
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
        """Cancel a poll; if it asked the lake, it is answered when the lake answers."""
        wait = self._fetching.get((connection.id, ticket))
        if wait is not None:
            wait.due_ms = 0

    def give_up(self, channel: Hashable) -> None:
        """Answer the polls of a channel with nothing, or once the lake has answered."""
        self._core.waits.give_up(channel)
        for wait in self._fetching.values():
            if channel in wait.channels:
                wait.due_ms = 0

    def _fetched(self, wait: Wait, error: NexoError | None) -> None:
        """The lake has answered: deliver what it has."""
        del self._fetching[wait.key]
        if wait.connection.closed:
            return
        try:
            if error is not None:
                raise error
            self._core.answer_or_wait(wait)
        except NexoError as failure:
            wait.done(failure)
