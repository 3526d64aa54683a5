"""Messages waiting for a subscriber that reads too slowly: bounded, with a policy (SPEC C4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from nexo.model import Policy


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """How much may wait for one subscription, and what happens beyond that."""

    max_messages: int
    max_bytes: int
    policy: Policy = Policy.DROP_OLDEST


class Outbox:
    """Whole messages in the order they arrived, within the limits.

    A single message larger than ``max_bytes`` is dropped, whatever the policy.
    """

    __slots__ = ("_waiting", "dropped", "limits", "size_bytes")

    def __init__(self, limits: OutboxLimits) -> None:
        self.limits = limits
        self.size_bytes = 0
        self.dropped = 0
        self._waiting: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, messages: Iterable[bytes]) -> bool:
        """Keep what fits; False if something did not and the policy is to disconnect."""
        for message in messages:
            if self._fits(message) or self._make_room(message):
                self._waiting.append(message)
                self.size_bytes += len(message)
            else:
                self.dropped += 1
                if self.limits.policy is Policy.DISCONNECT:
                    return False
        return True

    def take(self, max_bytes: int) -> list[bytes]:
        """The oldest messages, about ``max_bytes`` of them, at least one if there is any."""
        taken: list[bytes] = []
        while self._waiting and max_bytes > 0:
            taken.append(self._pop())
            max_bytes -= len(taken[-1])
        return taken

    def _fits(self, message: bytes) -> bool:
        limits = self.limits
        return (
            len(self._waiting) < limits.max_messages
            and self.size_bytes + len(message) <= limits.max_bytes
        )

    def _make_room(self, message: bytes) -> bool:
        if self.limits.policy is not Policy.DROP_OLDEST or len(message) > self.limits.max_bytes:
            return False
        while not self._fits(message):
            self._pop()
            self.dropped += 1
        return True

    def _pop(self) -> bytes:
        message = self._waiting.popleft()
        self.size_bytes -= len(message)
        return message
