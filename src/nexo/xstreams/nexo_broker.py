"""The stream broker on a Nexo server: durable, shared by all processes that connect.

The streams are the server's streams, with its retention off and one partition, so they can
also be published to and read with ``client.stream``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TypeVar

from nexo.batch import BatchRecord
from nexo.client._sync.client import Client
from nexo.client._sync.link.poll import Poll
from nexo.client.connecting import LATE_S
from nexo.client.stream_records import batches_in
from nexo.errors import NotFound
from nexo.model import Broker, Buffer
from nexo.protocol import xstreams as wire
from nexo.protocol.messages import pack, pack_headed, unpack, unpack_headed
from nexo.protocol.ops import Op
from nexo.protocol.stream import GroupName
from nexo.protocol.values import decode_content
from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.checks import MAX_PENDING, MAX_STREAM_LENGTH
from nexo.xstreams.ids import MAX_SEQ, MessageId
from nexo.xstreams.values import ConsumerGroupInfo, ConsumerInfo, PendingMessage, StreamMessage

T = TypeVar("T")

_WAIT_MS = 30_000
"""A read that waits longer repeats its request this often."""
_READS = frozenset((Op.S_X_INFO, Op.S_X_PENDING, Op.S_X_RANGE))
"""Requests that change nothing."""


class NexoStreamBroker(StreamBroker):
    """Streams of a Nexo server; a blocked read has its own connection."""

    def __init__(
        self,
        url: str | None = None,
        *,
        max_stream_length: int = MAX_STREAM_LENGTH,
        max_pending: int = MAX_PENDING,
    ) -> None:
        super().__init__(max_stream_length, max_pending)
        self._client = Client(url)
        self._link = self._client.link(Broker.STREAM)
        self._lock = threading.Lock()
        self._polls: set[Poll] = set()

    def _send(self, op: Op, *parts: bytes) -> Buffer:
        """Reads may run twice, so a connection that ends does not fail them (SPEC O3)."""
        self._check_open()
        send = self._link.repeat if op in _READS else self._link.call
        return send(op, *parts) or b""

    def _ask(self, op: Op, ask: object, reply: type[T]) -> T:
        return unpack(reply, self._send(op, pack(ask)))

    def _ask_or(self, default: T, op: Op, ask: object, reply: type[T]) -> T:
        """A request for which an unknown stream or group gives ``default``."""
        try:
            return self._ask(op, ask, reply)
        except NotFound:
            return default

    # -- producing

    def _xadd(self, stream: str, value: bytes) -> str:
        head = pack_headed(wire.Add(stream, self.limits.max_stream_length))
        return str(MessageId(*unpack(tuple[int, int], self._send(Op.S_X_ADD, head, value))))

    # -- groups

    def _create_group(self, stream: str, group: str, start: MessageId | None) -> bool:
        return self._ask(Op.S_X_GROUP, wire.MakeGroup(stream, group, start), bool)

    def _delete_group(self, stream: str, group: str) -> bool:
        try:
            self._send(Op.S_GROUP_DELETE, pack(GroupName(stream=stream, group=group)))
        except NotFound:
            return False
        return True

    def _delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        ask = wire.ConsumerName(stream, group, consumer)
        return self._ask(Op.S_X_CONSUMER_DELETE, ask, int)

    def _get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        return [_group_info(group) for group in self._info(stream).groups]

    def _info(self, stream: str) -> wire.XInfo:
        return self._ask_or(wire.XInfo(0, []), Op.S_X_INFO, wire.XName(stream), wire.XInfo)

    # -- consuming

    def _xreadgroup(
        self, stream: str, group: str, consumer: str, count: int, until_s: float | None
    ) -> list[StreamMessage]:
        while True:
            left_ms = _WAIT_MS if until_s is None else int((until_s - time.monotonic()) * 1000)
            wait_ms = max(0, min(left_ms, _WAIT_MS))
            found = self._read(
                wire.ReadGroup(stream, group, consumer, count, wait_ms, self.limits.max_pending)
            )
            if found or wait_ms == 0:
                return found

    def _read(self, ask: wire.ReadGroup) -> list[StreamMessage]:
        if not ask.wait_ms:
            return _messages(self._send(Op.S_X_READ, pack(ask)))
        poll = self._begin(ask)
        try:
            reply = poll.reply()
        finally:
            with self._lock:
                self._polls.discard(poll)
        self._check_open()
        return _messages(reply or b"")

    def _begin(self, ask: wire.ReadGroup) -> Poll:
        self._check_open()
        timeout_s = ask.wait_ms / 1000 + LATE_S
        poll = self._link.poll(Op.S_X_READ, pack(ask), timeout_s=timeout_s)
        with self._lock:
            self._polls.add(poll)
            if self._closed:
                poll.cancel()
        return poll

    def _xack(self, stream: str, group: str, ids: list[MessageId]) -> int:
        return self._by_id(Op.S_X_ACK, stream, group, ids)

    def _by_id(self, op: Op, stream: str, group: str, ids: list[MessageId]) -> int:
        return self._ask_or(0, op, wire.Ids(stream, group, [*ids]), int) if ids else 0

    def _xpending(self, stream: str, group: str, consumer: str | None) -> list[PendingMessage]:
        found: list[PendingMessage] = []
        offset = 0
        while True:
            ask = wire.PendingAsk(stream, group, consumer, offset)
            page = self._ask(Op.S_X_PENDING, ask, list[wire.XPending])
            found += map(_pending, page)
            if len(page) < wire.PAGE:
                return found
            offset = page[-1].seq + 1

    def _xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int
    ) -> list[StreamMessage]:
        ask = wire.XClaim(stream, group, consumer, min_idle_ms, count)
        return _messages(self._send(Op.S_X_CLAIM, pack(ask)))

    def _xrenew(self, stream: str, group: str, consumer: str, ids: list[MessageId]) -> list[str]:
        ask = wire.XRenew(stream, group, consumer, [*ids])
        kept = self._ask(Op.S_X_RENEW, ask, list[wire.Id]) if ids else []
        return [str(MessageId(*each)) for each in kept]

    # -- the stream itself

    def _xlen(self, stream: str) -> int:
        return self._info(stream).length

    def _xrange(
        self, stream: str, first: MessageId, last: MessageId, count: int | None
    ) -> list[StreamMessage]:
        found: list[StreamMessage] = []
        try:
            for page in self._pages(stream, first, last, count or MAX_SEQ):
                found += page
                if count is not None and len(found) >= count:
                    break
        except NotFound:
            return []
        return found[:count]

    def _pages(
        self, stream: str, first: MessageId, last: MessageId, count: int
    ) -> Iterator[list[StreamMessage]]:
        following: int | None = 0
        while following is not None:
            ask = wire.RangeAsk(stream, first, last, count, following)
            page, rest = unpack_headed(wire.XPage, self._send(Op.S_X_RANGE, pack(ask)))
            following = page.following
            yield [
                _message(row, 0)
                for batch in batches_in(rest)
                for row in batch.records()
                if page.first <= row.offset < page.end
            ]

    def _xdel(self, stream: str, ids: list[MessageId]) -> int:
        return self._by_id(Op.S_X_DELETE, stream, "", ids)

    def _xtrim(self, stream: str, max_len: int) -> int:
        return self._ask_or(0, Op.S_X_TRIM, wire.Trim(stream, max_len), int)

    def close(self) -> None:
        """End the connections; blocked reads end."""
        with self._lock:
            self._closed = True
            polls = list(self._polls)
        for poll in polls:
            poll.cancel()
        self._client.close()


def _messages(reply: Buffer) -> list[StreamMessage]:
    head, rest = unpack_headed(wire.XDelivered, reply)
    counts = {offset: count for first, end, count in head.ranges for offset in range(first, end)}
    return [
        _message(row, counts[row.offset])
        for batch in batches_in(rest)
        for row in batch.records()
        if row.offset in counts
    ]


def _message(row: BatchRecord, delivery_count: int) -> StreamMessage:
    data = None if row.value is None else decode_content(row.value_type, row.value)
    message_id = MessageId(row.timestamp_ms, row.offset)
    return StreamMessage(str(message_id), data, row.timestamp_ms, delivery_count)


def _pending(row: wire.XPending) -> PendingMessage:
    message_id = MessageId(row.ms, row.seq)
    return PendingMessage(str(message_id), row.consumer, row.idle_ms, row.delivery_count)


def _group_info(group: wire.XGroup) -> ConsumerGroupInfo:
    return ConsumerGroupInfo(
        name=group.name,
        last_delivered_id=str(MessageId(*group.last_id)),
        total_pending=group.pending,
        lag=group.lag,
        trimmed_unread=group.trimmed_unread,
        consumers=tuple(
            ConsumerInfo(each.name, each.pending, each.seen_ms) for each in group.consumers
        ),
    )
