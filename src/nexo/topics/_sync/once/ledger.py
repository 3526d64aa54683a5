# Generated from _async/once/ledger.py by tools/unasync.py; edit that file instead.
"""The storage of an exactly-once context, in memory: two tables of keys, and transactions.

Nexo's streams offer the same methods (`NexoLedger`), and so does a real Kafka, except for state
(`KafkaLedger`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from nexo.errors import TransactionAborted
from nexo.topics._sync.consumer.message_source import MessageSource
from nexo.topics.model import Commits, ProducerRecord, RecordMetadata, TopicPartition
from nexo.topics.once import ABSENT, Entry


class MemoryLedger:
    """Nothing survives the process: for tests without a server."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Entry]] = {}
        self.produced: dict[str, list[ProducerRecord]] = {}
        """Messages of committed transactions, by topic."""
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self._versions = itertools.count()

    def load(self, table: str, key: str) -> Entry:
        """A value and its version."""
        return self.tables.get(table, {}).get(key, ABSENT)

    def scan(self, table: str) -> Mapping[str, Entry]:
        """Everything in a table."""
        return dict(self.tables.get(table, {}))

    def transaction(self, timeout_s: float) -> _MemoryTransaction:
        """A new transaction, not open yet; it never times out."""
        return _MemoryTransaction(self)

    def apply(self, table: str, key: str, content: bytes | None) -> None:
        """Apply a change of a committing transaction."""
        entries = self.tables.setdefault(table, {})
        entries.pop(key, None)
        if content is not None:
            entries[key] = Entry(content, next(self._versions))

    def close(self) -> None: ...


class Certain:
    """Mixin of transactions that are known to be rolled back if `commit` failed."""

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of `commit` is unknown; then `settle` finds it."""
        return False

    def settle(self, wait_s: float) -> None:
        """Find the outcome; raises the errors of `commit`, and of asking longer than ``wait_s``."""


class _MemoryTransaction(Certain):
    """Changes that take effect together or not at all."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger
        self._changes: list[tuple[str, str, bytes | None]] = []
        self._relied: list[tuple[str, str, int]] = []
        self._messages: list[tuple[str, ProducerRecord]] = []
        self._commits: dict[TopicPartition, tuple[int, str]] = {}

    def begin(self) -> None: ...

    def put(self, table: str, key: str, content: bytes | None) -> None:
        """Store a value; None deletes it."""
        self._changes.append((table, key, content))

    def rely_on(self, table: str, key: str, offset: int) -> None:
        """Roll back if that is no longer the key's version."""
        self._relied.append((table, key, offset))

    def produce(self, topic: str, record: ProducerRecord) -> RecordMetadata:
        """Collect a message; its place is known once it is committed."""
        self._messages.append((topic, record))
        return RecordMetadata(topic, 0, len(self._ledger.produced.get(topic, ())))

    def add_offsets(self, source: MessageSource, commits: Commits) -> None:
        """Store what was processed of a source's messages."""
        self._commits.update(commits)

    def commit(self) -> None:
        """Commit; `TransactionAborted` if it was rolled back instead."""
        for table, key, offset in self._relied:
            if (self._ledger.load(table, key)).offset != offset:
                raise TransactionAborted(f"rolled back: key {key!r} has changed meanwhile")
        for change in self._changes:
            self._ledger.apply(*change)
        for topic, record in self._messages:
            self._ledger.produced.setdefault(topic, []).append(record)
        self._ledger.committed.update(self._commits)

    def abort(self) -> None: ...
