"""Requests that wait: pops for a job, and askers for a job's end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from nexo.errors import NexoError
from nexo.services.service import Peer

Key = tuple[int, int]


@dataclass(slots=True)
class Waiter:
    """One waiting request."""

    peer: Peer
    request_id: int
    deadline_ms: int
    attempt: Callable[[int], bool]
    """Try to answer now; says whether it was answered."""
    give_up: Callable[[], None]
    """Answer with nothing."""

    @property
    def key(self) -> Key:
        """Names the request."""
        return self.peer.id, self.request_id


class Waiters:
    """The waiting requests of one queue, in the order they came."""

    __slots__ = ("_deadlines", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[Key, Waiter] = OrderedDict()
        self._deadlines: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self._waiting.values()))

    def add(self, waiter: Waiter) -> None:
        """Let a request wait."""
        self._waiting[waiter.key] = waiter
        heappush(self._deadlines, (waiter.deadline_ms, waiter.key))

    def pop(self, peer_id: int, request_id: int) -> Waiter | None:
        """Take a request out."""
        return self._waiting.pop((peer_id, request_id), None)

    def drop_peer(self, peer_id: int) -> None:
        """Forget the requests of a lost connection."""
        for key in [key for key in self._waiting if key[0] == peer_id]:
            del self._waiting[key]

    def serve(self, now_ms: int) -> None:
        """Answer whom it is possible to answer, first come first served."""
        while self._waiting:
            key, first = next(iter(self._waiting.items()))
            if not first.peer.closed and not first.attempt(now_ms):
                return
            del self._waiting[key]

    def serve_any(self, now_ms: int) -> None:
        """Answer whom it is possible to answer, in any order."""
        for waiter in self:
            if waiter.attempt(now_ms):
                del self._waiting[waiter.key]

    def expire(self, now_ms: int) -> None:
        """Answer with nothing those who waited long enough."""
        while (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            waiter = self._waiting.pop(heappop(self._deadlines)[1])
            waiter.give_up()

    def next_ms(self) -> int | None:
        """The next deadline."""
        heap = self._deadlines
        while heap:
            due_ms, key = heap[0]
            waiter = self._waiting.get(key)
            if waiter is not None and waiter.deadline_ms == due_ms:
                return due_ms
            heappop(heap)
        return None

    def fail_all(self, error: NexoError) -> None:
        """Answer everyone with an error."""
        for waiter in self:
            waiter.peer.fail(waiter.request_id, error)
        self._waiting.clear()

    def give_up_all(self) -> None:
        """Answer everyone with nothing."""
        for waiter in self:
            waiter.give_up()
        self._waiting.clear()
