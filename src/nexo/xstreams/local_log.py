"""The messages of one stream in memory, in order of their ids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from nexo.xstreams.ids import ZERO, MessageId

_SMALL = 64
"""Fewer empty places than this are not worth removing."""


class LocalLog:
    """Ids and encoded values side by side, in two lists.

    Finding an id is a binary search. Trimmed or deleted messages leave an empty place; empty
    places are removed once they are the majority, so the amortised cost is constant.
    """

    __slots__ = ("_empty", "_head", "_ids", "_values", "last_id", "touched")

    def __init__(self) -> None:
        self._ids: list[MessageId] = []
        self._values: list[bytes | None] = []
        self._head = 0
        self._empty = 0
        self.last_id = ZERO
        """The greatest id ever given out."""
        self.touched = 0
        """Places looked at so far: what the cost of reading is measured by."""

    def __len__(self) -> int:
        return len(self._ids) - self._empty

    def append(self, value: bytes, now_ms: int) -> MessageId:
        """Add a message; its id is above all others, whatever the clock says (SPEC J2)."""
        last = self.last_id
        self.last_id = last.following() if now_ms <= last.ms else MessageId(now_ms, 0)
        self._ids.append(self.last_id)
        self._values.append(value)
        return self.last_id

    def get(self, message_id: MessageId) -> bytes | None:
        """A message's value, or None."""
        at = self._place(message_id)
        if at == len(self._ids) or self._ids[at] != message_id:
            return None
        return self._values[at]

    def since(self, first: MessageId) -> Iterator[tuple[MessageId, bytes]]:
        """Messages from an id on; the log must not change meanwhile."""
        for at in range(self._place(first), len(self._ids)):
            self.touched += 1
            value = self._values[at]
            if value is not None:
                yield self._ids[at], value

    def _place(self, message_id: MessageId) -> int:
        return bisect_left(self._ids, message_id, self._head)

    def delete(self, message_id: MessageId) -> bool:
        """Remove a message; returns whether it was there."""
        at = self._place(message_id)
        if at == len(self._ids) or self._ids[at] != message_id or self._values[at] is None:
            return False
        self._values[at] = None
        self._empty += 1
        self._tidy()
        return True

    def trim(self, count: int) -> list[MessageId]:
        """Remove the oldest ``count`` messages; returns their ids."""
        removed: list[MessageId] = []
        while len(removed) < count:
            if self._values[self._head] is not None:
                self._values[self._head] = None
                self._empty += 1
                removed.append(self._ids[self._head])
            self._head += 1
        self._tidy()
        return removed

    def _tidy(self) -> None:
        if self._empty < _SMALL or self._empty * 2 < len(self._ids):
            return
        kept = [
            (message_id, value)
            for message_id, value in zip(self._ids, self._values, strict=True)
            if value is not None
        ]
        self._ids = [message_id for message_id, _ in kept]
        self._values = [value for _, value in kept]
        self._head = self._empty = 0
