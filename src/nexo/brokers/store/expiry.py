"""Expiry: exact due times, and a heap of time slots to find expired keys.

A key is in the slot of its due time; the heap orders slots, not keys. Moving a due time
takes two set operations. It may leave an empty slot in the heap; empty slots are removed
when they outnumber the rest.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SLOT_MS = 256
"""The memory of an expired key can be reclaimed at most this long after its due time."""
_SPARE_SLOTS = 64


class Expiry:
    """The due time of every key that has one."""

    __slots__ = ("_heap", "_slots", "due")

    def __init__(self) -> None:
        self.due: dict[str, int] = {}
        """Due time in ms by key, for reading only."""
        self._slots: dict[int, set[str]] = {}
        self._heap: list[int] = []

    def set(self, key: str, due_ms: int) -> None:
        """Give ``key`` a due time, replacing any it had."""
        self.clear(key)
        self.due[key] = due_ms
        slot = due_ms // SLOT_MS
        keys = self._slots.get(slot)
        if keys is not None:
            keys.add(key)
            return
        self._slots[slot] = {key}
        heappush(self._heap, slot)
        if len(self._heap) > 2 * len(self._slots) + _SPARE_SLOTS:
            self._heap = list(self._slots)
            heapify(self._heap)

    def clear(self, key: str) -> bool:
        """Remove the due time of ``key``; True if it had one."""
        due_ms = self.due.pop(key, None)
        if due_ms is None:
            return False
        slot = due_ms // SLOT_MS
        keys = self._slots[slot]
        keys.discard(key)
        if not keys:
            del self._slots[slot]
        return True

    def pop_over(self, now_ms: int, limit: int) -> list[str]:
        """Remove and return up to ``limit`` keys whose slot has ended."""
        over: list[str] = []
        while self._heap and self.next_ms() <= now_ms and len(over) < limit:
            slot = self._heap[0]
            keys = self._slots.get(slot, set())
            while keys and len(over) < limit:
                over.append(keys.pop())
            if not keys:
                heappop(self._heap)
                self._slots.pop(slot, None)
        for key in over:
            del self.due[key]
        return over

    def next_ms(self) -> int:
        """When the first slot ends; only valid while there are any (see ``bool``)."""
        return (self._heap[0] + 1) * SLOT_MS

    def __bool__(self) -> bool:
        return bool(self._heap)
