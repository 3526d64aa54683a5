"""Requests for a group's records: answered now, after asking the lake, or when some come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nexo.brokers.stream.registry import Stream
from nexo.errors import NexoError
from nexo.services.service import Peer
from nexo.services.stream.bounds import MAX_WAIT_MS
from nexo.services.stream.core import Core
from nexo.services.stream.replay import InLake
from nexo.services.stream.waits import Wait


@dataclass(frozen=True, slots=True)
class Poll:
    """One such request."""

    peer: Peer
    request_id: int
    stream: Stream
    group: str
    attempt: Callable[[], bool]
    """Answer if there is something; may raise what the answer is, or `InLake`."""
    give_up: Callable[[], None]
    """Answer with nothing."""


class Polling:
    """Answers polls."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fetching: dict[tuple[int, int], int] = {}
        """Until when polls wait that the lake was asked for, by peer and request."""

    def start(self, poll: Poll, wait_ms: int) -> None:
        """Answer, or have the poll wait so long for something to deliver."""
        self._serve(poll, self._core.now_ms + min(wait_ms, MAX_WAIT_MS))

    def cancel(self, peer: Peer, request_id: int) -> None:
        """Have a poll that the lake was asked for wait no longer than for that."""
        if (peer.id, request_id) in self._fetching:
            self._fetching[peer.id, request_id] = 0

    def _serve(self, poll: Poll, due_ms: int) -> None:
        core = self._core
        if self._answered(poll, due_ms):
            return
        if due_ms <= core.now_ms:
            poll.give_up()
            return
        channels = [(poll.stream.id, poll.group)]

        def attempt() -> bool:
            return self._answered(poll, due_ms)

        core.waits.add(Wait(poll.peer, poll.request_id, channels, due_ms, attempt, poll.give_up))
        core.runtime.wake_at(due_ms)

    def _answered(self, poll: Poll, due_ms: int) -> bool:
        """Whether the poll need not wait: it was answered, or will be when the lake was asked."""
        try:
            return poll.attempt()
        except InLake as found:
            self._fetching[poll.peer.id, poll.request_id] = due_ms
            self._core.replay.fetch(found.place, lambda error: self._again(poll, error))
            return True

    def _again(self, poll: Poll, error: NexoError | None) -> None:
        """The lake was asked: what it has can be delivered now."""
        due_ms = self._fetching.pop((poll.peer.id, poll.request_id))
        if poll.peer.closed:
            return
        try:
            if error is not None:
                raise error
            self._core.check_there(poll.stream)
            self._serve(poll, due_ms)
        except NexoError as failure:
            poll.peer.fail(poll.request_id, failure)
