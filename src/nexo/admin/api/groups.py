"""The groups of a stream: lag, records in flight and parked; seek."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nexo.admin.api.records import PartitionNumber, RecordRow, record_row
from nexo.admin.api.stream import OneStream
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, ChangeCount, EpochMillis, Limit, Name, Skip
from nexo.errors import InvalidInput, NotFound, OffsetOutOfRange
from nexo.model import Broker
from nexo.model.stream import KafkaMember, shared_kind
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op

routes = ApiRoutes("Stream", "/stream")

GroupMode: TypeAlias = Literal["shared", "ordered"]


class GroupPartition(msgspec.Struct):
    """A group in one partition."""

    partition: int
    floor: int
    """Everything below is finished."""
    next_offset: int
    lag: int
    in_flight: int = 0
    to_redeliver: int = 0
    parked: int = 0
    owner: str | None = None
    """Of ordered groups: the member that reads the partition."""


class KafkaMemberView(KafkaMember, frozen=True, kw_only=True, omit_defaults=False):
    """A Kafka client in a group."""

    partitions: list[int]
    """Of this stream."""


class KafkaGroupView(msgspec.Struct):
    """Details of a group whose members are Kafka clients."""

    state: str
    """``Stable``, ``PreparingRebalance``, ``CompletingRebalance`` or ``Reconciling``."""
    assignor: str
    members: list[KafkaMemberView]


class GroupView(msgspec.Struct):
    """A group of a stream."""

    name: str
    mode: GroupMode
    generation: int
    options: dict[str, Any]
    consumers: list[str]
    lag: int
    in_flight: int
    parked: int
    finished_per_s: float | None
    lags: list[float | None]
    """The lag in each second of the last minute."""
    partitions: list[GroupPartition]
    kafka: KafkaGroupView | None = None
    """Of ordered groups whose members are Kafka clients."""


class OneGroup(OneStream):
    """A group of a stream."""

    group: Name


class GroupAsk(OneGroup):
    """A group of either mode."""

    mode: GroupMode = "shared"


class ParkedAsk(OneGroup):
    """Parked records of a group."""

    limit: Limit = 50
    offset: Skip = 0


class ParkedRow(msgspec.Struct):
    """A record that was set aside."""

    record: RecordRow
    attempts: int
    parked_ms: int
    reason: str


class ParkedPage(msgspec.Struct):
    """Parked records."""

    records: list[ParkedRow]
    total: int


class At(msgspec.Struct, forbid_unknown_fields=True):
    """A record."""

    partition: PartitionNumber
    offset: Skip


ParkedPlaces: TypeAlias = Annotated[list[At], msgspec.Meta(max_length=10_000)]


class ParkedChoice(OneGroup):
    """Some parked records, or all for null."""

    records: ParkedPlaces | None


class SomeParked(OneGroup):
    """Some parked records."""

    records: ParkedPlaces


class SeekAsk(GroupAsk):
    """The place where a group continues: exactly one of the three."""

    to: Literal["beginning", "end"] | None = None
    offset: Skip | None = None
    """The same offset in every partition."""
    time_ms: EpochMillis | None = None


@routes.get("/groups")
async def groups(context: ApiContext, ask: OneStream) -> list[GroupView]:
    """The stream's groups with their lag."""
    infos = await context.client.stream(ask.stream).groups()
    shared = [_shared(context, ask.stream, info) for info in infos]
    return shared + await ordered_groups(context, ask.stream)


def _shared(context: ApiContext, stream: str, info: wire.GroupInfo) -> GroupView:
    kind = shared_kind(info.options)
    watch = context.sampler.survey.groups.watches.get((stream, info.name, kind))
    partitions = [
        GroupPartition(i, each.floor, each.next_offset, each.lag, each.in_flight, each.to_redeliver,
             each.parked)
        for i, each in enumerate(info.partitions)
    ]  # fmt: skip
    return GroupView(
        info.name, "shared", info.generation, info.options, info.consumers, info.lag,
        sum(each.in_flight for each in partitions), sum(each.parked for each in partitions),
        watch.finished.series.last if watch else None, watch.lag.tail(60) if watch else [],
        partitions,
    )  # fmt: skip


async def ordered_groups(context: ApiContext, stream: str) -> list[GroupView]:
    """The ordered groups that read the stream; they may read others too."""
    request = ordered.OrderedAsk(stream=stream)
    infos = await context.ask(Op.S_ORDERED_GROUPS, request, list[ordered.OrderedInfo])
    parts = (await context.client.stream(stream).info()).partitions
    views = (_ordered_view(context, info, stream, parts) for info in infos)
    return [view for view in views if view is not None]


def _ordered_view(
    context: ApiContext, info: ordered.OrderedInfo, stream: str, parts: list[wire.PartitionInfo]
) -> GroupView | None:
    owners = {partition: member for topic, partition, member in info.owners if topic == stream}
    offsets = {row.partition: row.offset for row in info.offsets if row.topic == stream}
    if not owners and not offsets:
        return None
    partitions = []
    for partition, part in enumerate(parts):
        floor = max(offsets.get(partition, -1) + 1, part.start_offset)
        left = max(0, part.stable_offset - floor)
        partitions.append(
            GroupPartition(partition, floor, part.next_offset, left, owner=owners.get(partition))
        )
    watch = context.sampler.survey.groups.watches.get((stream, info.name, "ordered"))
    return GroupView(
        info.name, "ordered", info.generation, info.options, info.members,
        info.lags.get(stream, 0), 0, 0,
        watch.finished.series.last if watch else None, watch.lag.tail(60) if watch else [],
        partitions,
        _kafka(info, stream),
    )  # fmt: skip


def _kafka(info: ordered.OrderedInfo, stream: str) -> KafkaGroupView | None:
    if info.kafka is None:
        return None
    members = [
        KafkaMemberView(
            **msgspec.structs.asdict(each),
            partitions=[at for topic, at, who in info.owners if (topic, who) == (stream, each.id)],
        )
        for each in info.kafka.members
    ]
    return KafkaGroupView(info.kafka.state, info.kafka.assignor, members)


@routes.get("/parked")
async def parked(context: ApiContext, ask: ParkedAsk) -> ParkedPage:
    """Records that a group has set aside after too many deliveries, newest first."""
    group = context.client.stream(ask.stream).group(ask.group)
    total = await group.parked.count()
    rows = await group.parked.peek(ask.limit, ask.offset)
    return ParkedPage(
        [ParkedRow(record_row(row), row.attempts, row.parked_ms, row.reason) for row in rows], total
    )


@routes.post("/parked/replay")
async def replay(context: ApiContext, ask: ParkedChoice) -> ChangeCount:
    """Deliver parked records again."""
    return await _settle(context, ask, "replay", ask.records)


@routes.post("/parked/delete")
async def delete_parked(context: ApiContext, ask: SomeParked) -> ChangeCount:
    """Delete parked records: the group never gets them again, and they stay in the stream."""
    return await _settle(context, ask, "delete", ask.records)


@routes.post("/parked/purge")
async def purge_parked(context: ApiContext, ask: OneGroup) -> ChangeCount:
    """Delete all parked records; they stay in the stream."""
    return await _settle(context, ask, "delete", None)


async def _settle(
    context: ApiContext, ask: OneGroup, verb: Literal["replay", "delete"], chosen: list[At] | None
) -> ChangeCount:
    ranges = None if chosen is None else [(r.partition, r.offset, r.offset + 1) for r in chosen]
    request = wire.ParkedSettle(stream=ask.stream, group=ask.group, verb=verb, ranges=ranges)
    return ChangeCount(await context.ask(Op.S_PARKED_SETTLE, request, int))


@routes.post("/seek")
async def seek(context: ApiContext, ask: SeekAsk) -> ChangeCount:
    """Reset a group to the beginning, the end, an offset or a time; the count is its generation."""
    given = [choice for choice in (ask.to, ask.offset, ask.time_ms) if choice is not None]
    if len(given) != 1:
        raise InvalidInput("give exactly one of to, offset and time_ms")
    if ask.mode == "ordered":
        return await _seek_ordered(context, ask)
    to: Any = given[0]
    if ask.time_ms is not None:
        to = datetime.fromtimestamp(ask.time_ms / 1000, UTC)
    return ChangeCount(await context.client.stream(ask.stream).seek(ask.group, to))


async def _seek_ordered(context: ApiContext, ask: SeekAsk) -> ChangeCount:
    known = ordered.OrderedAsk(group=ask.group, stream=ask.stream)
    await context.ask(Op.S_ORDERED_GROUPS, known, list[ordered.OrderedInfo])  # or `NotFound`
    firsts = await _positions(context, ask)
    rows = [(ask.stream, partition, first - 1, "") for partition, first in enumerate(firsts)]
    request = ordered.OrderedSeek(group=ask.group, offsets=rows)
    return ChangeCount(await context.ask(Op.S_ORDERED_SEEK, request, int))


async def _positions(context: ApiContext, ask: SeekAsk) -> list[int]:
    """The next offset of each partition."""
    if ask.time_ms is not None:
        request = wire.OffsetsAt(stream=ask.stream, time_ms=ask.time_ms)
        return await context.ask(Op.S_OFFSETS_AT, request, list[int])
    parts = (await context.client.stream(ask.stream).info()).partitions
    if ask.offset is not None:
        for number, part in enumerate(parts):
            if not part.start_offset <= ask.offset <= part.next_offset:
                raise OffsetOutOfRange(
                    f"offset {ask.offset} is outside partition {number} of stream {ask.stream!r}, "
                    f"which takes {part.start_offset}..{part.next_offset}"
                )
        return [ask.offset] * len(parts)
    return [part.next_offset if ask.to == "end" else part.start_offset for part in parts]


@routes.post("/group/delete")
async def delete_group(context: ApiContext, ask: GroupAsk) -> ChangeCount:
    """Delete a group and its position."""
    if ask.mode == "ordered":
        request = wire.pack(ordered.OrderedName(group=ask.group))
        await context.client.link(Broker.STREAM).call(Op.S_ORDERED_DELETE, request)
    elif not await context.client.stream(ask.stream).group(ask.group).delete():
        raise NotFound(f"group {ask.group!r} of stream {ask.stream!r} not found")
    return ChangeCount()
