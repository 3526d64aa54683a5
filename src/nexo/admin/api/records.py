"""The records of a stream: browse by offset or time, look at one, publish."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nexo.admin import timeline
from nexo.admin.api.stream import OneStream
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, EpochMillis, OffsetList, Skip
from nexo.admin.timeline import PartitionWindow
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown_content
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record, batches_in
from nexo.errors import InvalidInput, NotFound
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

routes = ApiRoutes("Stream", "/stream")

_MOST_PARTITIONS = 256
"""Partitions that are read for one page."""

PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class RecordsAsk(OneStream):
    """Records in the order of time, from a place on; the newest by default."""

    partition: PartitionNumber | None = None
    """Left out: all of them together."""
    offset: Skip | None = None
    """Of the partition, or of each."""
    time_ms: EpochMillis | None = None
    key: Annotated[str, msgspec.Meta(max_length=65_536)] | None = None
    """Only records of this key."""
    cursor: OffsetList = ""
    """The place where an earlier page began or ended; it overrides ``offset`` and ``time_ms``."""
    direction: Literal["earlier", "later"] | None = None
    """From the place; the default is later, and earlier where no place is given."""
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
    """Records, the oldest first."""

    records: list[RecordRow]
    earlier: str
    """The cursor of what comes before this page."""
    later: str
    """The cursor of what comes after it, now or later."""
    first: bool
    """Nothing comes before."""
    last: bool
    """Nothing comes after, for now."""
    scanned: int
    """Records that were read; a search ends a page at a limit."""


class RecordAsk(OneStream):
    """One record."""

    offset: Skip
    partition: PartitionNumber = 0


class PublishRecordAsk(OneStream):
    """A record to publish; without a value, the key's deletion."""

    value: NewValue | None
    key: Annotated[str, msgspec.Meta(max_length=65_536)] | None = None
    headers: dict[str, Any] | None = None


class RecordPlace(msgspec.Struct):
    """The place of a published record."""

    partition: int
    offset: int


@routes.get("/records")
async def records(context: ApiContext, ask: RecordsAsk) -> RecordPage:
    """A page of records of one partition or all, by offset, time or key."""
    bounds = (await context.client.stream(ask.stream).info()).partitions
    chosen = _partitions(ask, len(bounds))
    places = await _places(context, ask, bounds, chosen)
    unplaced = not ask.cursor and ask.offset is None and ask.time_ms is None
    backward = unplaced if ask.direction is None else ask.direction == "earlier"
    windows = [
        PartitionWindow(one, _first(bounds[one]), bounds[one].stable_offset, at, backward)
        for one, at in zip(chosen, places, strict=True)
    ]
    begun_at, begun = [each.at for each in windows], _cursor(windows)
    read = partial(_read, context, ask.stream)
    found = await timeline.page(windows, read, ask.limit, ask.key, backward)
    rows, ended = [record_row(row) for row in found.rows], _cursor(windows)
    if backward:
        at_end = all(each.end <= at for each, at in zip(windows, begun_at, strict=True))
        return RecordPage(rows, ended, begun, found.ended, at_end, found.scanned)
    at_start = all(each.start >= at for each, at in zip(windows, begun_at, strict=True))
    return RecordPage(rows, begun, ended, at_start, found.ended, found.scanned)


def _partitions(ask: RecordsAsk, count: int) -> list[int]:
    if ask.partition is None:
        if count > _MOST_PARTITIONS:
            raise InvalidInput(f"choose a partition: there are {count}, too many to merge")
        return list(range(count))
    if ask.partition >= count:
        raise InvalidInput(f"partition {ask.partition} does not exist: there are {count}")
    return [ask.partition]


async def _places(
    context: ApiContext, ask: RecordsAsk, bounds: list[wire.PartitionInfo], chosen: list[int]
) -> list[int]:
    """The offset in each chosen partition from which to read."""
    if ask.cursor:
        places = [int(at) for at in ask.cursor.split(",")]
        if len(places) != len(chosen):
            raise InvalidInput("the cursor is of a page with other partitions")
        return places
    if ask.time_ms is not None:
        request = wire.OffsetsAt(stream=ask.stream, time_ms=ask.time_ms)
        every = await context.ask(Op.S_OFFSETS_AT, request, list[int])
        return [every[one] for one in chosen]
    if ask.offset is not None:
        return [ask.offset] * len(chosen)
    return [bounds[one].stable_offset for one in chosen]


def _first(part: wire.PartitionInfo) -> int:
    return 0 if part.tiered_offset else part.start_offset


def _cursor(windows: list[PartitionWindow]) -> str:
    return ",".join(str(window.at) for window in windows)


async def _read(
    context: ApiContext, stream: str, partition: int, offset: int, max_bytes: int
) -> tuple[list[Record[Any]], int]:
    head, rows = await read_partition(context, wire.Read(stream, partition, offset, max_bytes))
    return rows, head.next_offset


async def read_partition(
    context: ApiContext, request: wire.Read
) -> tuple[wire.ReadReply, list[Record[Any]]]:
    """Whole batches from an offset on, which may begin before it."""
    timeout_s = request.wait_ms / 1_000 + 10
    link = context.client.link(Broker.STREAM)
    reply = await link.call(Op.S_READ, wire.pack(request), timeout_s=timeout_s)
    head, rest = wire.unpack_headed(wire.ReadReply, reply or b"")
    rows = (row for batch in batches_in(rest) for row in batch.records())
    return head, [Record(request.partition, row, None) for row in rows]


def record_row(record: Record[Any], limit: int = 2_048) -> RecordRow:
    """A record as the API shows it."""
    return RecordRow(
        record.partition,
        record.offset,
        record.timestamp_ms,
        "(not text)" if isinstance(record.key, bytes) else record.key,
        headers_of(record, "(not text)"),
        shown_content(record.value_type, record.payload, limit),
    )


def headers_of(record: Record[Any], otherwise: Any) -> Any:
    """A record's headers, or ``otherwise`` if another client wrote some that are not text."""
    try:
        return record.headers
    except (UnicodeDecodeError, msgspec.DecodeError):
        return otherwise


@routes.get("/record")
async def record(context: ApiContext, ask: RecordAsk) -> RecordRow:
    """One record with its whole value."""
    stream: Stream[Any] = context.client.stream(ask.stream)
    for found in await stream.read(ask.partition, ask.offset, max_bytes=1):
        if found.offset == ask.offset:
            return record_row(found, WHOLE_BYTES)
    raise NotFound(f"partition {ask.partition} holds no record with offset {ask.offset}")


@routes.post("/publish")
async def publish(context: ApiContext, ask: PublishRecordAsk) -> RecordPlace:
    """Publish a record."""
    stream = context.client.stream(ask.stream)
    if ask.value is None:
        if ask.key is None:
            raise InvalidInput("a record without a value deletes a key: give the key")
        return RecordPlace(*await stream.tombstone(ask.key))
    value = python_value(ask.value)
    return RecordPlace(*await stream.publish(value, key=ask.key, headers=ask.headers))
