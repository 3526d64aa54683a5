# Generated from _async/stream/transaction.py by tools/unasync.py; edit that file instead.
"""Transactions: records to several streams and their inputs, together or not at all (SPEC H1)."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol, runtime_checkable

from nexo.batch import Flags
from nexo.batch.partitions import partition_of
from nexo.client._sync import runtime
from nexo.client._sync.link.link import Link
from nexo.client._sync.requests import request
from nexo.client._sync.stream.records import StreamRecord, add_range
from nexo.client.stream_records import (
    Headers,
    Key,
    Outgoing,
    Published,
    Record,
    content_of,
    headers_bytes,
    key_bytes,
    needed_key,
)
from nexo.errors import (
    ClientClosed,
    Conflict,
    ConnectionLost,
    InvalidInput,
    NexoError,
    OutcomeUnknown,
    PartitionsChanged,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
)
from nexo.model.stream import Range, StreamInfo
from nexo.options.stream import check_transaction
from nexo.options.units import Duration, millis
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import (
    ROUTE,
    KeyAt,
    TxAcks,
    TxBegin,
    TxInputs,
    TxOffsets,
    publish_head,
    read_places,
)

log = logging.getLogger("nexo.client")

_AGAIN_S = 0.05
"""The pause between two requests for the outcome, and the least time for one."""
_PASSING = (ConnectionLost, RequestTimeout, Unavailable)
"""Errors that say nothing about the outcome: asking again may help."""


@runtime_checkable
class Source(Protocol):
    """A consumer of an ordered group; see `nexo.topics`."""

    def commit_within(self, transaction: Transaction, messages: list[Any]) -> None:
        """Add the offsets of messages delivered here to the transaction."""

    def ended_within(self, messages: list[Any], *, committed: bool) -> None:
        """The transaction has ended; after a rollback the messages are delivered again."""

    def doubt(self, transaction: Transaction) -> None:
        """The outcome is unknown: nothing is delivered before `Transaction.settle` finds it."""


class Transaction:
    """``with client.transaction() as tx``: commits at the end, rolls back on an exception.

    It belongs to the client's connection and ends with it, or after ``timeout``, which may be
    up to 15 minutes.
    """

    def __init__(self, link: Link, timeout: Duration = 60.0) -> None:
        self._link = link.duplex()
        self._timeout_ms = check_transaction(millis(timeout, "timeout"))
        self._id: int | None = None
        self._doubted: int | None = None
        """Its id when the commit was sent, until it is known how that went."""
        self._partitions: dict[str, int] = {}
        self._acks: dict[tuple[Any, int], list[Range]] = {}
        self._messages: dict[Source, list[Record[Any]]] = {}
        self._offsets: list[TxOffsets] = []
        self._unchanged: list[KeyAt] = []

    def begin(self) -> Transaction:
        """Open it; ``with`` does."""
        ask = TxBegin(timeout_ms=self._timeout_ms)
        self._id = request(self._link.call, Op.S_TX_BEGIN, ask, int)
        return self

    def _number(self) -> int:
        if self._id is None:
            raise Conflict("the transaction is not open: use it within 'with'")
        return self._id

    # -- writing

    def publish(
        self, stream: str, value: object, *, key: Key = None, headers: Headers = None
    ) -> Published:
        """Publish a record that stays invisible until the commit."""
        kind, content = content_of(value)
        return self._send(stream, kind, content, key_bytes(key), headers_bytes(headers))

    def tombstone(self, stream: str, key: str | bytes) -> Published:
        """Publish that a key is deleted."""
        return self._send(stream, 0, None, needed_key(key), b"")

    def _send(
        self, stream: str, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> Published:
        records = Outgoing()
        records.add(kind, content, key, headers)
        if key is None:
            return self.publish_batch(stream, ROUTE, records)
        while True:
            count = self._count(stream)
            partition = partition_of(key, count)
            try:
                return self.publish_batch(stream, partition, records, count=count)
            except PartitionsChanged:
                del self._partitions[stream]

    def publish_batch(
        self, stream: str, partition: int, records: Outgoing, *, count: int = 0
    ) -> Published:
        """Publish several records to one partition; returns the first one's place.

        `PartitionsChanged` if the stream does not have ``count`` partitions; 0 skips that check.
        """
        head, body = records.encode(int(time.time() * 1000), flags=Flags.TRANSACTIONAL)
        return self.publish_entry(stream, partition, head, *body, count=count)

    def publish_entry(
        self, stream: str, partition: int, *parts: bytes | bytearray, count: int = 0
    ) -> Published:
        """As `publish_batch`, of a batch that is encoded already, flagged as transactional."""
        start = self._number().to_bytes(8, "big") + publish_head(stream, partition, count)
        reply = self._link.call(Op.S_TX_PUBLISH, start, *parts)
        found, offset, _ = next(read_places(reply or b""))
        return Published(found, offset)

    def _count(self, stream: str) -> int:
        if stream not in self._partitions:
            ask = wire.StreamName(stream=stream)
            info = request(self._link.call, Op.S_DESCRIBE, ask, StreamInfo)
            self._partitions[stream] = len(info.partitions)
        return self._partitions[stream]

    # -- inputs

    def ack(self, *records: Record[Any]) -> None:
        """Add inputs: these records are finished with the transaction, or delivered again.

        Records of a shared group are acked; for a message of `nexo.topics` the offset is committed.
        It happens when the transaction ends, so there is nothing to await.
        """
        self._number()
        for record in records:
            if not isinstance(record, StreamRecord) and _source(record) is None:
                raise InvalidInput(f"ack takes what a consumer delivered, not {record!r}")
        for record in records:
            if isinstance(record, StreamRecord):
                key = record.consumer, record.generation
                add_range(self._acks.setdefault(key, []), record.partition, record.offset)
            elif (source := _source(record)) is not None:
                self._messages.setdefault(source, []).append(record)
        return runtime.DONE

    def commit_offsets(
        self,
        group: str,
        member: str,
        generation: int,
        offsets: list[tuple[str, int, int, str]],
        *,
        rewind: bool = False,
    ) -> None:
        """Commit offsets of an ordered group: ``topic, partition, last processed, metadata``.

        With ``rewind`` they may be lower than the stored ones.
        """
        self._offsets.append(TxOffsets(group, member, generation, offsets, rewind))

    def rely_on(self, stream: str, key: str | bytes, offset: int) -> None:
        """Roll back unless the newest record of ``key`` is still the one at ``offset``.

        -1 stands for none, or a deleted one.
        """
        self._unchanged.append(KeyAt(stream, needed_key(key), offset))

    # -- ending

    def commit(self) -> None:
        """Make everything visible together; `TransactionAborted` if it was rolled back instead.

        If the reply does not arrive, it asks for the outcome for as long as the transaction might
        have taken. `OutcomeUnknown` says that this failed; call it again to ask again.
        """
        op = Op.S_TX_OUTCOME
        if self._doubted is None:
            number = self._number()
            self._give_inputs(number)
            self._id, self._doubted, op = None, number, Op.S_TX_COMMIT
        try:
            self._settle(self._timeout_ms / 1000, op)
        except _PASSING as error:
            raise OutcomeUnknown(
                f"whether the transaction was committed is unknown: {error.message}"
            ) from error

    def _give_inputs(self, number: int) -> None:
        try:
            for source, messages in self._messages.items():
                source.commit_within(self, messages)
            if self._acks or self._offsets or self._unchanged:
                self._link.call(Op.S_TX_INPUTS, wire.pack(self._inputs(number)))
        except BaseException:
            self._roll_back()
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether its commit was sent and the outcome is unknown."""
        return self._doubted is not None

    def settle(self, wait_s: float) -> None:
        """Find the outcome of a commit in doubt; raises the errors of `commit`, and of asking."""
        if self.in_doubt:
            self._settle(wait_s, Op.S_TX_OUTCOME)

    def _settle(self, wait_s: float, op: Op) -> None:
        try:
            self._insist(wait_s, op)
        except TransactionAborted:
            self._report(committed=False)
            raise
        except BaseException:
            for source in self._messages:
                source.doubt(self)
            raise
        self._report(committed=True)

    def _insist(self, wait_s: float, op: Op) -> None:
        """Commit, or ask for the outcome; the answer is the same."""
        number, until_s = wire.pack(self._doubted), runtime.now_s() + wait_s
        while True:
            left_s = max(until_s - runtime.now_s(), _AGAIN_S)
            limit_s = None if op is Op.S_TX_COMMIT else min(left_s, self._link.address.timeout_s)
            try:
                self._link.call(op, number, timeout_s=limit_s)
            except ClientClosed:
                raise
            except _PASSING as error:
                in_vain = isinstance(error, ConnectionLost) and op is Op.S_TX_OUTCOME
                if in_vain and self._link.address.while_down == "fail":
                    raise
                if runtime.now_s() >= until_s:
                    raise
            else:
                return
            op = Op.S_TX_OUTCOME
            runtime.sleep(_AGAIN_S)

    def _report(self, *, committed: bool) -> None:
        for source, messages in self._messages.items():
            source.ended_within(messages, committed=committed)
        self._messages.clear()
        self._doubted = None

    def _inputs(self, number: int) -> TxInputs:
        acks = [
            TxAcks(consumer.stream, consumer.group, consumer.name, generation, ranges)
            for (consumer, generation), ranges in self._acks.items()
        ]
        return TxInputs(
            transaction=number, acks=acks, offsets=self._offsets, unchanged=self._unchanged
        )

    def abort(self) -> None:
        """Roll back: none of it becomes visible, and its inputs are delivered again."""
        number = self._number()
        self._id = None
        self._report(committed=False)
        try:
            if self._acks:
                self._link.call(Op.S_TX_INPUTS, wire.pack(self._inputs(number)))
        finally:  # left open, it would block the readers of what it wrote
            self._link.call(Op.S_TX_ABORT, wire.pack(number))

    def _roll_back(self) -> None:
        """`abort` after a failure, which is raised instead of this one's."""
        number = self._id
        try:
            self.abort()
        except NexoError as failure:
            log.info("transaction %s: %s", number, failure)

    def __enter__(self) -> Transaction:
        return self.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._id is None:
            return
        if error is None:
            self.commit()
            return
        self._roll_back()


def _source(record: object) -> Source | None:
    """The consumer that delivered a message, if it can take part."""
    source = getattr(record, "source", None)
    return source if isinstance(source, Source) else None
