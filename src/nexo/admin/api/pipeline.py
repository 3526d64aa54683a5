"""The lake behind the streams: tables, snapshots, how fresh they are."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from nexo.admin.api.paging import Name
from nexo.admin.desk import Desk
from nexo.admin.routes import Nothing, Routes
from nexo.config import Settings
from nexo.errors import NotFound
from nexo.lake.settings import LakeSettings
from nexo.model import Broker

if TYPE_CHECKING:
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - a server without a lake need not import PyIceberg

routes = Routes("Pipeline", "/pipeline")

_KEEP_S = 3.0
_SNAPSHOTS = 50


class TableRow(msgspec.Struct):
    """A stream's table."""

    stream: str
    table: str
    kind: str
    snapshots: int
    records: int
    files: int
    bytes: int
    offsets: dict[str, int]
    """By partition: everything below is in the table."""
    updated_ms: int | None
    """When the last snapshot was committed."""


class Pipeline(msgspec.Struct):
    """The lake now."""

    available: bool
    """Whether there is a lake and what reads it is installed."""
    reason: str
    """Why it is not."""
    place: str
    tables: list[TableRow]


class TableAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A stream."""

    stream: Name


class SnapshotRow(msgspec.Struct):
    """One commit to a table."""

    id: str
    committed_ms: int
    operation: str
    added_records: int
    added_files: int
    total_records: int


class TableView(msgspec.Struct):
    """A table and its newest snapshots."""

    table: TableRow
    snapshots: list[SnapshotRow]


@dataclass(slots=True)
class _Seen:
    """What was read a moment ago: catalogs are slow."""

    at_s: float = 0.0
    views: dict[str, TableView] | None = None


_seen: dict[str, _Seen] = {}


@routes.get("/tables")
async def tables(desk: Desk, ask: Nothing) -> Pipeline:
    """Every table with its newest state."""
    await desk.check_watchable(Broker.STREAM)
    settings = desk.place.settings
    place = settings.lake_catalog or str(settings.lake_folder)
    reason = _missing(settings)
    if reason:
        return Pipeline(False, reason, place, [])
    views = await _views(settings)
    return Pipeline(True, "", place, [view.table for view in views.values()])


@routes.get("/table")
async def table(desk: Desk, ask: TableAsk) -> TableView:
    """One table with its newest snapshots."""
    await desk.check_watchable(Broker.STREAM)
    settings = desk.place.settings
    views = {} if _missing(settings) else await _views(settings)
    if ask.stream not in views:
        raise NotFound(f"stream {ask.stream!r} has no table in the lake")
    return views[ask.stream]


def _missing(settings: Settings) -> str:
    if find_spec("pyiceberg") is None:
        return "the lake's packages are not installed: pip install 'nexo-broker[spark]'"
    if not settings.lake_catalog and not (settings.lake_folder / "catalog.db").exists():
        return "nothing has been written to the lake yet: run the pipeline"
    return ""


async def _views(settings: Settings) -> dict[str, TableView]:
    seen = _seen.setdefault(f"{settings.lake_catalog}\n{settings.lake_folder}", _Seen())
    if seen.views is None or time.monotonic() - seen.at_s > _KEEP_S:
        seen.views = await asyncio.to_thread(_read, settings)
        seen.at_s = time.monotonic()
    return seen.views


def _read(settings: Settings) -> dict[str, TableView]:
    from nexo.lake.catalog import Lake

    lake = Lake(LakeSettings(settings.lake_folder, settings.lake_catalog))
    views = [_view(table) for table in lake.tables()]
    return {view.table.stream: view for view in sorted(views, key=lambda view: view.table.stream)}


def _view(table: Table) -> TableView:
    from nexo.lake.catalog import KIND, RECORDS, STREAM
    from nexo.lake.commit import offsets_of

    newest = sorted(table.metadata.snapshots, key=lambda snapshot: -snapshot.timestamp_ms)
    last = _summary(newest[0]) if newest else {}
    offsets = {str(key): value for key, value in offsets_of(table.properties).items()}
    row = TableRow(
        table.properties[STREAM],
        ".".join(table.name()),
        table.properties.get(KIND, RECORDS),
        len(newest),
        _count(last, "total-records"),
        _count(last, "total-data-files"),
        _count(last, "total-files-size"),
        offsets,
        newest[0].timestamp_ms if newest else None,
    )
    return TableView(row, [_snapshot(snapshot) for snapshot in newest[:_SNAPSHOTS]])


def _snapshot(snapshot: Any) -> SnapshotRow:
    summary = _summary(snapshot)
    return SnapshotRow(
        str(snapshot.snapshot_id),
        snapshot.timestamp_ms,
        str(summary.get("operation", "")),
        _count(summary, "added-records"),
        _count(summary, "added-data-files"),
        _count(summary, "total-records"),
    )


def _summary(snapshot: Any) -> dict[str, str]:
    summary = snapshot.summary
    if summary is None:
        return {}
    return {"operation": summary.operation.value, **summary.additional_properties}


def _count(summary: dict[str, str], name: str) -> int:
    return int(summary.get(name, 0))
