"""The lake's tables as the dashboard shows them, read from the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from nexo.client.views import ContractColumn
from nexo.config import Settings
from nexo.lake.catalog import Lake
from nexo.lake.failures import lake_errors
from nexo.lake.progress import StreamProgress, describe
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import DEAD_LETTERS, KIND, RECORDS, STREAM

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot, Summary

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


class ContractView(msgspec.Struct):
    """How a stream's values are taken apart into columns."""

    format: Literal["json", "avro", "protobuf", "debezium"]
    message: str
    """Protobuf: which message the values are."""
    schema_ids: list[int]
    """Ids of a schema registry that values may begin with."""
    permissive: bool
    """Whether a field that does not fit is null alone; else its record is a dead letter."""
    additions: bool
    """Whether new fields become columns."""
    columns: list[ContractColumn]


class TableHistory(msgspec.Struct):
    """A table and its newest snapshots."""

    table: TableRow
    snapshots: list[SnapshotRow]
    contract: ContractView | None = None


class LetterRow(msgspec.Struct):
    """A record that the contract refused."""

    partition: int
    offset: int
    time_ms: int
    reason: str


def read_tables(settings: Settings) -> list[TableHistory]:
    """Every table of the lake, by stream; blocks."""
    lake = Lake(LakeSettings(settings.lake_folder, settings.lake_catalog))
    found = [_history(table) for table in lake.tables()]
    return sorted(found, key=lambda one: (one.table.stream, one.table.table))


def _history(table: Table) -> TableHistory:
    newest = sorted(table.metadata.snapshots, key=lambda snapshot: -snapshot.timestamp_ms)
    seen = StreamProgress(stream=table.properties[STREAM])
    describe(seen, table)
    row = table_row(seen, table.properties.get(KIND, RECORDS), len(newest))
    snapshots = [_snapshot(snapshot) for snapshot in newest[:SNAPSHOTS]]
    return TableHistory(row, snapshots, _contract(table))


def table_row(seen: StreamProgress, kind: str = RECORDS, snapshots: int = 0) -> TableRow:
    """A table as it was seen; a pipeline, which looks at records only, counts no snapshots."""
    return TableRow(
        seen.stream, seen.table, kind, snapshots, seen.records, seen.files, seen.bytes,
        seen.offsets, seen.committed_ms,
    )  # fmt: skip


def _contract(table: Table) -> ContractView | None:
    from nexo.lake.typed.columns import parser_of

    terms = parser_of(table)
    if terms is None:
        return None
    ids = [] if terms.format is None else [int(each) for each in terms.format.schemas if each]
    return ContractView(
        "json" if terms.format is None else terms.format.name,
        "" if terms.format is None else terms.format.message,
        sorted(ids),
        terms.permissive,
        terms.additions,
        [ContractColumn(terms.names[one.field_id], one.kind, one.source) for one in terms.columns],
    )


def read_letters(settings: Settings, stream: str, most: int) -> list[LetterRow]:
    """The newest dead letters of a stream; blocks."""
    from nexo.lake.derived import dead_letters

    lake = Lake(LakeSettings(settings.lake_folder, settings.lake_catalog))
    table = lake.find(stream, DEAD_LETTERS)
    with lake_errors(f"cannot read the dead letters of stream {stream!r}"):
        found = [] if table is None else dead_letters.newest(table, most)
    return [LetterRow(one.partition, one.offset, one.time_ms, one.reason) for one in found]


def _snapshot(snapshot: Snapshot) -> SnapshotRow:
    summary = snapshot.summary
    return SnapshotRow(
        str(snapshot.snapshot_id),
        snapshot.timestamp_ms,
        summary.operation.value if summary else "",
        _count(summary, "added-records"),
        _count(summary, "added-data-files"),
        _count(summary, "total-records"),
    )


def _count(summary: Summary | None, name: str) -> int:
    return int(summary[name] or 0) if summary else 0
