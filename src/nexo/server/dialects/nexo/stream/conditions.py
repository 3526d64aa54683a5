"""What a transaction read and relies on: if a key has changed meanwhile, it is rolled back.

So transactions of several processes that read and write the same keys take effect as if
one came after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from nexo.brokers.stream.transactions import Transaction
from nexo.errors import Conflict
from nexo.protocol.stream import KeyAt
from nexo.server.dialects.nexo.stream.core import Core
from nexo.server.dialects.nexo.stream.keyed import Keyed


class Conditions:
    """The keys that open transactions rely on."""

    def __init__(self, core: Core, keyed: Keyed) -> None:
        self._core = core
        self._keyed = keyed
        self._relied: dict[int, list[KeyAt]] = {}
        self._deciding: set[tuple[str, bytes]] = set()
        """Keys of transactions that are decided, but not yet visible to readers."""

    def add(self, transaction: Transaction, keys: Iterable[KeyAt]) -> None:
        """The transaction has read these."""
        self._relied.setdefault(transaction.id, []).extend(keys)

    def check(self, transaction: Transaction) -> None:
        """Raise `Conflict` if one has changed."""
        for key in self._relied.get(transaction.id, ()):
            if (key.stream, key.key) in self._deciding or self._offset(key) != key.offset:
                raise Conflict(f"key {key.key.decode(errors='replace')!r} has changed meanwhile")

    def _offset(self, key: KeyAt) -> int:
        stream = self._core.engine.streams.get(key.stream)
        return self._keyed.newest_offset(stream, key.key)

    def hold(self, transaction: Transaction) -> None:
        """It is decided: nobody else may rely on these until `release`."""
        self._deciding |= {(key.stream, key.key) for key in self._relied.get(transaction.id, ())}

    def release(self, transaction: Transaction) -> None:
        """It is visible, or rolled back."""
        for key in self._relied.pop(transaction.id, ()):
            self._deciding.discard((key.stream, key.key))
