"""Streams: what they hold and where, and their records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, TypeAlias

import msgspec

from nexo.admin.api.paging import Millis, Name, Search, Skip, matching
from nexo.admin.desk import Desk
from nexo.admin.routes import Done, Routes
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown_content
from nexo.client._async.stream import Stream
from nexo.client.stream_records import Record, batches_in
from nexo.errors import InvalidInput, NotFound
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

routes = Routes("Stream", "/stream")

_NAMES_PER_CALL = 10_000
_READ_BYTES = 256 * 1024
_READS = 8
"""Reads that one page of records may take where batches are small."""

Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class StreamsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which streams."""

    search: Search = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50
    offset: Skip = 0


class StreamRow(msgspec.Struct):
    """A stream now."""

    name: str
    partitions: int
    records: int
    bytes: int
    groups: list[str]
    last_ms: int
    published_per_s: float | None
    published: list[float | None]
    """Records per second of the last minute."""


class StreamPage(msgspec.Struct):
    """Streams in order."""

    streams: list[StreamRow]
    total: int


class OneStream(msgspec.Struct, forbid_unknown_fields=True):
    """A stream."""

    stream: Name


class Tier(msgspec.Struct):
    """Where a range of offsets lies; ``end`` is exclusive."""

    tier: str
    """``lake`` (Parquet and Iceberg) or ``hot`` (the local log)."""
    first: int
    end: int


class PartitionView(msgspec.Struct):
    """One partition."""

    partition: int
    start_offset: int
    next_offset: int
    stable_offset: int
    size_bytes: int
    last_ms: int
    tiers: list[Tier]


class StreamView(msgspec.Struct):
    """A stream."""

    name: str
    created_ms: int
    options: dict[str, Any]
    partitions: list[PartitionView]
    groups: list[str]
    published_per_s: float | None


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


class MakeAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A stream's options, named as ``/stream`` shows them."""

    stream: Name
    options: dict[str, Any] = {}


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


# -- looking --------------------------------------------------------------------------


@routes.get("/list")
async def streams(desk: Desk, ask: StreamsAsk) -> StreamPage:
    """A page of streams."""
    found = matching(await _names(desk), ask.search, str)
    chosen = found[ask.offset : ask.offset + ask.limit]
    rows = await asyncio.gather(*(_row(desk, name) for name in chosen))
    return StreamPage([row for row in rows if row is not None], len(found))


async def _names(desk: Desk) -> list[str]:
    """Every name; the search is for any part of it, so the broker cannot narrow it down."""
    names: list[str] = []
    while True:
        after = names[-1] if names else ""
        request = wire.ListAsk(after=after, limit=_NAMES_PER_CALL)
        reply = await desk.link(Broker.STREAM).call(Op.S_LIST, wire.pack(request))
        page = wire.unpack(list[str], reply or b"")
        names += page
        if len(page) < _NAMES_PER_CALL:
            return names


async def _row(desk: Desk, name: str) -> StreamRow | None:
    try:
        info = await desk.client.stream(name).describe()
    except NotFound:
        return None  # deleted meanwhile
    watch = desk.sampler.streams.get(name)
    series = watch.published.series if watch else None
    return StreamRow(
        name,
        len(info.partitions),
        sum(part.next_offset - part.start_offset for part in info.partitions),
        sum(part.size_bytes for part in info.partitions),
        info.groups,
        max((part.last_ms for part in info.partitions), default=0),
        series.last if series else None,
        series.tail(60) if series else [],
    )


@routes.get("/info")
async def info(desk: Desk, ask: OneStream) -> StreamView:
    """A stream's options and partitions, and where each range of offsets lies."""
    found = await desk.client.stream(ask.stream).describe()
    watch = desk.sampler.streams.get(ask.stream)
    return StreamView(
        found.name,
        found.created_ms,
        found.options,
        [_partition(index, part) for index, part in enumerate(found.partitions)],
        found.groups,
        watch.published.series.last if watch else None,
    )


def _partition(index: int, part: wire.PartitionInfo) -> PartitionView:
    tiers = [Tier("lake", 0, part.tiered_offset)] if part.tiered_offset else []
    tiers.append(Tier("hot", part.start_offset, part.next_offset))
    return PartitionView(
        index, part.start_offset, part.next_offset, part.stable_offset, part.size_bytes,
        part.last_ms, tiers,
    )  # fmt: skip


@routes.get("/records")
async def records(desk: Desk, ask: RecordsAsk) -> RecordPage:
    """A page of records from an offset or a time on, or the newest."""
    stream = desk.client.stream(ask.stream)
    bounds = (await stream.describe()).partitions
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
        _readable(lambda: record.key),
        _readable(lambda: record.headers),
        shown_content(record.value_type, record.payload, limit),
    )


def _readable(read: Callable[[], Any]) -> Any:
    """Keys and headers that are not text were written by other clients."""
    try:
        return read()
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


# -- acting ---------------------------------------------------------------------------


@routes.post("/create")
async def create(desk: Desk, ask: MakeAsk) -> Done:
    """Create a stream."""
    await desk.client.stream(ask.stream).create(**ask.options)
    return Done()


@routes.post("/update")
async def update(desk: Desk, ask: MakeAsk) -> Done:
    """Change options while the stream runs."""
    await desk.client.stream(ask.stream).update(**ask.options)
    return Done()


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


@routes.post("/compact")
async def compact(desk: Desk, ask: OneStream) -> Done:
    """Keep only the newest record per key, now; the count is the bytes freed."""
    return Done(await desk.client.stream(ask.stream).compact())


@routes.post("/retain")
async def retain(desk: Desk, ask: OneStream) -> Done:
    """Apply the age and size limits now; the count is the bytes freed."""
    return Done(await desk.client.stream(ask.stream).apply_retention())


@routes.post("/delete")
async def delete(desk: Desk, ask: OneStream) -> Done:
    """Delete a stream with its records and groups."""
    await desk.client.stream(ask.stream).delete()
    return Done()
