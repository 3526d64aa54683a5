"""What other engines do to a table, by PyIceberg's own writers."""

from __future__ import annotations

import json
import random
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

from nexo.lake.folder.relocation import MetadataRewriting, Move
from nexo.lake.paths import local_file, local_path
from nexo.lake.settings import CATALOG

if TYPE_CHECKING:
    from pyiceberg.table import Table

_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


class _Deletes(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_rows(table: Table, file: DataFile, positions: Sequence[int]) -> None:
    """Mark rows of a file as deleted, as Trino does (merge-on-read)."""
    table.refresh()
    metadata, parent = table.metadata, table.current_snapshot()
    assert parent is not None
    deletes = _position_deletes(table, file, positions)
    number, folder = metadata.new_snapshot_id(), f"{table.location()}/metadata"
    output = table.io.new_output(f"{folder}/{uuid.uuid4()}-deletes.avro")
    spec = metadata.specs()[file.spec_id]
    with _Deletes(spec, table.schema(), output, number, "deflate") as writer:
        writer.add_entry(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=deletes
            )
        )
    made = [writer.to_manifest_file(), *parent.manifests(table.io)]
    commit(table, number, made, {"operation": "delete"})


def commit(table: Table, number: int, manifests: list[Any], summary: dict[str, str]) -> None:
    """Make a snapshot of manifests the current one."""
    metadata, parent = table.metadata, table.current_snapshot()
    sequence = metadata.next_sequence_number()
    parent_id = None if parent is None else parent.snapshot_id
    path = f"{table.location()}/metadata/snap-{number}-foreign.avro"
    output = table.io.new_output(path)
    with write_manifest_list(2, output, number, parent_id, sequence, "deflate") as writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": parent_id,
            "manifest-list": path,
            "sequence-number": sequence,
            "summary": summary,
            "schema-id": metadata.current_schema_id,
        }
    )
    named = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    table.catalog.commit_table(
        table,
        (AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": parent_id}),),
        (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(named)),
    )
    table.refresh()


def _position_deletes(table: Table, file: DataFile, positions: Sequence[int]) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    rows = {"file_path": [file.file_path] * len(positions), "pos": list(positions)}
    local = local_path(path)
    assert local is not None
    pq.write_table(pa.table(rows, _DELETES), local)
    with open(local, "rb") as written:  # noqa: PTH123
        size = written.seek(0, 2)
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=size,
    )


def rows_of(table: Table, file: DataFile) -> pa.Table:
    """A file's rows as they are in it, under the columns' present names."""
    local = local_path(file.file_path)
    assert local is not None
    rows = pq.read_table(local, partitioning=None)
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in rows.schema]
    return rows.rename_columns([table.schema().find_column_name(each) or "" for each in ids])


def rewrite(
    table: Table,
    chance: random.Random,
    *,
    keep: Callable[[dict[str, Any]], bool] = lambda _: True,
    metrics: bool = True,
) -> None:
    """Rewrite all rows into few files, in any order, all partitions together (copy-on-write)."""
    table.refresh()
    rows = table.scan().to_arrow()
    kept = [number for number, row in enumerate(rows.to_pylist()) if keep(row)]
    chance.shuffle(kept)
    if not metrics:
        with table.transaction() as change:
            change.set_properties({_METRICS: "none"})
    table.overwrite(rows.take(pa.array(kept, pa.int64())))
    if not metrics:
        with table.transaction() as change:
            change.remove_properties(_METRICS)


def append(table: Table, rows: Sequence[dict[str, Any]], *, metrics: bool = True) -> None:
    """Add rows; columns that they lack are null."""
    table.refresh()
    if not metrics:
        with table.transaction() as change:
            change.set_properties({_METRICS: "none"})
    table.append(pa.Table.from_pylist(list(rows), schema=table.schema().as_arrow()))
    if not metrics:
        with table.transaction() as change:
            change.remove_properties(_METRICS)


_METRICS = "write.metadata.metrics.default"


def respell(table: Table) -> None:
    """Name all files as Iceberg's Java does: ``file:/x`` instead of ``file:///x``."""
    folder = local_path(table.location())
    assert folder is not None
    warehouse = Path(folder).parents[1]
    move = Move(str(warehouse), f"file:{warehouse}")
    location = table.refresh().metadata_location
    made = MetadataRewriting(move).table(location)
    path = local_file(made)
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, "location": table.location()}))
    with closing(sqlite3.connect(warehouse.parent / CATALOG)) as catalog, catalog:
        catalog.execute(
            "update iceberg_tables set metadata_location = ? where metadata_location = ?",
            (made, location),
        )
    table.refresh()
