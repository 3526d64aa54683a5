"""Queues that live with their consumer, on its side of the connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from nexo.client._sync.pubsub.subscription import Subscription

MAILBOX_MESSAGES = 10_000
"""What may wait for a consumer that lives with its queue; the oldest are dropped."""


class Mailbox:
    """One of them: what waits, and who gets it."""

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque(maxlen=MAILBOX_MESSAGES)
        self.consumer: Callable[[dict[str, Any]], None] | None = None
        self.subscriptions: dict[tuple[str, str], Subscription[Any]] = {}
        self._lock = threading.Lock()

    def put(self, message: dict[str, Any]) -> None:
        """Give a message to the consumer, or keep it for one."""
        with self._lock:
            if self.consumer is None:
                self.waiting.append(message)
            else:
                self.consumer(message)

    def attach(self, consumer: Callable[[dict[str, Any]], None] | None) -> None:
        """Give ``consumer`` what waits and what comes; with None, messages wait."""
        with self._lock:
            self.consumer = consumer
            while consumer is not None and self.waiting:
                consumer(self.waiting.popleft())

    def take(self) -> dict[str, Any] | None:
        with self._lock:
            return self.waiting.popleft() if self.waiting else None

    def clear(self) -> int:
        """Drop what waits; returns how many there were."""
        with self._lock:
            count = len(self.waiting)
            self.waiting.clear()
            return count

    def close(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.close()
        self.subscriptions = {}
