"""The lake's tables as the dashboard shows them, read from the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from nexo.config import Settings
from nexo.lake.settings import LakeSettings

if TYPE_CHECKING:
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - a server without a lake need not import PyIceberg

SNAPSHOTS = 50


class TableRow(msgspec.Struct):
    """A table of a stream."""

    stream: str
    table: str
    kind: str
    """``records``, ``latest`` (the newest record per key) or ``dead letters``."""
    snapshots: int
    records: int
    files: int
    bytes: int
    offsets: dict[str, int]
    """By partition: everything below is in the table."""
    updated_ms: int | None
    """When the last snapshot was committed."""


class SnapshotRow(msgspec.Struct):
    """One commit to a table."""

    id: str
    committed_ms: int
    operation: str
    added_records: int
    added_files: int
    total_records: int


class TableHistory(msgspec.Struct):
    """A table and its newest snapshots."""

    table: TableRow
    snapshots: list[SnapshotRow]


def read_tables(settings: Settings) -> list[TableHistory]:
    """Every table of the lake, by stream; blocks."""
    from nexo.lake.catalog import Lake

    lake = Lake(LakeSettings(settings.lake_folder, settings.lake_catalog))
    found = [_history(table) for table in lake.tables()]
    return sorted(found, key=lambda one: (one.table.stream, one.table.table))


def _history(table: Table) -> TableHistory:
    from nexo.lake.catalog import KIND, RECORDS, STREAM
    from nexo.lake.offsets import offsets_of

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
    return TableHistory(row, [_snapshot(snapshot) for snapshot in newest[:SNAPSHOTS]])


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
