"""Keys that a transaction read and relies on: if one changed, it is rolled back.

So transactions of several processes on the same keys take effect as if they ran one after
another.
"""

from __future__ import annotations

from collections.abc import Iterable

from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.transactions import OpenTransaction
from nexo.errors import Conflict, NexoError
from nexo.model.stream import KeyAt
from nexo.services.connection import Done
from nexo.services.stream.core import Core
from nexo.services.stream.keyed import Keyed


class Conditions:
    """The keys that open transactions rely on."""

    def __init__(self, core: Core, keyed: Keyed) -> None:
        self._core = core
        self._keyed = keyed
        self._relied: dict[int, list[KeyAt]] = {}
        self._decided: dict[tuple[str, bytes], list[tuple[Partition, int]]] = {}
        """Keys of committed transactions, and the offset from which readers see them.

        A transaction opened earlier and still open may hide them from the index.
        """

    def add(self, transaction: OpenTransaction, keys: Iterable[KeyAt]) -> None:
        """Add keys that the transaction has read."""
        self._relied.setdefault(transaction.id, []).extend(keys)

    def prepare(self, transaction: OpenTransaction, done: Done[None]) -> None:
        """Prepare for `check`; the first time for a stream, this may take a while."""
        try:
            streams = self._core.engine.streams
            keys = [(streams.get(k.stream), k.key) for k in self._relied.get(transaction.id, ())]
        except NexoError as error:
            done(error)
            return
        places = {(s.id, i): (s, i) for s, key in keys for i in s.homes(key)}
        self._keyed.prepare(places.values(), done)

    def check(self, transaction: OpenTransaction) -> None:
        """Raise `Conflict` if one of its keys has changed."""
        for key in self._relied.get(transaction.id, ()):
            hidden = not self._visible((key.stream, key.key))
            if hidden or self._offset(transaction, key) != key.offset:
                raise Conflict(
                    f"key {key.key.decode(errors='replace')!r} has changed since it was read"
                )

    def _visible(self, key: tuple[str, bytes]) -> bool:
        ends = self._decided.get(key, ())
        return all(partition.stable_offset >= end for partition, end in ends)

    def _offset(self, transaction: OpenTransaction, key: KeyAt) -> int:
        stream = self._core.engine.streams.get(key.stream)
        if transaction.id < stream.growths.first_transaction:
            raise Conflict(f"partitions were added to stream {key.stream!r} since keys were read")
        return self._keyed.newest(stream, key.key)[1]

    def decided(self, transaction: OpenTransaction) -> None:
        """The transaction is committed: others may not rely on its keys until they are visible."""
        ends = [
            (stream.partition(index), stream.partition(index).open_ranges[transaction.id][-1][1])
            for (_, index), stream in transaction.touched.items()
        ]
        for key in self._relied.pop(transaction.id, ()):
            self._decided[key.stream, key.key] = ends
        while self._decided and self._visible(first := next(iter(self._decided))):
            del self._decided[first]

    def forget(self, transaction: OpenTransaction) -> None:
        """The transaction was rolled back."""
        self._relied.pop(transaction.id, None)
