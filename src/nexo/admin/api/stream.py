"""Streams as a whole: what they hold and where."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, ChangeCount, Name, Nothing, SearchAsk, page
from nexo.admin.options import Known, Option
from nexo.admin.watching.history import Series
from nexo.admin.watching.watch import MINUTE_S
from nexo.errors import NotFound
from nexo.model import Broker
from nexo.options.stream import StreamOptions
from nexo.protocol import stream as wire

routes = ApiRoutes("Stream", "/stream")

OPTIONS = Known(StreamOptions, "stream")

StreamSort: TypeAlias = Literal["name", "activity", "published", "offsets", "bytes", "lag"]


class StreamsAsk(SearchAsk):
    """Which streams."""

    sort: StreamSort = "name"
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50


class StreamRow(msgspec.Struct):
    """A stream now."""

    name: str
    partitions: int
    offsets: int
    """From the first to the next of each partition: no fewer than it has records."""
    bytes: int
    groups: list[str]
    lag: int
    """Of all its groups, as of the last few seconds."""
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


class OffsetTier(msgspec.Struct):
    """A range of offsets and its tier; ``end`` is exclusive."""

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
    tiers: list[OffsetTier]


class StreamView(msgspec.Struct):
    """A stream."""

    name: str
    created_ms: int
    options: dict[str, Any]
    partitions: list[PartitionView]
    groups: list[str]
    published_per_s: float | None
    published: list[float | None]
    """Records per second of the last minute."""
    lag: int
    """Of all groups together."""


class MakeAsk(OneStream):
    """Some options of a stream; the others stay, or are the defaults."""

    options: Annotated[dict[str, Any], OPTIONS.schema] = {}
    """As ``/stream/options`` describes them; ``7d`` and ``1GiB`` will do for times and sizes."""


@routes.get("/list")
async def streams(context: ApiContext, ask: StreamsAsk) -> StreamPage:
    """A page of streams; sorted by a number, as of the last few seconds.

    ``activity`` is what happens most: records published, then lag, then the newest record.
    """
    by_name = ask.sort == "name"
    names = await (context.client.streams() if by_name else _ranked(context, ask.sort))
    chosen, total = page(names, ask, str)  # any part of a name: the broker finds prefixes only
    rows = await asyncio.gather(*(_row(context, name) for name in chosen))
    return StreamPage([row for row in rows if row is not None], total)


async def _ranked(context: ApiContext, sort: StreamSort) -> list[str]:
    survey = context.sampler.survey
    if sort == "activity":
        return await _busiest(context)
    ranks: dict[str, float] = {}
    for watch in survey.streams.of(await context.visible(Broker.STREAM)):
        name = watch.info.name
        match sort:
            case "published":
                ranks[name] = watch.published.series.last or 0.0
            case "lag":
                ranks[name] = survey.lags.get(name, 0)
            case _:
                ranks[name] = getattr(watch.info, sort)
    return sorted(ranks, key=lambda name: (-ranks[name], name))


async def _busiest(context: ApiContext) -> list[str]:
    """Every name, those of idle and of new streams at the end."""
    survey, names = context.sampler.survey, await context.client.streams()
    ranks = {watch.info.name: survey.stream_rank(watch) for watch in survey.streams.of(names)}
    return sorted(names, key=lambda name: ranks.get(name, (0.0, 0, 0)), reverse=True)


async def _row(context: ApiContext, name: str) -> StreamRow | None:
    try:
        info = await context.client.stream(name).info()
    except NotFound:
        return None  # deleted meanwhile
    published = _published(context, name)
    return StreamRow(
        name,
        len(info.partitions),
        sum(part.next_offset - part.start_offset for part in info.partitions),
        sum(part.size_bytes for part in info.partitions),
        info.groups,
        context.sampler.survey.lags.get(name, 0),
        max((part.last_ms for part in info.partitions), default=0),
        published.last,
        published.tail(MINUTE_S),
    )


def _published(context: ApiContext, name: str) -> Series:
    watch = context.sampler.survey.streams.watches.get(name)
    return watch.published.series if watch else Series()


@routes.get("/info")
async def info(context: ApiContext, ask: OneStream) -> StreamView:
    """A stream's options and partitions, and where each range of offsets lies."""
    found = await context.client.stream(ask.stream).info()
    published = _published(context, ask.stream)
    return StreamView(
        found.name,
        found.created_ms,
        found.options,
        [_partition(index, part) for index, part in enumerate(found.partitions)],
        found.groups,
        published.last,
        published.tail(MINUTE_S),
        context.sampler.survey.lags.get(ask.stream, 0),
    )


def _partition(index: int, part: wire.PartitionInfo) -> PartitionView:
    tiers = [OffsetTier("lake", 0, part.tiered_offset)] if part.tiered_offset else []
    tiers.append(OffsetTier("hot", part.hot_offset, part.next_offset))
    return PartitionView(
        index, part.start_offset, part.next_offset, part.stable_offset, part.size_bytes,
        part.last_ms, tiers,
    )  # fmt: skip


@routes.get("/options")
async def options(context: ApiContext, ask: Nothing) -> list[Option]:
    """The options that streams have."""
    return OPTIONS.shown(context.place.settings.stream_options)


@routes.post("/create")
async def create(context: ApiContext, ask: MakeAsk) -> ChangeCount:
    """Create a stream."""
    with OPTIONS.refusals():
        await context.client.stream(ask.stream).create(**OPTIONS.read(ask.options))
    return ChangeCount()


@routes.post("/update")
async def update(context: ApiContext, ask: MakeAsk) -> ChangeCount:
    """Change options while the stream runs."""
    with OPTIONS.refusals():
        await context.client.stream(ask.stream).update(**OPTIONS.read(ask.options))
    return ChangeCount()


@routes.post("/compact")
async def compact(context: ApiContext, ask: OneStream) -> ChangeCount:
    """Keep only the newest record per key of a stream set to compact; the count is bytes freed."""
    return ChangeCount(await context.client.stream(ask.stream).compact())


@routes.post("/retain")
async def retain(context: ApiContext, ask: OneStream) -> ChangeCount:
    """Apply the age and size limits now; the count is the bytes freed."""
    return ChangeCount(await context.client.stream(ask.stream).apply_retention())


@routes.post("/delete")
async def delete(context: ApiContext, ask: OneStream) -> ChangeCount:
    """Delete a stream with its records and groups."""
    if not await context.client.stream(ask.stream).delete():
        raise NotFound(f"stream {ask.stream!r} not found")
    return ChangeCount()
