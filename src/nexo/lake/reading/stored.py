"""A stream's table as readers see it, read without PyIceberg where the lake is a folder.

Importing PyIceberg and SQLAlchemy takes longer than most queries. A folder's catalog is one SQLite
table, a table's metadata is JSON and its manifests are Avro, so they can be read directly. Tables
of other catalogs are read with PyIceberg.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nexo.errors import Conflict, Corrupt, NexoError, Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.folder.relocation import is_at_home, relocate
from nexo.lake.names import is_named
from nexo.lake.paths import local_file, read_metadata
from nexo.lake.reading.deletes import DeletedRows, check_deletes, plain_path
from nexo.lake.schema import field_id_of
from nexo.lake.settings import CATALOG
from nexo.lake.tables import (
    OFFSETS,
    RECORDS,
    USER,
    StreamId,
    belongs,
    check_version,
    held,
    held_offsets,
    is_of,
    orphan_offsets,
    said_formerly,
    table_name,
    table_names,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from nexo.lake.reading.ranges import FileRange

_WAIT_S = 60.0
_ATTEMPTS = 20
_DELETED, _DATA = 2, 0
"""Iceberg's status of a deleted entry, and its content type of files and manifests of rows."""


@dataclass(frozen=True, slots=True)
class StoredField:
    """A column; ``kind`` is its type in Iceberg's metadata: text, or an object if nested."""

    field_id: int
    name: str
    kind: Any


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file, and the files that say which rows of it are deleted."""

    path: str
    deletes: tuple[str, ...] = ()


def is_plain(file: StoredFile) -> bool:
    """Whether all rows of a file count, and its columns are marked with their ids."""
    return not file.deletes and is_named(file.path)


def unmarked_columns(io: FileIO | None, path: str) -> set[str] | None:
    """The columns of a file that another program made elsewhere, without ids; None if it has some.

    Without ``io`` it is on this machine.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow, and only some tables need it

    source = io.new_input(path).open() if io else plain_path(path)
    with pq.ParquetFile(source) as file:
        schema = file.schema_arrow
    has_ids = any(field_id_of(each) is not None for each in schema)
    return None if has_ids else set(schema.names)


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table at one snapshot."""

    name: str
    properties: Mapping[str, str]
    offsets: Mapping[int, int]
    """By partition: it holds everything below (`nexo.lake.tables.held_offsets`)."""
    fields: tuple[StoredField, ...]
    files: Callable[[], list[StoredFile]]
    """Its data files; `Conflict` if rows are marked as deleted in a way that is not understood."""
    io: Callable[[], FileIO]
    """What reads files that are not on this machine's disk."""
    location: str = ""
    """Of its metadata, which is another one after each change."""

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


def find_made(lake: Lake, name: str) -> StoredTable | None:
    """A table that users' code fills, by the name that they call it."""
    if lake.settings.catalog:
        table = lake.at(table_name(name))
        found = None if table is None else _of_table(table)
    elif lake.settings.exists:
        folder = lake.settings.folder.absolute()
        found = _read(folder, lake.settings.namespace, table_name(name))
    else:
        return None
    return found if found is not None and found.properties.get(USER) == name else None


def find_together(lake: Lake, names: Sequence[str]) -> list[StoredTable] | None:
    """Several of them as they were at one moment, when the last was read; None if one is missing.

    Nothing but the last of the tables may change without the others.
    """
    for _ in range(_ATTEMPTS):
        found = [each for name in names if (each := find_made(lake, name)) is not None]
        if len(found) < len(names):
            return None
        if all(_place(lake, name) == found[n].location for n, name in enumerate(names[:-1])):
            return found
    raise Unavailable(f"table {names[0]!r} changed {_ATTEMPTS} times while it was read: ask again")


def _place(lake: Lake, name: str) -> str | None:
    """Where the metadata of a table of users is now."""
    if lake.settings.catalog:
        table = lake.at(table_name(name))
        return None if table is None else table.metadata_location
    return _location(lake.settings.folder.absolute(), lake.settings.namespace, table_name(name))


# -- PyIceberg's tables ----------------------------------------------------------------


def _of_table(table: Table) -> StoredTable:
    stored = msgspec.json.decode(table.schema().model_dump_json())
    return StoredTable(
        ".".join(table.name()),
        table.properties,
        held_offsets(table),
        _fields(stored),
        lambda: [StoredFile(each.path, each.deletes) for each in _oldest_first(table)],
        lambda: table.io,
        table.metadata_location,
    )


def _oldest_first(table: Table) -> list[FileRange]:
    from nexo.lake.reading.ranges import file_ranges  # noqa: PLC0415 - slow to import
    from nexo.lake.writing.modes import live_entries  # noqa: PLC0415 - as above

    since = {
        each["data_file"]["file_path"]: each["sequence_number"] for each in live_entries(table)
    }
    return sorted(file_ranges(table), key=lambda each: (since[each.path], each.path))


# -- a folder's tables -----------------------------------------------------------------


def _in_folder(lake: Lake, stream: StreamId, kind: str) -> StoredTable | None:
    folder = lake.settings.folder.absolute()
    for name in table_names(stream.name, kind):
        found = _read(folder, lake.settings.namespace, name)
        if found is not None and belongs(found.properties, stream.name, kind):
            return found if is_of(found.properties, stream) else None
    return None


def _read(folder: Path, namespace: str, name: str) -> StoredTable | None:
    label = f"{namespace}.{name}"
    try:
        location = _location(folder, namespace, name)
        if location is not None and not is_at_home(location, folder):
            relocate(folder)
            location = _location(folder, namespace, name)
        if location is None:
            return None
        metadata = msgspec.json.decode(read_metadata(location))
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(f"cannot read table {label}: {error}") from error
    except ValueError as error:
        raise Corrupt(f"cannot read table {label}: {error}") from error
    current = metadata["current-schema-id"]
    schema = next(each for each in metadata["schemas"] if each["schema-id"] == current)
    return StoredTable(
        label,
        metadata.get("properties", {}),
        held(metadata.get("properties", {}), _line(metadata)),
        _fields(schema),
        lambda: _files(label, metadata),
        _no_io,
        location,
    )


def _line(metadata: Mapping[str, Any]) -> Iterator[str | None]:
    """What the present snapshot and its parents say of their offsets."""
    known = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    orphans = orphan_offsets(metadata.get("properties", {}))
    snapshot = known.get(metadata.get("current-snapshot-id"))
    while snapshot is not None:
        yield snapshot.get("summary", {}).get(OFFSETS) or orphans.get(str(snapshot["snapshot-id"]))
        snapshot = known.get(snapshot.get("parent-snapshot-id"))
    files = [each["metadata-file"] for each in reversed(metadata.get("metadata-log", ()))]
    yield said_formerly(metadata.get("current-snapshot-id"), map(read_metadata, files))


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


def _files(label: str, metadata: Mapping[str, Any]) -> list[StoredFile]:
    check_version(label, metadata["format-version"])
    current = metadata.get("current-snapshot-id")
    found = [each for each in metadata.get("snapshots", ()) if each["snapshot-id"] == current]
    try:
        return [file for each in found for file in _live(label, each["manifest-list"])]
    except NexoError:
        raise
    except FileNotFoundError as error:
        raise Conflict(f"table {label} changed while it was read, ask again: {error}") from error
    except OSError as error:
        raise Unavailable(f"cannot read table {label}: {error}") from error
    except (ValueError, KeyError) as error:
        raise Corrupt(f"cannot read table {label}: {type(error).__name__}: {error}") from error


def _live(label: str, manifest_list: str) -> list[StoredFile]:
    """Data files, the oldest first, each with the delete files that name it and are no older."""
    found, deletes = list[tuple[int, str]](), dict[str, list[tuple[int, str]]]()
    for manifest in _records(manifest_list):
        for entry in _records(manifest["manifest_path"]):
            if entry["status"] == _DELETED:
                continue
            number = entry["sequence_number"]
            at = manifest["sequence_number"] if number is None else number
            file = entry["data_file"]
            if manifest["content"] == _DATA:
                found.append((at, file["file_path"]))
            else:
                check_deletes(label, file["content"], file["file_format"])
                for path in DeletedRows().named(file["file_path"]):
                    deletes.setdefault(path, []).append((at, file["file_path"]))
    found.sort()

    def stored(at: int, path: str) -> StoredFile:
        named = deletes.get(plain_path(path), ())
        return StoredFile(path, tuple(sorted(each for since, each in named if since >= at)))

    return [stored(at, path) for at, path in found]


def _records(location: str) -> list[Any]:
    """Every record of an Avro file; `ValueError` if it is damaged."""
    import fastavro  # noqa: PLC0415 - only once there is something to read

    content = BytesIO(local_file(location).read_bytes())
    try:
        return list(fastavro.reader(content))
    except Exception as error:  # damage makes it raise nearly anything
        raise ValueError(f"{location}: {type(error).__name__}: {error}") from error
