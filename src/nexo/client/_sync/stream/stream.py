# Generated from _async/stream/stream.py by tools/unasync.py; edit that file instead.
"""A stream as its users see it: publish records, consume them in groups, replay (SPEC E, F)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Generic, Never, TypeVar, Unpack

from nexo.client._sync.link.link import Link
from nexo.client._sync.requests import is_found, request
from nexo.client._sync.stream.batch_publisher import BatchPublisher
from nexo.client._sync.stream.consumer import MAX_BYTES, StreamConsumer
from nexo.client._sync.stream.groups import Group
from nexo.client._sync.stream.publisher import RecordPublisher
from nexo.client._sync.stream.records import StreamRecord
from nexo.client._sync.stream.subscription import StreamSubscription
from nexo.client.checks import column, each, not_keywords, text, whole
from nexo.client.connecting import LATE_S
from nexo.client.replies import check_sizes
from nexo.client.stream_options import (
    GroupSettings,
    StreamSettings,
    group_options,
    position,
    stream_options,
)
from nexo.client.stream_records import (
    Headers,
    Key,
    Published,
    PublishedBatch,
    Record,
    batches_in,
    content_of,
    headers_bytes,
    key_bytes,
    needed_key,
    typed_content,
)
from nexo.model.stream import GroupInfo, StartPosition, StateReply, StreamInfo
from nexo.options.units import Duration, millis
from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import ROUTE
from nexo.protocol.values import uniform

T = TypeVar("T")

_MAX_PUBLISHERS = 10_000
MAX_PARTITION = 2**16 - 1


class Stream(Generic[T]):
    """One stream, as ``client.stream(name)`` returns it."""

    def __init__(
        self,
        link: Link,
        name: str,
        type_: type[T] | None = None,
        publishers: dict[str, RecordPublisher] | None = None,
    ) -> None:
        """``publishers`` are those of other objects for the same link, by stream name.

        They share the order of records and the partition count.
        """
        self.name = text(name, "a stream's name")
        self._link = link
        self._type = type_
        self._encode: Callable[[object], tuple[int, bytes]] = (
            content_of if type_ is None else partial(typed_content, type_)
        )
        shared = {} if publishers is None else publishers
        if len(shared) >= _MAX_PUBLISHERS:
            shared.clear()
        self._publisher = shared.get(name) or shared.setdefault(name, RecordPublisher(link, name))

    @cached_property
    def _batches(self) -> BatchPublisher:
        return BatchPublisher(self._link, self.name, self._publisher)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # -- the stream itself

    def create(
        self, *misplaced: Never, update: bool = False, **options: Unpack[StreamSettings]
    ) -> Stream[T]:
        """Create it unless it exists; returns it.

        An existing stream must agree with every option given, or it is `AlreadyExists`; ``update``
        changes it instead (see `update`).

        Options are ``partitions`` (1), ``persistence`` (``file_async`` or ``file_sync``),
        ``retention={'max_age': '7d', 'max_bytes': 2**30}``, ``compaction`` (False),
        ``max_message_bytes``, ``tiering``; and in more detail ``cleanup`` (``delete``,
        ``compact`` or ``delete,compact``), ``min_dirty_ratio``, ``delete_retention``.
        ``create(**info.options)`` makes one like another.
        """
        if misplaced:
            raise not_keywords(misplaced, "create(partitions=4)")
        given = stream_options(options)
        ask = wire.Make(stream=self.name, options=given, update=update)
        self._describe(Op.S_MAKE, ask)
        return self

    def update(self, **options: Unpack[StreamSettings]) -> StreamInfo:
        """Change options while it runs.

        Partitions may be added, never removed. Records stay where they are, so those of one key
        that were written before and after may be in two partitions, and be read out of order.
        """
        given = stream_options(options)
        return self._describe(Op.S_UPDATE, wire.Make(stream=self.name, options=given))

    def info(self) -> StreamInfo:
        """Options, and per partition the first and next offset and the size."""
        return self._describe(Op.S_DESCRIBE, wire.StreamName(stream=self.name))

    def _describe(self, op: Op, ask: object) -> StreamInfo:
        send = self._link.repeat if op is Op.S_DESCRIBE else self._link.call
        info = request(send, op, ask, StreamInfo)
        self._publisher.learned(info)
        return info

    def exists(self) -> bool:
        """Whether it was created."""
        return is_found(self._link.repeat, Op.S_EXISTS, pack_str(self.name))

    def delete(self) -> bool:
        """Delete its records and groups; returns whether it existed."""
        existed = is_found(self._link.call, Op.S_DELETE, pack_str(self.name))
        if existed:
            self._publisher.count = None
        return existed

    def compact(self) -> int:
        """Keep only the newest record per key, now; returns the bytes freed.

        `InvalidOption` unless its ``cleanup`` includes ``compact``.
        """
        return request(self._link.call, Op.S_COMPACT, wire.StreamName(stream=self.name), int)

    def apply_retention(self) -> int:
        """Apply the age and size limits now; returns the bytes freed."""
        return request(self._link.call, Op.S_RETAIN, wire.StreamName(stream=self.name), int)

    # -- groups

    def group(self, name: str) -> Group[T]:
        """The shared group of that name; nothing is sent yet."""
        return Group(self._link, self.name, name, self._type)

    def groups(self) -> list[GroupInfo]:
        """Every shared group: consumers, lag, what is in flight and parked."""
        ask = wire.GroupsAsk(stream=self.name)
        return request(self._link.repeat, Op.S_GROUPS, ask, list[GroupInfo])

    def seek(self, group: str, to: StartPosition | datetime) -> int:
        """See `Group.seek`."""
        return self.group(group).seek(to)

    # -- publishing

    def publish(
        self,
        value: T,
        *misplaced: Never,
        key: Key = None,
        headers: Headers = None,
        partition: int | None = None,
    ) -> Published:
        """Publish a record; the result is its partition and offset.

        Records of one key are stored in their order; a shared group also processes them in it if it
        has ``ordered_by='key'``. ``partition`` overrides the key's. Need not be awaited: records of
        one loop turn are sent together as one batch.
        """
        if misplaced:
            raise not_keywords(misplaced, "publish(value, key='u1')")
        kind, content = self._encode(value)
        if key is None and headers is None and partition is None:
            return self._publisher.send(ROUTE, kind, content, None, b"")
        if partition is not None:
            at = whole(partition, "partition", 0, MAX_PARTITION)
            return self._publisher.send(at, kind, content, key_bytes(key), headers_bytes(headers))
        return self._send(kind, content, key_bytes(key), headers_bytes(headers))

    def tombstone(self, key: str | bytes) -> Published:
        """Publish that a key is deleted; compaction removes it."""
        return self._send(0, None, needed_key(key), b"")

    def _send(
        self, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> Published:
        if key is None:
            return self._publisher.send(ROUTE, kind, content, None, headers)
        return self._publisher.send_keyed(kind, content, key, headers)

    def publish_many(
        self,
        values: Iterable[T],
        *,
        keys: Sequence[Key] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> PublishedBatch:
        """Publish many records in few batches; the result is the place of each."""
        values = list(each(values))
        column(keys, "keys", len(values))
        column(headers, "headers", len(values))
        if not values:
            return PublishedBatch([])
        plain = uniform(values, self._type) if keys is None and headers is None else None
        if plain is not None and (step := self._batches.step(plain[1])):
            return self._batches.plain(*plain, step)
        rows = [self._encode(value) for value in values]
        check_sizes(self._link.welcome, (len(content) for _, content in rows))
        texts = [b""] * len(rows) if headers is None else [headers_bytes(each) for each in headers]
        if keys is None:
            return self._batches.unkeyed(rows, texts)
        return self._batches.keyed(rows, [key_bytes(key) for key in keys], texts)

    # -- consuming

    def consume(
        self,
        group: str,
        *,
        batch: int = 100,
        wait: Duration = 20.0,
        start: StartPosition | datetime = "beginning",
        max_bytes: int = wire.DEFAULT_BYTES,
        **options: Unpack[GroupSettings],
    ) -> StreamConsumer[T]:
        """One consumer of a group, with records to be acked one by one: ``for``.

        ``start`` is where a new group begins. Further options tune the group: ``ack_wait``,
        ``max_deliveries``, ``max_ack_pending``, ``ordered_by='key'``.
        """
        ask = self._joining(group, start, group_options(options))
        return StreamConsumer(self._link, ask, self._type, batch, wait, max_bytes)

    def _joining(
        self,
        group: str,
        start: StartPosition | datetime,
        options: dict[str, Any],
        *,
        reports_starts: bool = False,
    ) -> wire.GroupJoin:
        first, start_ms = position(start, "start")
        return wire.GroupJoin(
            stream=self.name,
            group=group,
            options=options,
            start=first,
            start_ms=start_ms,
            reports_starts=reports_starts,
        )

    def subscribe(
        self,
        group: str,
        handler: Callable[[StreamRecord[T]], Any],
        *misplaced: Never,
        batch: int = 100,
        wait: Duration = 20.0,
        concurrency: int = 1,
        start: StartPosition | datetime = "beginning",
        time_limit: Duration | None = None,
        **options: Unpack[GroupSettings],
    ) -> StreamSubscription[T]:
        """Call ``handler`` with each record: acked when it returns, nacked when it raises.

        With ``concurrency=1`` records are handled one after another, in order. A handler that runs
        longer than ``time_limit`` is cancelled, and its record is nacked. End it with ``await
        subscription.close()``.
        """
        if misplaced:
            raise not_keywords(misplaced, "subscribe(group, handler, batch=100)")
        ask = self._joining(group, start, group_options(options), reports_starts=True)
        consumer = StreamConsumer(self._link, ask, self._type, batch, wait, wire.DEFAULT_BYTES)
        subscription = StreamSubscription(consumer, handler, concurrency, time_limit)
        subscription.start()
        return subscription

    # -- reading without a group

    def read(
        self,
        partition: int = 0,
        offset: int = 0,
        *,
        max_bytes: int = wire.DEFAULT_BYTES,
        wait: Duration = 0.0,
    ) -> list[Record[T]]:
        """Records of a partition from ``offset`` on; empty at the end, after ``wait``."""
        ask = wire.Read(
            self.name,
            whole(partition, "partition", 0),
            whole(offset, "offset", 0),
            whole(max_bytes, "max_bytes", 1, MAX_BYTES),
            millis(wait, "wait"),
        )
        timeout_s = ask.wait_ms / 1000 + LATE_S
        reply = self._link.repeat(Op.S_READ, wire.pack(ask), timeout_s=timeout_s)
        _, rest = wire.unpack_headed(wire.ReadReply, reply or b"")
        return [
            Record(partition, row, self._type)
            for batch in batches_in(rest)
            for row in batch.rows()
            if row[0] >= offset
        ]

    def get(self, key: str | bytes) -> Record[T] | None:
        """The newest record of a key; None if there is none or it was deleted."""
        ask = wire.Get(stream=self.name, key=needed_key(key))
        reply = self._link.repeat(Op.S_GET, wire.pack(ask))
        if reply is None:
            return None
        found, rest = wire.unpack_headed(int, reply)
        row = next(next(batches_in(rest)).rows())
        return Record(found, row, self._type)

    def state(self) -> Mapping[str | bytes, Record[T]]:
        """The newest record of every key that was not deleted."""
        found: dict[str | bytes, Record[T]] = {}
        at: tuple[int, int] | None = (0, 0)
        while at is not None:
            ask = wire.StateAsk(stream=self.name, partition=at[0], offset=at[1])
            head, rest = wire.unpack_headed(
                StateReply, self._link.repeat(Op.S_STATE, wire.pack(ask)) or b""
            )
            for partition, batch in zip(head.partitions, batches_in(rest), strict=True):
                for row in batch.rows():
                    record: Record[T] = Record(partition, row, self._type)
                    found[record.key or ""] = record
            at = head.following
        return found
