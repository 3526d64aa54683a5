"""Who held which record of a shared group, and when: what clients saw, checked at the end.

A hold begins when a client has received the record, which is after the broker leased it, and
ends before the client says anything to the broker about it. So two holds that overlap here
overlapped in the broker too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Holdings:
    """Everything the consumers of one group saw."""

    def __init__(self) -> None:
        self._holder: dict[int, str] = {}
        self._acked: Counter[int] = Counter()
        self._unsure: set[int] = set()
        self.received = 0
        self.refused = 0
        self.held_twice = 0
        self.after_ack = 0
        """Delivered although the broker had confirmed the ack."""

    def take(self, consumer: str, offsets: Iterable[int]) -> None:
        """Records came to a consumer."""
        for offset in offsets:
            self.received += 1
            self.held_twice += self._holder.get(offset, consumer) != consumer
            self.after_ack += offset in self._acked
            self._holder[offset] = consumer

    def let_go(self, consumer: str, offsets: Iterable[int]) -> None:
        """A consumer is about to settle records, or to go away."""
        for offset in offsets:
            if self._holder.get(offset) == consumer:
                del self._holder[offset]

    def acked(self, offsets: Iterable[int]) -> None:
        """The broker confirmed."""
        self._acked.update(offsets)

    def unsure(self, offsets: Iterable[int]) -> None:
        """An ack was sent and no answer came."""
        self._unsure.update(offsets)

    def lost(self, published: int) -> int:
        """Records that nobody acked."""
        return published - len(self._acked.keys() | self._unsure)

    def report(self, published: int) -> str:
        """The counts, to be printed."""
        return (
            f"{published:,} published, {self.received:,} deliveries, {len(self._acked):,} acked, "
            f"{self.received - published:,} redelivered, {self.refused:,} acks refused; "
            f"{self.lost(published)} lost, {self.held_twice} held by two at a time, "
            f"{self.after_ack} delivered after their ack"
        )
