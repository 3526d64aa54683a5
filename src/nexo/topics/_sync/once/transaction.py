# Generated from _async/once/transaction.py by tools/unasync.py; edit that file instead.
"""A transaction over topics and state, as the work done in it sees it (SPEC H1, H3)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Token
from typing import Any

from nexo.client.stream_records import Headers, Key
from nexo.errors import Conflict, InvalidInput, NexoError, TransactionAborted
from nexo.topics._sync.consumer.message_source import MessageSource
from nexo.topics._sync.once.nexo_ledger import OnceLedger
from nexo.topics.model import ProducerRecord, RecordMetadata, TopicMessage, TopicPartition
from nexo.topics.once import (
    STATE,
    Entry,
    OutboxEvent,
    outbox_key,
    pack,
    state_key,
    unpack,
)
from nexo.topics.places import One, position_of
from nexo.topics.progress import Polls, current_transaction


class OnceTransaction:
    """Everything done through it takes effect together at its end, or not at all.

    Consumers polled while it is open take part: after a rollback they deliver the same messages
    again.
    """

    def __init__(self, ledger: OnceLedger, timeout_s: float) -> None:
        self.ledger = ledger
        self._changes = ledger.transaction(timeout_s)
        self._written: dict[tuple[str, str], bytes | None] = {}
        self._seen: dict[tuple[str, str], Entry] = {}
        self._polled: list[tuple[MessageSource, TopicMessage[Any]]] = []
        self._commits: dict[MessageSource, dict[TopicPartition, tuple[int, str]]] = {}
        self._token: Token[Polls | None] | None = None
        self._open = False

    # -- topics

    def produce(
        self,
        topic: str,
        value: object,
        *,
        key: Key = None,
        headers: Headers = None,
    ) -> RecordMetadata:
        """Write a message that stays invisible until the commit."""
        self._check_open()
        return self._changes.produce(topic, ProducerRecord.made(value, key, headers))

    def commit(self, what: One, *, metadata: str = "") -> None:
        """Commit a message with the transaction: the message, or the offset of one polled in it."""
        self._check_open()
        source, at, offset = self._place(what)
        commits = self._commits.setdefault(source, {})
        if at not in commits or commits[at][0] < offset:
            commits[at] = offset, metadata

    def _place(self, what: One) -> tuple[MessageSource, TopicPartition, int]:
        if isinstance(what, TopicMessage) and isinstance(what.source, MessageSource):
            return what.source, what.topic_partition, what.offset
        place = position_of(what, [message for _, message in self._polled], ())
        for source, message in self._polled:
            if message.topic_partition == place.topic_partition:
                return source, place.topic_partition, place.offset
        raise InvalidInput(f"{place} was not polled in this transaction: commit the message itself")

    def polled(self, source: Any, messages: Sequence[TopicMessage[Any]]) -> None:
        """Called by a consumer: these were delivered while the transaction was open."""
        self._polled += [(source, message) for message in messages]

    # -- state

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the context's state, as this transaction sees it."""
        content = self.load(STATE, state_key(key))
        return default if content is None else unpack(content)

    def put(self, key: str, value: Any) -> None:
        """Set a value of the context's state."""
        self.store(STATE, state_key(key), pack(value))

    def delete(self, key: str) -> None:
        """Remove a value of the context's state."""
        self.store(STATE, state_key(key), None)

    def emit(self, value: Any, *, topic: str | None = None, key: Key = None) -> None:
        """Put an event into the outbox; `flush` delivers it once this is committed."""
        content = pack(OutboxEvent(value, topic, key))
        self.store(STATE, outbox_key(uuid.uuid4().hex), content)

    def load(self, table: str, key: str) -> bytes | None:
        """A stored value; if it changes before the commit, that is rejected."""
        self._check_open()
        if (table, key) in self._written:
            return self._written[table, key]
        if (table, key) not in self._seen:
            entry = self._seen[table, key] = self.ledger.load(table, key)
            self._changes.rely_on(table, key, entry.offset)
        return self._seen[table, key].content

    def store(self, table: str, key: str, content: bytes | None) -> None:
        """Change a stored value."""
        self._check_open()
        self._written[table, key] = content
        self._changes.put(table, key, content)

    # -- its life

    def _check_open(self) -> None:
        if not self._open:
            raise Conflict("the transaction is not open: use it within 'with'")

    def __enter__(self) -> OnceTransaction:
        if current_transaction.get() is not None:
            raise Conflict("a transaction is already open here: they do not nest")
        self._changes.begin()
        self._open = True
        self._token = current_transaction.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open = False
        if self._token is not None:
            current_transaction.reset(self._token)
        try:
            if error is None:
                self._commit()
        except BaseException:
            if self._changes.in_doubt:
                for source in self._involved():
                    source.doubt(self)
            else:
                self._unread()
            raise
        if error is not None:
            self._unread()
            self._roll_back()

    def _commit(self) -> None:
        try:
            for source, commits in self._commits.items():
                self._changes.add_offsets(source, commits)
        except BaseException:
            self._roll_back()
            raise
        self._changes.commit()
        self._stored()

    def settle(self, wait_s: float) -> None:
        """Called by a consumer: find the outcome, if the commit's reply never came."""
        try:
            self._changes.settle(wait_s)
        except TransactionAborted:
            self._unread()
            raise
        self._stored()

    def _stored(self) -> None:
        for source, commits in self._commits.items():
            source.committed(commits)

    def _roll_back(self) -> None:
        with suppress(NexoError):  # then the server rolls it back by itself
            self._changes.abort()

    def _unread(self) -> None:
        for source, messages in self._involved().items():
            source.rolled_back(messages, self._commits.get(source, {}))

    def _involved(self) -> dict[MessageSource, list[TopicMessage[Any]]]:
        """Participating consumers, each with what was polled from it."""
        found: dict[MessageSource, list[TopicMessage[Any]]] = {each: [] for each in self._commits}
        for source, message in self._polled:
            found.setdefault(source, []).append(message)
        return found
