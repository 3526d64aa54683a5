"""The catalog of a lake in a folder: PyIceberg's SQLite catalog with a shorter, safer commit.

PyIceberg loads and copies a table's metadata again for each commit, and points the catalog at a
metadata file that a power cut may still lose. Here the caller's table is used as it is, the
metadata is synced before the catalog names it, and one SQL statement decides: the update counts
only if the catalog still names the metadata that the caller's table was read from. Commits to
several tables share their sync and their transaction.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)
from sqlalchemy import Insert, insert

from nexo.errors import Corrupt
from nexo.lake.folder.relocation import next_metadata
from nexo.lake.paths import delete_files, sync_local, write_file
from nexo.lake.settings import CATALOG
from nexo.lake.snapshot import Draft

if TYPE_CHECKING:
    from nexo.lake.tables import NewTable

_KEPT_TABLES = 1_000
"""Tables whose metadata is kept in memory, at least."""
_FEW_NAMES = 10
"""Up to so many tables are looked up one by one."""
_VERSION = "format-version"
_OURS = (SetPropertiesUpdate, AddSnapshotUpdate, SetSnapshotRefUpdate, RemoveSnapshotsUpdate)

Texts: TypeAlias = dict[str, tuple[Snapshot, str]]
"""Snapshots and their JSON, by the path of their manifest list. Snapshots are most of a table's
metadata and do not change, so each is encoded once."""


def snapshot_texts(metadata: TableMetadata, known: Mapping[str, tuple[Snapshot, str]]) -> Texts:
    """The JSON of every snapshot, from ``known`` if it is the same object's."""
    found: Texts = {}
    for each in metadata.snapshots:
        kept = known.get(each.manifest_list)
        is_same = kept is not None and kept[0] is each
        found[each.manifest_list] = kept if is_same and kept else (each, each.model_dump_json())
    return found


def encoded(metadata: TableMetadata, texts: Texts) -> bytes:
    """The whole metadata, as Iceberg has it."""
    rest = metadata.model_dump_json(exclude={"snapshots"})
    snapshots = ",".join(text for _, text in texts.values())
    return f'{rest[:-1]},"snapshots":[{snapshots}]}}'.encode()


def close_with(catalog: Catalog) -> None:
    """Close the connections that an SQL catalog keeps once nobody has the catalog any more."""
    if isinstance(catalog, SqlCatalog):
        weakref.finalize(catalog, catalog.engine.dispose)


class FolderCatalog(SqlCatalog):
    """A SQLite catalog and plain files. Metadata that was read once is kept until it changes."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._known: OrderedDict[tuple[str, ...], tuple[str, TableMetadata]] = OrderedDict()
        self._texts: dict[tuple[str, ...], Texts] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._most = _KEPT_TABLES
        close_with(self)

    def keep(self, count: int) -> None:
        """Keep the metadata of so many tables in memory from now on, or of more."""
        self._most = max(self._most, count)

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        name = Catalog.identifier_to_tuple(identifier)
        location = self._location(name)
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(name)}")
        with self._lock:
            known = self._known.get(name)
        if known is not None and known[0] == location:
            metadata = known[1]
        else:
            io = load_file_io(self.properties, location)
            metadata = _read(io, location)
            self._keep(name, location, metadata)
        io = load_file_io({**self.properties, **metadata.properties}, location)
        return Table(name, metadata, location, io, self)

    def _keep(self, name: tuple[str, ...], location: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._known[name] = location, metadata
            self._known.move_to_end(name)
            if len(self._known) > self._most:
                self._texts.pop(self._known.popitem(last=False)[0], None)

    def _location(self, name: tuple[str, ...]) -> str | None:
        """Where the catalog says that a table's metadata is."""
        found = (
            "select metadata_location from iceberg_tables"
            " where catalog_name = ? and table_namespace = ? and table_name = ?"
        )
        given = (self.name, ".".join(name[:-1]), name[-1])
        with self.engine.connect() as connection:
            return connection.exec_driver_sql(found, given).scalar_one_or_none()

    def locations(self, namespace: str, names: Collection[str] | None = None) -> dict[str, str]:
        """By name, where the metadata of tables of a namespace is: of these at least, or of all."""
        if names is not None and len(names) <= _FEW_NAMES:
            found = {name: self._location((namespace, name)) for name in names}
            return {name: location for name, location in found.items() if location is not None}
        every = (
            "select table_name, metadata_location from iceberg_tables"
            " where catalog_name = ? and table_namespace = ?"
        )
        with self.engine.connect() as connection:
            rows = connection.exec_driver_sql(every, (self.name, namespace)).fetchall()
        return {row[0]: row[1] for row in rows}

    def make_tables(self, namespace: str, wanted: Sequence[NewTable]) -> list[Table]:
        """Make tables in one transaction; those whose name is taken are left out."""
        alike = dict[int, TableMetadata]()
        written = []
        folder = self._resolve_table_location(None, namespace, "table").rpartition("/")[0]
        for each in wanted:
            known = alike.get(id(each.schema))
            made = self._new_metadata(each, f"{folder}/{each.name}", known)
            alike[id(each.schema)] = made
            written.append((each, made, self._written(made)))
        with self._turn:
            sync_local(location for *_, location in written)
            with self.engine.begin() as connection:
                is_new = [
                    connection.execute(self._row(namespace, each.name, location)).rowcount > 0
                    for each, _, location in written
                ]
        found = []
        for (each, metadata, location), made_now in zip(written, is_new, strict=True):
            name = (*Catalog.identifier_to_tuple(namespace), each.name)
            if made_now:
                self._keep(name, location, metadata)
                io = load_file_io({**self.properties, **metadata.properties}, location)
                found.append(Table(name, metadata, location, io, self))
            else:
                delete_files(load_file_io(self.properties, location), [location])
        return found

    def _row(self, namespace: str, name: str, location: str) -> Insert:
        """Adds a table, unless there is one of that name."""
        row = self._create_table_row(namespace, name, location)
        return insert(IcebergTables).values(**row).prefix_with("or ignore")

    def _new_metadata(
        self, new: NewTable, location: str, alike: TableMetadata | None
    ) -> TableMetadata:
        """The metadata of a new table; ``alike`` is that of one with the same columns."""
        properties = {name: text for name, text in new.properties.items() if name != _VERSION}
        if alike is None:
            given = {**properties, _VERSION: new.properties[_VERSION]}
            return new_table_metadata(new.schema, new.spec, UNSORTED_SORT_ORDER, location, given)
        own = {"location": location, "properties": properties, "table_uuid": uuid.uuid4()}
        return alike.model_copy(update=own)

    def _written(self, metadata: TableMetadata) -> str:
        """Write a new table's metadata, which nothing names yet; returns where it is."""
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location()
        write_file(load_file_io(self.properties, location), location, encoded(metadata, {}))
        return location

    def commit_table(
        self,
        table: Table,
        requirements: tuple[Any, ...],
        updates: tuple[Any, ...],
        written: Sequence[str] = (),
    ) -> CommitTableResponse:
        """Apply updates to the table that the caller knows; `CommitFailedException` if it moved.

        ``written`` are files that the updates name; they are synced first.
        """
        if not table.metadata_location:  # a table that is being created
            return super().commit_table(table, requirements, updates)
        (reply,) = self.commit_tables([(table, Draft(updates, requirements, tuple(written)))])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def commit_tables(
        self, drafts: Sequence[tuple[Table, Draft]]
    ) -> list[CommitTableResponse | Exception]:
        """`commit_table` for several tables in one transaction; what it returns or raises for each.

        A failure of the transaction itself is raised.
        """
        prepared = [self._prepared(table, drafted) for table, drafted in drafts]
        self._point([each for each in prepared if isinstance(each, _Pointer)])
        return [self._reply(each) if isinstance(each, _Pointer) else each for each in prepared]

    def _prepared(self, table: Table, drafted: Draft) -> _Pointer | Exception:
        """Write a table's next metadata, which nothing names yet; or why that is not possible."""
        try:
            for requirement in drafted.requirements:
                requirement.validate(table.metadata)
            known = table.metadata_location
            made = applied(table.metadata, drafted.updates, known)
            location = next_metadata(known)
            texts = snapshot_texts(made, self._texts.get(table.name(), {}))
            write_file(table.io, location, encoded(made, texts))
        except Exception as error:  # of this table alone
            return error
        reply = CommitTableResponse.model_construct(metadata=made, metadata_location=location)
        return _Pointer(table.name(), known, reply, (*drafted.written, location), texts)

    def _reply(self, pointer: _Pointer) -> CommitTableResponse | Exception:
        table, reply = pointer.table, pointer.reply
        if not pointer.moved:
            return CommitFailedException(f"another commit to {'.'.join(table)} was first")
        self._keep(table, reply.metadata_location, reply.metadata)
        self._texts[table] = pointer.texts
        return reply

    def _point(self, pointers: Sequence[_Pointer]) -> None:
        """Sync files and have the catalog name new metadata, of several tables at once."""
        if not pointers:
            return
        with self._turn:
            sync_local(path for each in pointers for path in each.files)
            with self.engine.begin() as connection:
                for each in pointers:
                    *spaces, name = each.table
                    given = (
                        each.reply.metadata_location, each.known, self.name, ".".join(spaces), name,
                        each.known,
                    )  # fmt: skip
                    each.moved = connection.exec_driver_sql(_POINT, given).rowcount > 0


def _read(io: FileIO, location: str) -> TableMetadata:
    try:
        return FromInputFile.table_metadata(io.new_input(location))
    except (ValueError, ValidationError) as error:
        raise Corrupt(
            f"{location} is damaged: restore it from a backup, or have {CATALOG} name the table's "
            "newest metadata file that is whole"
        ) from error


_POINT = (
    "update iceberg_tables set metadata_location = ?, previous_metadata_location = ?"
    " where catalog_name = ? and table_namespace = ? and table_name = ? and metadata_location = ?"
)


@dataclass(slots=True, eq=False)
class _Pointer:
    """New metadata of a table; it counts if the catalog still names the ``known`` one."""

    table: tuple[str, ...]
    known: str
    reply: CommitTableResponse
    files: tuple[str, ...]
    texts: Texts
    moved: bool = False


def applied(metadata: TableMetadata, updates: tuple[Any, ...], location: str) -> TableMetadata:
    """Metadata after some updates; ``location`` is where it was read from.

    PyIceberg copies the whole metadata, which grows with the kept snapshots. Our own commits
    (`nexo.lake.snapshot`) only replace some fields. The time of a table never goes back, even if
    the clock does: Iceberg's Java opens no table whose time did.
    """
    now_ms = max(time.time_ns() // 1_000_000, metadata.last_updated_ms)
    if not all(isinstance(each, _OURS) for each in updates):
        made = update_table_metadata(metadata, updates, metadata_location=location)
        return made.model_copy(update={"last_updated_ms": max(made.last_updated_ms, now_ms)})
    fields = {"metadata_log": _logged(metadata, location), "last_updated_ms": now_ms}
    for each in updates:
        fields |= _fields(metadata.model_copy(update=fields), each)
    return metadata.model_copy(update=fields)


def _fields(metadata: TableMetadata, update: Any) -> dict[str, Any]:
    """What one update changes."""
    match update:
        case SetPropertiesUpdate():
            return {"properties": {**metadata.properties, **update.updates}}
        case AddSnapshotUpdate():
            made = update.snapshot
            return {
                "snapshots": [*metadata.snapshots, made],
                "last_sequence_number": made.sequence_number,
                "last_updated_ms": max(made.timestamp_ms, metadata.last_updated_ms),
            }
        case SetSnapshotRefUpdate():
            return _referred(metadata, update)
    gone = set(update.snapshot_ids)
    return {
        "snapshots": [
            each.model_copy(update={"parent_snapshot_id": None})
            if each.parent_snapshot_id in gone
            else each
            for each in metadata.snapshots
            if each.snapshot_id not in gone
        ],
        "snapshot_log": _log_without(metadata.snapshot_log, gone),
        "statistics": [each for each in metadata.statistics if each.snapshot_id not in gone],
        "refs": {name: ref for name, ref in metadata.refs.items() if ref.snapshot_id not in gone},
    }


def _referred(metadata: TableMetadata, update: SetSnapshotRefUpdate) -> dict[str, Any]:
    """A tag or branch names another snapshot; the main branch's is the current one."""
    given = update.model_dump(by_alias=True, exclude_none=True, exclude={"action", "ref_name"})
    fields: dict[str, Any] = {
        "refs": {**metadata.refs, update.ref_name: SnapshotRef.model_validate(given)}
    }
    if update.ref_name == MAIN_BRANCH:
        number, at_ms = update.snapshot_id, metadata.last_updated_ms
        entry = SnapshotLogEntry.model_validate({"snapshot-id": number, "timestamp-ms": at_ms})
        fields["current_snapshot_id"] = number
        fields["snapshot_log"] = [*metadata.snapshot_log, entry]
    return fields


def _log_without(log: Sequence[SnapshotLogEntry], gone: set[int]) -> list[SnapshotLogEntry]:
    """What a log says after the last snapshot that is gone.

    An earlier entry would stand for all the time up to the next one that is left, although other
    snapshots were current in between.
    """
    kept = 0
    for number, entry in enumerate(log, 1):
        if entry.snapshot_id in gone:
            kept = number
    return list(log[kept:])


def _logged(metadata: TableMetadata, location: str) -> list[MetadataLogEntry]:
    """The former metadata files, the last one included."""
    most = int(metadata.properties.get("write.metadata.previous-versions-max", "100"))
    entry = MetadataLogEntry.model_validate(
        {"metadata-file": location, "timestamp-ms": metadata.last_updated_ms}
    )
    return [*metadata.metadata_log, entry][-max(most, 1) :]
