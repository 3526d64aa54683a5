"""Long polls: requests that wait for records, and who may be answered when some come."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from nexo.errors import NexoError
from nexo.services.service import Peer

Channel: TypeAlias = tuple[int, str]
"""A stream's number and what of it is waited for: a group's name, or `READERS`."""

_STALE = 1_000
"""Deadlines of answered polls that are put up with before they are swept out."""

READERS = ""
"""The channel of plain reads. Each wants another place, so all are tried."""

ORDERED = -1
"""No stream's number: its channels are ordered groups, of which all members are tried too."""


class Wait:
    """One waiting request."""

    __slots__ = ("attempt", "channels", "due_ms", "give_up", "peer", "request_id")

    def __init__(
        self,
        peer: Peer,
        request_id: int,
        channels: list[Channel],
        due_ms: int,
        attempt: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self.peer = peer
        self.request_id = request_id
        self.channels = channels
        self.due_ms = due_ms
        self.attempt = attempt
        """Try to answer now; says whether it did. May raise what the answer is then."""
        self.give_up = give_up
        """Answer with nothing."""

    @property
    def key(self) -> tuple[int, int]:
        """Unique among all that wait."""
        return self.peer.id, self.request_id


class Waits:
    """All waiting requests of the service."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, int], Wait] = {}
        self._channels: dict[int, dict[str, dict[tuple[int, int], Wait]]] = {}
        self._peers: dict[int, set[int]] = {}
        self._due: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, wait: Wait) -> None:
        """Have a request wait."""
        self._all[wait.key] = wait
        self._peers.setdefault(wait.peer.id, set()).add(wait.request_id)
        for stream, what in wait.channels:
            self._channels.setdefault(stream, {}).setdefault(what, {})[wait.key] = wait
        heappush(self._due, (wait.due_ms, *wait.key))
        if len(self._due) > 2 * len(self._all) + _STALE:
            self._due = sorted((kept.due_ms, *kept.key) for kept in self._all.values())

    def waiting_on(self, stream: int) -> bool:
        """Whether a change of the stream concerns anybody."""
        return stream in self._channels

    def wake(self, stream: int) -> None:
        """Answer whoever can be answered, first come first served."""
        for what in list(self._channels.get(stream, ())):
            self.wake_channel(stream, what)

    def wake_channel(self, stream: int, what: str) -> None:
        """Answer those of one channel; a group that gave nothing gives nothing to the next."""
        every = what == READERS or stream == ORDERED
        for wait in list(self._channels.get(stream, {}).get(what, {}).values()):
            if not self._try(wait) and not every:
                return

    def _try(self, wait: Wait) -> bool:
        if wait.peer.closed:
            self._forget(wait)
            return True
        try:
            answered = wait.attempt()
        except NexoError as error:
            wait.peer.fail(wait.request_id, error)
            answered = True
        if answered:
            self._forget(wait)
        return answered

    def expire(self, now_ms: int) -> None:
        """Answer with nothing whoever waited long enough."""
        while self._due and self._due[0][0] <= now_ms:
            _, peer, request = heappop(self._due)
            wait = self._all.get((peer, request))
            if wait is not None and wait.due_ms <= now_ms:
                self._forget(wait)
                wait.give_up()

    def next_due(self) -> int | None:
        """When `expire` has something to do."""
        while self._due and self._due[0][1:] not in self._all:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def cancel(self, peer: Peer, request_id: int) -> None:
        """Answer one now, with nothing."""
        wait = self._all.get((peer.id, request_id))
        if wait is not None:
            self._forget(wait)
            wait.give_up()

    def drop_peer(self, peer: Peer) -> None:
        """The connection ended: nobody is there to be answered."""
        for request_id in list(self._peers.get(peer.id, ())):
            self._forget(self._all[peer.id, request_id])

    def fail_stream(self, stream: int, error: NexoError) -> None:
        """The stream is gone."""
        for channel in list(self._channels.get(stream, {}).values()):
            for wait in list(channel.values()):
                self._forget(wait)
                wait.peer.fail(wait.request_id, error)

    def _forget(self, wait: Wait) -> None:
        if self._all.pop(wait.key, None) is None:
            return
        requests = self._peers[wait.peer.id]
        requests.discard(wait.request_id)
        if not requests:
            del self._peers[wait.peer.id]
        for stream, what in wait.channels:
            channels = self._channels.get(stream, {})
            channels.get(what, {}).pop(wait.key, None)
            if not channels.get(what):
                channels.pop(what, None)
            if not channels:
                self._channels.pop(stream, None)
