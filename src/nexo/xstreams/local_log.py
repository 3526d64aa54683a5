"""The messages of one stream in memory, in order of their ids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from nexo.xstreams.ids import ZERO, MessageId

_SMALL = 64
"""Fewer ids of removed messages than this are not worth removing."""


class LocalLog:
    """Encoded values by id, and the ids in a list.

    Finding an id's place is a binary search. Ids of trimmed or deleted messages stay in the list
    until they are the majority, so the amortised cost is constant.
    """

    __slots__ = ("_head", "_ids", "_values", "last_id")

    def __init__(self) -> None:
        self._values: dict[MessageId, bytes] = {}
        self._ids: list[MessageId] = []
        self._head = 0
        """Nothing before this place of the list is left."""
        self.last_id = ZERO
        """The greatest id ever given out."""

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: bytes, now_ms: int) -> MessageId:
        """Add a message; its id is above all others, whatever the clock says (SPEC J2)."""
        last = self.last_id
        self.last_id = last.following() if now_ms <= last.ms else MessageId(now_ms, 0)
        self._ids.append(self.last_id)
        self._values[self.last_id] = value
        return self.last_id

    def __getitem__(self, message_id: MessageId) -> bytes:
        """The value of a message that is in the log."""
        return self._values[message_id]

    def since(self, first: MessageId) -> Iterator[tuple[MessageId, bytes]]:
        """Messages from an id on; the log must not change meanwhile."""
        for at in range(bisect_left(self._ids, first, self._head), len(self._ids)):
            value = self._values.get(self._ids[at])
            if value is not None:
                yield self._ids[at], value

    def delete(self, message_id: MessageId) -> bool:
        """Remove a message; returns whether it was there."""
        found = self._values.pop(message_id, None) is not None
        self._tidy()
        return found

    def trim(self, count: int) -> list[MessageId]:
        """Remove the oldest ``count`` messages; returns their ids."""
        removed: list[MessageId] = []
        while len(removed) < count:
            message_id = self._ids[self._head]
            if self._values.pop(message_id, None) is not None:
                removed.append(message_id)
            self._head += 1
        self._tidy()
        return removed

    def _tidy(self) -> None:
        removed = len(self._ids) - len(self._values)
        if removed >= _SMALL and removed * 2 >= len(self._ids):
            self._ids, self._head = list(self._values), 0
        while self._head < len(self._ids) and self._ids[self._head] not in self._values:
            self._head += 1
