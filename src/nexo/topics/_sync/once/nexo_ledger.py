# Generated from _async/once/nexo_ledger.py by tools/unasync.py; edit that file instead.
"""An exactly-once context on a Nexo server: two compacted streams and its transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from nexo.client._sync import runtime
from nexo.client._sync.client import Client
from nexo.client._sync.stream.transaction import Transaction
from nexo.errors import AlreadyExists
from nexo.topics._sync.consumer.message_source import MessageSource
from nexo.topics._sync.kafka.ledger import KafkaLedger
from nexo.topics._sync.nexo_backend import url_of
from nexo.topics._sync.once.ledger import MemoryLedger
from nexo.topics.model import Commits, ProducerRecord, RecordMetadata
from nexo.topics.once import ABSENT, ONCE, STATE, Entry


class NexoLedger:
    """As `MemoryLedger`, on streams named after the context."""

    def __init__(self, client: Client, name: str, ttl_ms: int, *, owned: bool) -> None:
        self._client = client
        self._owned = owned
        self._ready = False
        self._lock = runtime.Mutex()
        self._streams = {table: f"exactly-once/{name}/{table}" for table in (STATE, ONCE)}
        self._options: dict[str, dict[str, Any]] = {
            STATE: {"cleanup": "compact", "retention_ms": 0, "retention_bytes": 0},
            # The broker removes results once none of them can be requested.
            ONCE: {"cleanup": "delete,compact", "retention_ms": ttl_ms, "retention_bytes": 0},
        }

    def stream(self, table: str) -> str:
        """The stream that holds a table."""
        return self._streams[table]

    def ensure(self) -> None:
        """Make the streams, unless they are there."""
        if self._ready:
            return
        with self._lock:
            for table, name in self._streams.items():
                stream = self._client.stream(name)
                try:
                    stream.create(**self._options[table])
                except AlreadyExists:
                    stream.update(**self._options[table])
            self._ready = True

    def load(self, table: str, key: str) -> Entry:
        """The newest record of the key."""
        self.ensure()
        found = self._client.stream(self._streams[table]).get(key)
        return ABSENT if found is None else Entry(found.payload, found.offset)

    def scan(self, table: str) -> Mapping[str, Entry]:
        """The newest record of every key."""
        self.ensure()
        found = self._client.stream(self._streams[table]).state()
        return {str(key): Entry(record.payload, record.offset) for key, record in found.items()}

    def transaction(self, timeout_s: float) -> _NexoTransaction:
        """A transaction of the stream broker."""
        return _NexoTransaction(self, self._client.transaction(timeout=timeout_s))

    def close(self) -> None:
        """Close the client if it was made for this."""
        if self._owned:
            self._client.close()


class _NexoTransaction:
    def __init__(self, ledger: NexoLedger, transaction: Transaction) -> None:
        self._ledger = ledger
        self._transaction = transaction

    def begin(self) -> None:
        self._ledger.ensure()
        self._transaction.begin()

    def put(self, table: str, key: str, content: bytes | None) -> None:
        """A record, or a tombstone."""
        stream = self._ledger.stream(table)
        if content is None:
            self._transaction.tombstone(stream, key)
        else:
            self._transaction.publish(stream, content, key=key)

    def rely_on(self, table: str, key: str, offset: int) -> None:
        """Checked by the broker when it commits."""
        self._transaction.rely_on(self._ledger.stream(table), key, offset)

    def produce(self, topic: str, record: ProducerRecord) -> RecordMetadata:
        """A record that nobody sees before the commit."""
        if record.value is None and record.key is not None:
            place = self._transaction.tombstone(topic, record.key)
        else:
            place = self._transaction.publish(
                topic, record.value, key=record.key, headers=record.headers
            )
        return RecordMetadata(topic, *place)

    def add_offsets(self, source: MessageSource, commits: Commits) -> None:
        source.give_commits(self._transaction, commits)

    def commit(self) -> None:
        self._transaction.commit()

    @property
    def in_doubt(self) -> bool:
        return self._transaction.in_doubt

    def settle(self, wait_s: float) -> None:
        self._transaction.settle(wait_s)

    def abort(self) -> None:
        self._transaction.abort()


OnceLedger: TypeAlias = MemoryLedger | NexoLedger | KafkaLedger


def ledger_for(server: Client | str | None, name: str, ttl_ms: int) -> OnceLedger:
    """``memory://``, ``nexo://`` or ``kafka://``; a client is used as it is."""
    if isinstance(server, Client):
        return NexoLedger(server, name, ttl_ms, owned=False)
    url = url_of(server)
    match urlsplit(url or "").scheme:
        case "memory":
            return MemoryLedger()
        case "kafka":
            return KafkaLedger(url or "", name)
    return NexoLedger(Client(url), name, ttl_ms, owned=True)
