"""Live events for programs and web pages: messages of topics and records of streams, whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec

from nexo.admin.api.pubsub import TopicName
from nexo.admin.api.records import PartitionNumber, headers_of, read_partition
from nexo.admin.api.stream import OneStream
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, LiveEvent, OffsetList, Skip, WaitSeconds
from nexo.admin.values import Plain, plain, plain_content
from nexo.client._async.client import AsyncClient
from nexo.client.pubsub_message import Message
from nexo.client.stream_records import Record, batches_in
from nexo.errors import InvalidInput, NotFound, RequestTimeout
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

routes = ApiRoutes("Events")

QUIET_S = 15.0
"""Without an event for this long, a sign of life is sent, so that a lost reader is noticed."""
_READ_BYTES = 1024 * 1024
_BUFFER = 1_000
_MOST_PARTITIONS = 256


class EventsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages."""

    topic: TopicName = "#"
    """A topic or pattern."""
    retained: bool = False
    """Begin with the retained messages that match."""


class MessageEvent(msgspec.Struct, tag="message", tag_field="event"):
    """A message of a topic."""

    topic: str
    value: Plain
    headers: dict[str, Any]
    timestamp_ms: int
    retained: bool


class FollowAsk(OneStream):
    """Which records."""

    offsets: OffsetList = ""
    """Where to begin, one offset per partition; at the end by default. The `id` of an event."""


class RecordEvent(msgspec.Struct, tag="record", tag_field="event"):
    """A record of a stream."""

    stream: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    headers: Any
    value: Plain


class ReadAsk(OneStream):
    """Records of a partition, from an offset on."""

    partition: PartitionNumber = 0
    offset: Skip = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    wait_s: WaitSeconds = 0
    """How long to wait for the first."""


class ReadPage(msgspec.Struct):
    """Whole records in order."""

    records: list[RecordEvent]
    next_offset: int
    """The next offsets to read."""
    end_offset: int
    """The offsets at which readers stop now."""


@routes.live("/events")
async def events(context: ApiContext, ask: EventsAsk) -> AsyncIterator[MessageEvent]:
    """Messages as they are published, each as one server-sent event."""
    async with context.own_client() as client:
        async for event in messages(client, ask.topic, ask.retained):
            yield event  # type: ignore[misc]


async def messages(
    client: AsyncClient, topic: str, retained: bool
) -> AsyncIterator[MessageEvent | None]:
    """The messages of a topic; None as a sign of life while there are none."""
    async with await client.pubsub.subscribe(
        topic, retained=retained, buffer=_BUFFER
    ) as subscription:
        while True:
            try:
                yield message_event(await subscription.get(QUIET_S))
            except RequestTimeout:
                yield None


def message_event(message: Message[Any]) -> MessageEvent:
    """A message as programs get it."""
    return MessageEvent(
        message.topic, plain(message.encoded), message.headers, message.timestamp_ms,
        message.retained,
    )  # fmt: skip


@routes.live("/stream/events")
async def stream_events(context: ApiContext, ask: FollowAsk) -> AsyncIterator[RecordEvent]:
    """Records as they are published, each as one server-sent event with an id to resume from."""
    async with context.own_client() as client:
        async for event in records(client, ask.stream, ask.offsets):
            yield event  # type: ignore[misc]


async def records(
    client: AsyncClient, stream: str, offsets: str
) -> AsyncIterator[LiveEvent | None]:
    """The records of a stream, each with where all partitions stand after it."""
    at = await _begin(client, stream, offsets)
    link = client.link(Broker.STREAM)
    while True:
        places = [(stream, partition, offset) for partition, offset in enumerate(at)]
        request = wire.ReadMany(places, _READ_BYTES, int(QUIET_S * 1_000))
        reply = await link.call(Op.S_READ_MANY, wire.pack(request), timeout_s=QUIET_S + 10)
        head, rest = wire.unpack_headed(wire.ReadManyReply, reply or b"")
        came = False
        for partition, batch in zip(head.batches, batches_in(rest), strict=True):
            for row in batch.records():
                if row.offset >= at[partition]:
                    at[partition] = row.offset + 1
                    came = True
                    event = record_event(stream, Record(partition, row, None))
                    yield LiveEvent(event, ",".join(map(str, at)))
        at = [max(offset, seen[2]) for offset, seen in zip(at, head.heads, strict=True)]
        if not came:
            yield None


async def _begin(client: AsyncClient, stream: str, offsets: str) -> list[int]:
    parts = (await client.stream(stream).info()).partitions
    if len(parts) > _MOST_PARTITIONS:
        raise InvalidInput(f"streams of more than {_MOST_PARTITIONS} partitions cannot be followed")
    if not offsets:
        return [part.stable_offset for part in parts]
    at = [int(offset) for offset in offsets.split(",")]
    if len(at) != len(parts):
        raise InvalidInput(f"give {len(parts)} offsets, one per partition, not {len(at)}")
    return at


def record_event(stream: str, record: Record[Any]) -> RecordEvent:
    """A record as programs get it."""
    key = record.key
    return RecordEvent(
        stream, record.partition, record.offset, record.timestamp_ms,
        key.decode(errors="replace") if isinstance(key, bytes) else key, headers_of(record, {}),
        plain_content(record.value_type, record.payload),
    )  # fmt: skip


@routes.get("/stream/read", waits=True)
async def read(context: ApiContext, ask: ReadAsk) -> ReadPage:
    """Whole records of a partition, for programs; waits for the first if asked to."""
    info = await context.client.stream(ask.stream).info()
    if ask.partition >= len(info.partitions):
        raise NotFound(f"stream {ask.stream!r} has no partition {ask.partition}")
    request = wire.Read(ask.stream, ask.partition, ask.offset, _READ_BYTES, int(ask.wait_s * 1_000))
    head, rows = await read_partition(context, request)
    found = [row for row in rows if row.offset >= ask.offset]
    cut = found[: ask.limit]
    following = cut[-1].offset + 1 if len(found) > len(cut) else head.next_offset
    page = [record_event(ask.stream, record) for record in cut]
    return ReadPage(page, max(following, ask.offset), head.stable_offset)
