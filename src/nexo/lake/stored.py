"""A stream's table as readers see it, read without PyIceberg where the lake is a folder.

Importing PyIceberg and SQLAlchemy takes longer than most queries. A folder's catalog is one SQLite
table, a table's metadata is JSON and its manifests are Avro, so they can be read directly. Tables
of other catalogs are read with PyIceberg.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nexo.errors import Conflict, Corrupt, NexoError, Unavailable
from nexo.lake.avro_records import records
from nexo.lake.catalog import Lake
from nexo.lake.folder.relocation import relocate
from nexo.lake.paths import local_file
from nexo.lake.settings import CATALOG
from nexo.lake.tables import RECORDS, StreamId, belongs, is_of, table_names

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_WAIT_S = 60.0
_DELETED, _DATA = 2, 0
"""Iceberg's status of a deleted entry, and its content type of files and manifests of rows."""


@dataclass(frozen=True, slots=True)
class StoredField:
    """A column; ``kind`` is its type in Iceberg's metadata: text, or an object if nested."""

    field_id: int
    name: str
    kind: Any


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table at one snapshot."""

    name: str
    properties: Mapping[str, str]
    fields: tuple[StoredField, ...]
    files: Callable[[], list[str]]
    """The paths of its data files; `Conflict` if rows are marked as deleted beside them."""
    io: Callable[[], FileIO]
    """What reads files that are not on this machine's disk."""

    @property
    def names(self) -> dict[int, str]:
        """The columns' names by field id."""
        return {field.field_id: field.name for field in self.fields}


def find(lake: Lake, stream: StreamId, kind: str = RECORDS) -> StoredTable | None:
    """The table of this stream, as `Lake.known` finds it."""
    if lake.settings.catalog:
        table = lake.known(stream, kind)
        return None if table is None else _of_table(table)
    if not lake.settings.exists:
        return None
    return _in_folder(lake, stream, kind)


# -- PyIceberg's tables ----------------------------------------------------------------


def _of_table(table: Table) -> StoredTable:
    stored = msgspec.json.decode(table.schema().model_dump_json())
    return StoredTable(
        ".".join(table.name()),
        table.properties,
        _fields(stored),
        lambda: [str(file.file_path) for file in live_files(table)],
        lambda: table.io,
    )


def live_files(table: Table, snapshot_id: int | None = None) -> list[DataFile]:
    """The files whose rows are the table's.

    `Conflict` if another program marked rows as deleted instead of rewriting the files: reading or
    merging the files would bring those rows back.
    """
    tasks = list(table.scan(snapshot_id=snapshot_id).plan_files())
    if any(task.delete_files for task in tasks):
        raise rows_marked(".".join(table.name()))
    return [task.file for task in tasks]


# -- a folder's tables -----------------------------------------------------------------


def _in_folder(lake: Lake, stream: StreamId, kind: str) -> StoredTable | None:
    folder = lake.settings.folder.absolute()
    relocate(folder)
    for name in table_names(stream.name, kind):
        found = _read(folder, lake.settings.namespace, name)
        if found is not None and belongs(found.properties, stream.name, kind):
            return found if is_of(found.properties, stream) else None
    return None


def _read(folder: Path, namespace: str, name: str) -> StoredTable | None:
    label = f"{namespace}.{name}"
    try:
        location = _location(folder, namespace, name)
        if location is None:
            return None
        metadata = msgspec.json.decode(local_file(location).read_bytes())
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(f"cannot read table {label}: {error}") from error
    except ValueError as error:
        raise Corrupt(f"cannot read table {label}: {error}") from error
    current = metadata["current-schema-id"]
    schema = next(each for each in metadata["schemas"] if each["schema-id"] == current)
    return StoredTable(
        label,
        metadata.get("properties", {}),
        _fields(schema),
        lambda: _files(label, metadata),
        _no_io,
    )


def _location(folder: Path, namespace: str, name: str) -> str | None:
    """Where the catalog says that a table's metadata is."""
    address = f"file:{(folder / CATALOG).as_uri().removeprefix('file:')}?mode=ro"
    with closing(sqlite3.connect(address, timeout=_WAIT_S, uri=True)) as catalog:
        known = "select 1 from sqlite_master where name = 'iceberg_tables'"
        if catalog.execute(known).fetchone() is None:
            return None
        row = catalog.execute(
            "select metadata_location from iceberg_tables"
            " where catalog_name = 'nexo' and table_namespace = ? and table_name = ?",
            (namespace, name),
        ).fetchone()
    return None if row is None else row[0]


def _no_io() -> FileIO:
    raise AssertionError("a lake in a folder has local files only")


def _fields(schema: Mapping[str, Any]) -> tuple[StoredField, ...]:
    return tuple(StoredField(each["id"], each["name"], each["type"]) for each in schema["fields"])


def _files(label: str, metadata: Mapping[str, Any]) -> list[str]:
    current = metadata.get("current-snapshot-id")
    found = [each for each in metadata.get("snapshots", ()) if each["snapshot-id"] == current]
    try:
        return [path for each in found for path in _live(label, each["manifest-list"])]
    except NexoError:
        raise
    except FileNotFoundError as error:
        raise Conflict(f"table {label} changed while it was read, ask again: {error}") from error
    except OSError as error:
        raise Unavailable(f"cannot read table {label}: {error}") from error
    except (ValueError, KeyError, EOFError) as error:
        raise Corrupt(f"cannot read table {label}: {type(error).__name__}: {error}") from error


def _live(label: str, manifest_list: str) -> Iterator[str]:
    for manifest in _records(manifest_list):
        for entry in _records(manifest["manifest_path"]):
            if entry["status"] == _DELETED:
                continue
            if manifest["content"] != _DATA:
                raise rows_marked(label)
            yield entry["data_file"]["file_path"]


def rows_marked(label: str) -> Conflict:
    """Why a table cannot be read: reading or merging its files would bring deleted rows back."""
    return Conflict(
        f"rows of table {label} are marked as deleted beside its files: have the program that "
        "did so rewrite them (in Spark: CALL system.rewrite_data_files), and delete with "
        "copy-on-write"
    )


def _records(location: str) -> list[Any]:
    return records(local_file(location).read_bytes())
