"""The hot log as SQL and Spark read it: blocking, one connection for all streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from nexo.batch import Batch, decode, entries
from nexo.client._sync.link.link import Link
from nexo.client._sync.requests import request, status
from nexo.client.address import Address, parse_url
from nexo.errors import NexoError, NotFound, OffsetOutOfRange
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import OrderedAsk, OrderedInfo
from nexo.protocol.stream_publishing import publish_head

READ_BYTES = 8 * 1024**2
TOGETHER = 128
"""Requests that are sent before the first reply is awaited."""
_FAR_MS = 1 << 52
"""A time after every record."""
ReplyOrError: TypeAlias = bytes | memoryview | NexoError
"""A reply, or why there is none."""


class HotLog:
    """Requests about streams; ``with`` closes the connection."""

    def __init__(self, url: str | Address | None) -> None:
        self._link = Link(parse_url(url), Broker.STREAM)

    def __enter__(self) -> HotLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def status(self) -> dict[str, Any]:
        """The broker's report of itself."""
        found: dict[str, Any] = status(self._link.call, Broker.STREAM)
        return found

    def names(self, *, tiering: bool = False) -> Iterator[str]:
        """Every stream's name, in order, or only of those with ``tiering`` on."""
        after = ""
        while True:
            ask = wire.ListAsk(after=after, tiering=tiering)
            found = request(self._link.call, Op.S_LIST, ask, list[str])
            yield from found
            if len(found) < ask.limit:
                return
            after = found[-1]

    def describe(self, stream: str) -> wire.StreamInfo:
        """A stream's options and partitions; `NotFound` if there is none."""
        ask = wire.StreamName(stream=stream)
        return request(self._link.call, Op.S_DESCRIBE, ask, wire.StreamInfo)

    def describe_all(self, streams: Iterable[str]) -> dict[str, wire.StreamInfo | NexoError]:
        """The result of `describe` for each, or its failure; asked together."""
        names = list(streams)
        replies = self._each(Op.S_DESCRIBE, [wire.StreamName(stream=name) for name in names])
        return {
            name: reply if isinstance(reply, NexoError) else wire.unpack(wire.StreamInfo, reply)
            for name, reply in zip(names, replies, strict=True)
        }

    def groups(self, stream: str) -> list[wire.GroupInfo]:
        """A stream's shared groups."""
        ask = wire.GroupsAsk(stream=stream)
        return request(self._link.call, Op.S_GROUPS, ask, list[wire.GroupInfo])

    def groups_all(self, streams: Iterable[str]) -> Iterator[tuple[str, wire.GroupInfo]]:
        """Every stream's shared groups; a stream that was deleted meanwhile has none."""
        names = list(streams)
        replies = self._each(Op.S_GROUPS, [wire.GroupsAsk(stream=name) for name in names])
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, NotFound):
                continue
            if isinstance(reply, NexoError):
                raise reply
            for group in wire.unpack(list[wire.GroupInfo], reply):
                yield name, group

    def ordered_groups(self) -> list[OrderedInfo]:
        """Every ordered group."""
        return request(self._link.call, Op.S_ORDERED_GROUPS, OrderedAsk(), list[OrderedInfo])

    def offsets_at(self, stream: str, time_ms: int) -> list[int]:
        """Per partition: the first offset of a record of that time or later, else the end."""
        ask = wire.OffsetsAt(stream=stream, time_ms=time_ms)
        return request(self._link.call, Op.S_OFFSETS_AT, ask, list[int])

    def check_readable(self, stream: str) -> None:
        """Raise `Forbidden` unless the user may read the stream's records."""
        self.offsets_at(stream, _FAR_MS)

    def tiered_all(self, asks: Sequence[wire.TieredTo]) -> list[NexoError | None]:
        """Report that the lake durably holds everything below an offset of each partition.

        Returns why it refused each, None if not: `StreamReplaced` unless the stream is still the
        one that was created at the time named.
        """
        replies = self._each(Op.S_TIERED, asks)
        return [reply if isinstance(reply, NexoError) else None for reply in replies]

    def publish(
        self, stream: str, partition: int, head: bytearray, body: list[bytes], count: int = 0
    ) -> None:
        """Store a batch; `PartitionsChanged` if there are not ``count`` partitions."""
        self._link.call(Op.S_PUBLISH, publish_head(stream, partition, count), head, *body)

    def first_batches(self, asks: Sequence[wire.Read]) -> list[ReplyOrError]:
        """The replies to several reads, asked together; for `read` to begin with."""
        return self._each(Op.S_READ, asks)

    def read(
        self,
        stream: str,
        partition: int,
        first: int,
        end: int,
        created_ms: int = 0,
        fetched: ReplyOrError | None = None,
    ) -> Iterator[Batch]:
        """The batches that hold the offsets from ``first`` up to before ``end``.

        The first and the last may hold more. ``fetched`` is what `first_batches` returned of it.
        Raises `OffsetOutOfRange` rather than leave a gap, and `StreamReplaced` unless the stream
        was created at ``created_ms`` (0: at any time).
        """
        at = first
        while at < end:
            if isinstance(fetched, NexoError):
                raise fetched
            if fetched is None:
                ask = wire.Read(stream, partition, at, READ_BYTES, created_ms=created_ms)
                fetched = self._link.call(Op.S_READ, wire.pack(ask)) or b""
            reply, rest = wire.unpack_headed(wire.ReadReply, fetched)
            fetched = None
            for entry in entries(rest):
                batch = decode(entry)
                if batch.base_offset >= end:
                    return
                yield batch
            if reply.next_offset <= at:
                raise OffsetOutOfRange(
                    f"stream {stream!r}, partition {partition} ends at {at}, before {end}"
                )
            at = reply.next_offset

    def _each(self, op: Op, asks: Sequence[object]) -> list[ReplyOrError]:
        """Replies to many requests, some at a time; a lost connection is raised."""
        found = list[ReplyOrError]()
        for first in range(0, len(asks), TOGETHER):
            payloads = [wire.pack(ask) for ask in asks[first : first + TOGETHER]]
            replies = self._link.each(op, payloads)
            found += [reply if isinstance(reply, NexoError) else reply or b"" for reply in replies]
        return found
