"""The last message of each topic, for later subscribers (SPEC C3)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nexo.brokers.pubsub.message import PubSubMessage
from nexo.brokers.pubsub.trie import Trie


@dataclass(frozen=True, slots=True)
class Retained:
    """One retained message."""

    message: PubSubMessage
    expires_ms: int
    """0 for never."""

    @property
    def topic(self) -> str:
        return self.message.topic

    def alive(self, now_ms: int) -> bool:
        return not self.expires_ms or now_ms < self.expires_ms


class RetainedMessages:
    """Retained messages by topic. Expired ones are never returned; `expire` removes them."""

    def __init__(self) -> None:
        self._trie: Trie[Retained] = Trie()
        self._due: list[tuple[int, str]] = []
        self.count = 0
        self.size_bytes = 0

    def put(self, retained: Retained) -> None:
        self.clear(retained.topic)
        self._trie.put(retained.topic.split("/"), retained)
        self.count += 1
        self.size_bytes += retained.message.size_bytes
        if retained.expires_ms:
            self._remember_due(retained)

    def get(self, topic: str) -> Retained | None:
        """A topic's message, which may have expired."""
        return self._trie.get(topic.split("/"))

    def restore(self, topic: str, before: Retained | None) -> None:
        """Undo a change: ``before`` is what `get` returned."""
        if before is None:
            self.clear(topic)
        else:
            self.put(before)

    def clear(self, topic: str) -> bool:
        """Remove a topic's message; False if there was none."""
        removed = self._trie.remove(topic.split("/"))
        if removed is None:
            return False
        self.count -= 1
        self.size_bytes -= removed.message.size_bytes
        return True

    def matching(self, levels: Sequence[str], now_ms: int) -> Iterator[Retained]:
        """What a new subscriber to a pattern receives. Do not change anything while iterating."""
        return (found for found in self._trie.by_pattern(levels) if found.alive(now_ms))

    def all(self, now_ms: int) -> Iterator[Retained]:
        """Everything, including topics that begin with ``$``."""
        return (found for found in self._trie if found.alive(now_ms))

    def expire(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            _, topic = heapq.heappop(self._due)
            found = self._trie.get(topic.split("/"))
            if found is not None and not found.alive(now_ms):
                self.clear(topic)

    def next_due_ms(self) -> int | None:
        """When `expire` has something to do again."""
        return self._due[0][0] if self._due else None

    def _remember_due(self, retained: Retained) -> None:
        heapq.heappush(self._due, (retained.expires_ms, retained.topic))
        # Replaced messages leave their heap entry; a topic refreshed all day must not grow the
        # heap.
        if len(self._due) > 2 * self.count + 64:
            live = ((found.expires_ms, found.topic) for found in self._trie if found.expires_ms)
            self._due = list(live)
            heapq.heapify(self._due)
