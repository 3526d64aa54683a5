"""One message of a key at a time, in order (SPEC F8).

Holds only messages that were admitted and are not finished, so its size is bounded by the
group's ``max_ack_pending``.
"""

from __future__ import annotations

from collections import deque


class KeyOrder:
    """Which messages of a partition wait for an earlier one of their key."""

    __slots__ = ("_keys", "_queues")

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}
        self._queues: dict[bytes, deque[int]] = {}

    def admit(self, offset: int, key: bytes | None) -> bool:
        """Queue a message after others of its key; True if it may be delivered at once."""
        if key is None:
            return True
        self._keys[offset] = key
        queue = self._queues.setdefault(key, deque())
        queue.append(offset)
        return len(queue) == 1

    def settle(self, offset: int) -> int | None:
        """Finish a message; returns the one that may be delivered next, if any."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        queue = self._queues[key]
        if queue[0] != offset:
            queue.remove(offset)
            return None
        queue.popleft()
        if queue:
            return queue[0]
        del self._queues[key]
        return None
