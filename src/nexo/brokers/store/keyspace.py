"""All keys: values, due times, order and memory, kept consistent.

Every change of a key is made here, so that size, index, expiry and order of use always
agree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from nexo.brokers.store.expiry import Expiry
from nexo.brokers.store.index import OrderedKeys
from nexo.brokers.store.values import StoreValue, value_bytes
from nexo.errors import InvalidInput, PayloadTooLarge
from nexo.model.store import MAX_KEY_BYTES

B = TypeVar("B", bytes, bytes | None)

ENTRY_BYTES = 200
"""What a key is assumed to cost besides its own bytes: tables, index and object headers."""


def check_key(key: str) -> None:
    """Raise `InvalidInput` unless ``key`` is text of 1 byte to 64 KiB in UTF-8."""
    if not key:
        raise InvalidInput("a key cannot be empty")
    if len(key) * 4 > MAX_KEY_BYTES and len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidInput(f"a key is at most {MAX_KEY_BYTES} bytes; this one has more")


class Keyspace:
    """Keys and what they hold, within ``max_bytes`` of memory (0 for no limit).

    Over the limit the least recently used keys are evicted. The size is an estimate that
    depends only on the contents; see `ENTRY_BYTES`.
    """

    __slots__ = (
        "_by_use", "_values", "changes", "evicted", "expired", "expiry", "index",
        "max_bytes", "max_reply_bytes", "used_bytes",
    )  # fmt: skip

    def __init__(self, max_bytes: int = 0, max_reply_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.max_reply_bytes = max_reply_bytes
        self.used_bytes = 0
        self.changes = 0
        """Grows with every change, so that an unchanged store need not be saved again."""
        self.evicted = 0
        self.expired = 0
        self.expiry = Expiry()
        self.index = OrderedKeys()
        # Only a budget needs the order of use, and a plain dict is smaller and faster.
        self._by_use: OrderedDict[str, StoreValue] | None = OrderedDict() if max_bytes else None
        self._values: dict[str, StoreValue] = {} if self._by_use is None else self._by_use

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: str, now_ms: int) -> StoreValue | None:
        """The value of ``key``, counted as a use; an expired key is removed."""
        value = self._values.get(key)
        if value is None:
            return None
        if self.expiry.due and self.peek(key, now_ms) is None:
            return None
        if self._by_use is not None:
            self._by_use.move_to_end(key)
        return value

    def peek(self, key: str, now_ms: int) -> StoreValue | None:
        """Like `find`, but not counted as a use."""
        due_ms = self.expiry.due.get(key)
        if due_ms is not None and due_ms <= now_ms:
            self.drop(key)
            self.expired += 1
            return None
        return self._values.get(key)

    def held(self, key: str) -> StoreValue:
        """The value of ``key``, which must be in the index, expired or not."""
        return self._values[key]

    def set_due(self, key: str, due_ms: int) -> None:
        self.changes += 1
        self.expiry.set(key, due_ms)

    def clear_due(self, key: str) -> bool:
        """Remove the due time of a key; True if it had one."""
        self.changes += 1
        return self.expiry.clear(key)

    def put(self, key: str, value: StoreValue) -> None:
        """Set the value of ``key``; its due time, if any, stays."""
        old = self._values.get(key)
        size = value_bytes(value)
        if self.max_bytes:
            self.check_room(key, size)
        if old is None:
            check_key(key)
            self.index.add(key)
            size += ENTRY_BYTES + len(key)
        else:
            size -= value_bytes(old)
        self._values[key] = value
        self.grown(key, size)

    def grown(self, key: str, by_bytes: int) -> None:
        """The value of ``key`` grew (or shrank); evict others if needed."""
        self.used_bytes += by_bytes
        self.changes += 1
        if self._by_use is not None:
            self._by_use.move_to_end(key)
            while self.used_bytes > self.max_bytes:
                self.drop(next(iter(self._by_use)))
                self.evicted += 1

    def check_room(self, key: str, size_bytes: int) -> None:
        """Raise `PayloadTooLarge` if ``key`` with this size could never fit the budget."""
        if self.max_bytes and ENTRY_BYTES + len(key) + size_bytes > self.max_bytes:
            raise PayloadTooLarge(
                f"{size_bytes} bytes under one key do not fit the store's budget of "
                f"{self.max_bytes}; raise STORE_MAX_BYTES or split the value"
            )

    def bounded(self, values: Iterable[B]) -> list[B]:
        """Collect the values; `PayloadTooLarge` once they exceed what a reply may hold."""
        found: list[B] = []
        size, most = 0, self.max_reply_bytes
        for value in values:
            found.append(value)
            size += len(value or b"")
            if most and size > most:
                raise self._too_large()
        return found

    def check_reply(self, value: StoreValue) -> None:
        """Raise `PayloadTooLarge` if a whole collection exceeds what a reply may hold."""
        if self.max_reply_bytes and value_bytes(value) > self.max_reply_bytes:
            raise self._too_large()

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the reply would hold more than {self.max_reply_bytes} bytes: ask for less at a time"
        )

    def drop(self, key: str) -> StoreValue | None:
        """Remove ``key``; returns its value."""
        value = self._values.pop(key, None)
        if value is not None:
            self.changes += 1
            self.used_bytes -= ENTRY_BYTES + len(key) + value_bytes(value)
            self.index.remove(key)
            self.expiry.clear(key)
        return value

    def sweep(self, now_ms: int, limit: int) -> int:
        """Drop up to ``limit`` expired keys; returns how many it found."""
        over = self.expiry.pop_over(now_ms, limit)
        for key in over:
            self.drop(key)
        self.expired += len(over)
        return len(over)
