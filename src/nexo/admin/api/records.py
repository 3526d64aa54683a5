"""The records of a stream: browse by offset or time, look at one, publish."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, TypeAlias

import msgspec

from nexo.admin.api.paging import Millis, Name, Skip
from nexo.admin.desk import Desk
from nexo.admin.routes import Routes
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown_content
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record, batches_in
from nexo.errors import InvalidInput, NotFound
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

routes = Routes("Stream", "/stream")

_READ_BYTES = 256 * 1024
_READS = 8
"""Reads that one page of records may take where batches are small."""

Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class RecordsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Records of a partition, from an offset or a time on; from the newest by default."""

    stream: Name
    partition: Partition = 0
    offset: Skip | None = None
    time_ms: Millis | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class RecordRow(msgspec.Struct):
    """A record."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    headers: Any
    value: Value


class RecordPage(msgspec.Struct):
    """Records in order."""

    records: list[RecordRow]
    start_offset: int
    """The first offset there is."""
    end_offset: int
    """Where readers stop now."""
    next_offset: int
    """Where the next page starts."""


class RecordAsk(msgspec.Struct, forbid_unknown_fields=True):
    """One record."""

    stream: Name
    offset: Skip
    partition: Partition = 0


class PublishAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A record to publish; without a value, the key's deletion."""

    stream: Name
    value: NewValue | None
    key: Annotated[str, msgspec.Meta(max_length=65_536)] | None = None
    headers: dict[str, Any] | None = None


class Place(msgspec.Struct):
    """Where a record went."""

    partition: int
    offset: int


@routes.get("/records")
async def records(desk: Desk, ask: RecordsAsk) -> RecordPage:
    """A page of records from an offset or a time on, or the newest."""
    stream = desk.client.stream(ask.stream)
    bounds = (await stream.info()).partitions
    if ask.partition >= len(bounds):
        raise InvalidInput(f"partition {ask.partition} does not exist: there are {len(bounds)}")
    part = bounds[ask.partition]
    at = await _first(desk, ask, part)
    rows: list[RecordRow] = []
    following = at
    for _ in range(_READS):
        more, following = await _read(desk, ask, following)
        rows += more
        if len(rows) >= ask.limit or following >= part.stable_offset:
            break
    if len(rows) > ask.limit:
        rows = rows[: ask.limit]
        following = rows[-1].offset + 1
    return RecordPage(rows, part.start_offset, part.stable_offset, following)


async def _first(desk: Desk, ask: RecordsAsk, part: wire.PartitionInfo) -> int:
    if ask.time_ms is not None:
        request = wire.OffsetsAt(stream=ask.stream, time_ms=ask.time_ms)
        reply = await desk.link(Broker.STREAM).call(Op.S_OFFSETS_AT, wire.pack(request))
        return wire.unpack(list[int], reply or b"")[ask.partition]
    newest = max(part.start_offset, part.stable_offset - ask.limit)
    wanted = newest if ask.offset is None else ask.offset
    return min(max(wanted, 0 if part.tiered_offset else part.start_offset), part.stable_offset)


async def _read(desk: Desk, ask: RecordsAsk, offset: int) -> tuple[list[RecordRow], int]:
    request = wire.Read(ask.stream, ask.partition, offset, _READ_BYTES)
    reply = await desk.link(Broker.STREAM).call(Op.S_READ, wire.pack(request))
    head, rest = wire.unpack_headed(wire.ReadReply, reply or b"")
    found = (row for batch in batches_in(rest) for row in batch.records() if offset <= row.offset)
    # One more than asked for, so that the caller sees that the page does not end here.
    rows = [record_row(Record(ask.partition, row, None)) for row in islice(found, ask.limit + 1)]
    return rows, head.next_offset


def record_row(record: Record[Any], limit: int = 2_048) -> RecordRow:
    """A record as the API shows it."""
    return RecordRow(
        record.partition,
        record.offset,
        record.timestamp_ms,
        "(not text)" if isinstance(record.key, bytes) else record.key,
        _headers(record),
        shown_content(record.value_type, record.payload, limit),
    )


def _headers(record: Record[Any]) -> Any:
    """Headers that are not text were written by other clients."""
    try:
        return record.headers
    except (UnicodeDecodeError, msgspec.DecodeError):
        return "(not text)"


@routes.get("/record")
async def record(desk: Desk, ask: RecordAsk) -> RecordRow:
    """One record with its whole value."""
    stream: Stream[Any] = desk.client.stream(ask.stream)
    for found in await stream.read(ask.partition, ask.offset, max_bytes=1):
        if found.offset == ask.offset:
            return record_row(found, WHOLE_BYTES)
    raise NotFound(f"partition {ask.partition} holds no record with offset {ask.offset}")


@routes.post("/publish")
async def publish(desk: Desk, ask: PublishAsk) -> Place:
    """Publish a record."""
    stream = desk.client.stream(ask.stream)
    if ask.value is None:
        if ask.key is None:
            raise InvalidInput("a record without a value deletes a key: give the key")
        return Place(*await stream.tombstone(ask.key))
    value = python_value(ask.value)
    return Place(*await stream.publish(value, key=ask.key, headers=ask.headers))
