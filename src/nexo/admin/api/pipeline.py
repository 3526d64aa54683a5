"""The pipelines that fill the lake, and its tables: how fresh, how far behind, what failed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import msgspec

from nexo.admin.api.stream import OneStream
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, Nothing
from nexo.admin.lake_views import (
    ContractView,
    LetterRow,
    SnapshotRow,
    TableHistory,
    TableRow,
    read_letters,
    read_tables,
    table_row,
)
from nexo.config import Settings
from nexo.errors import NotFound, Unavailable
from nexo.lake.progress import (
    FlowProgress,
    PipelineProgress,
    StreamProgress,
    by_flow,
    by_stream,
    read_progress,
)
from nexo.lake.settings import LakeSettings
from nexo.model import Broker

routes = ApiRoutes("Pipeline", "/pipeline")

KEEP_S = 3.0
LETTERS = 50
"""Dead letters that are shown."""
PATIENCE_S = 0.2
"""How long a reply waits for the catalog, which is slow, most of all the first time."""


class PipelineRow(msgspec.Struct):
    """A pipeline that runs, or ran lately."""

    id: str
    state: Literal["running", "ended", "silent"]
    """``silent``: it neither ended nor wrote for two minutes, so it was killed or hangs."""
    started_ms: int
    updated_ms: int
    every_ms: int | None
    maintained_ms: int | None
    taken: int
    """Records it moved."""
    behind: int
    """Records it has yet to move."""
    streams: list[str]
    error: str
    error_ms: int | None


class LakeView(msgspec.Struct):
    """The lake now."""

    available: bool
    """Whether there is a lake and what reads it is installed."""
    reason: str
    """Why it is not."""
    place: str
    loading: bool
    """The tables are being read for the first time: ask again."""
    pipelines: list[PipelineRow]
    streams: list[StreamProgress]
    """Each stream as the pipeline that looked last saw it."""
    tables: list[TableRow]
    flows: list[FlowProgress]
    """Each flow of users' code as the pipeline that wrote last saw it."""


class TableView(msgspec.Struct):
    """The part of a stream that is in the lake."""

    table: TableRow
    derived: list[TableRow]
    """Newest records and dead letters."""
    snapshots: list[SnapshotRow]
    progress: StreamProgress | None
    contract: ContractView | None = None
    """The typed columns; None if the stream has none."""
    loading: bool = False
    """The table is being read: these are the pipeline's own numbers, ask again."""


class LettersView(msgspec.Struct):
    """A stream's newest dead letters, newest first."""

    letters: list[LetterRow]


@dataclass(slots=True)
class _Seen:
    """The last result, and the read in progress."""

    at_s: float = float("-inf")
    tables: list[TableHistory] | None = None
    task: asyncio.Task[None] | None = None


_seen: dict[str, _Seen] = {}


@routes.get("/tables")
async def tables(context: ApiContext, ask: Nothing) -> LakeView:
    """Every pipeline, stream and table with its newest state."""
    await context.check_watchable(Broker.STREAM)
    settings = context.place.settings
    place = settings.lake_catalog or str(settings.lake_folder)
    progress = await asyncio.to_thread(read_progress, settings.lake_folder)
    reason = missing(settings)
    found = [] if reason else await _tables(settings)
    rows = [one.table for one in found or ()]
    pipelines, streams = [_pipeline(one) for one in progress], list(by_stream(progress).values())
    flows = list(by_flow(progress).values())
    return LakeView(not reason, reason, place, found is None, pipelines, streams, rows, flows)


@routes.get("/table")
async def table(context: ApiContext, ask: OneStream) -> TableView:
    """The tables of one stream, with the newest snapshots."""
    await context.check_watchable(Broker.STREAM)
    settings = context.place.settings
    seen = by_stream(await asyncio.to_thread(read_progress, settings.lake_folder)).get(ask.stream)
    every = [] if missing(settings) else await _tables(settings)
    if every is None and seen is not None:
        return TableView(table_row(seen), [], [], seen, loading=True)
    if every is None:
        raise Unavailable("the lake is being read: try again in a moment")
    found = [one for one in every if one.table.stream == ask.stream]
    main = next((one for one in found if one.table.kind == "records"), None)
    if main is None:
        raise NotFound(f"stream {ask.stream!r} has no table in the lake")
    derived = [one.table for one in found if one is not main]
    return TableView(main.table, derived, main.snapshots, seen, main.contract)


@routes.get("/dead-letters")
async def dead_letters(context: ApiContext, ask: OneStream) -> LettersView:
    """Records of a stream that its contract refused, and why."""
    await context.check_watchable(Broker.STREAM)
    settings = context.place.settings
    if missing(settings):
        return LettersView([])
    return LettersView(await asyncio.to_thread(read_letters, settings, ask.stream, LETTERS))


def _pipeline(one: PipelineProgress) -> PipelineRow:
    alive = one.alive(int(time.time() * 1000))
    return PipelineRow(
        one.id,
        "running" if alive else "silent" if one.running else "ended",
        one.started_ms,
        one.updated_ms,
        one.every_ms,
        one.maintained_ms,
        sum(stream.taken for stream in one.streams),
        sum(stream.behind for stream in one.streams),
        [stream.stream for stream in one.streams],
        one.error,
        one.error_ms,
    )


def missing(settings: Settings) -> str:
    """Why there is nothing to show, and after a colon what to type; empty if there is."""
    if find_spec("pyiceberg") is None:
        return "The lake's packages are not installed: pip install 'nexo-broker[spark]'"
    if not LakeSettings(settings.lake_folder, settings.lake_catalog).exists:
        return "Nothing has been written to the lake: nexo pipeline run"
    return ""


async def _tables(settings: Settings) -> list[TableHistory] | None:
    """The tables as of a moment ago; None while they are read for the first time."""
    seen = _seen.setdefault(f"{settings.lake_catalog}\n{settings.lake_folder}", _Seen())
    if seen.task is None and time.monotonic() - seen.at_s > KEEP_S:
        seen.task = asyncio.create_task(_read(seen, settings))
    task = seen.task
    if task is not None:
        await asyncio.wait({task}, timeout=PATIENCE_S)
        if task.done():
            task.result()  # raises if it cannot be read
    return seen.tables


async def _read(seen: _Seen, settings: Settings) -> None:
    try:
        seen.tables = await asyncio.to_thread(read_tables, settings)
        seen.at_s = time.monotonic()
    finally:
        seen.task = None
