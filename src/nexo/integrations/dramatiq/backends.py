"""dramatiq's results, and what its rate limiters and barriers count with, in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dramatiq.encoder import Encoder
from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.results import Missing, ResultBackend

from nexo.client._sync.client import Client
from nexo.errors import RequestTimeout

_LOCK_S = 10


class DramatiqResultBackend(ResultBackend):
    """Keeps each result as long as its actor says (``result_ttl``)."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        client: Client | None = None,
    ) -> None:
        super().__init__(namespace=namespace, encoder=encoder)
        self.client = client or Client(url)

    def close(self) -> None:
        self.client.close()

    def _get(self, message_key: str) -> Any:
        content = self.client.store.get(message_key)
        return Missing if content is None else self.encoder.decode(content)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        self.client.store.set(message_key, self.encoder.encode(result), ttl=ttl / 1_000)


class NexoRateLimiterBackend(RateLimiterBackend):
    """Counters that all workers share."""

    def __init__(self, url: str | None = None, *, client: Client | None = None) -> None:
        self.client = client or Client(url)

    def close(self) -> None:
        self.client.close()

    def add(self, key: str, value: int, ttl: int) -> bool:
        return self.client.store.set(key, value, ttl=ttl / 1_000, if_absent=True)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        return self._change(key, amount, lambda value: value <= maximum, ttl)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        return self._change(key, -amount, lambda value: value >= minimum, ttl)

    def _change(self, key: str, by: int, allowed: Callable[[int], bool], ttl: int) -> bool:
        store = self.client.store
        while True:
            before = store.get(key)
            after = (before or 0) + by
            if not allowed(after):
                return False
            if before is None:
                done = store.set(key, after, ttl=ttl / 1_000, if_absent=True)
            else:
                done = store.cas(key, before, after, ttl=ttl / 1_000)
            if done:
                return True

    def incr_and_sum(
        self, key: str, keys: Callable[[], list[str]], amount: int, maximum: int, ttl: int
    ) -> bool:
        """Add to a counter, unless that would make the sum of ``keys`` more than ``maximum``."""
        store = self.client.store
        with store.lock(f"{key.partition('@')[0]}:lock", ttl=_LOCK_S, timeout=_LOCK_S):
            if sum(value or 0 for value in store.mget(keys())) + amount > maximum:
                return False
            store.incr(key, amount, ttl=ttl / 1_000)
            return True

    def wait(self, key: str, timeout: int) -> bool:
        """Wait for a `wait_notify`; False if none came in time."""
        with self.client.pubsub.subscribe(_topic(key)) as notices:
            try:
                notices.get(timeout / 1_000)
            except RequestTimeout:
                return False
            return True

    def wait_notify(self, key: str, ttl: int) -> None:
        """Wake everyone who waits, or will within ``ttl``."""
        self.client.pubsub.publish(_topic(key), b"\x01", retain=True, ttl=ttl / 1_000)


def _topic(key: str) -> str:
    return "dramatiq/" + key.replace("+", "-").replace("#", "-")
