"""A lake whose folder was moved or copied goes on where it is now.

Iceberg tables name their files by absolute path. When the folder's catalog is opened and its
tables point elsewhere while their files are here, the metadata is written anew with today's paths,
every snapshot and tag included; data files stay as they are. The catalog turns to it in one
transaction, so a crash in the middle leaves what was there. Without this, a copy would read, write
and sweep the files of the original.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexo.lake.paths import local_path, location_of, sync_local
from nexo.lake.settings import CATALOG

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

WAREHOUSE = "warehouse"
_PATHS = {"location", "manifest-list", "metadata-file", "statistics-path"}
"""Fields of a table's metadata that are paths."""
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Move:
    """From a former warehouse to the one that is opened: URLs without a slash at the end."""

    old: str
    new: str

    def __call__(self, path: str) -> str:
        """Where a file is now."""
        for old in (self.old, local_path(self.old) or self.old):
            if path.startswith(f"{old}/"):
                return self.new + path[len(old) :]
        return path


def settle(folder: Path) -> int:
    """Have the tables of a folder's catalog point into it; returns how many did not."""
    path = folder / CATALOG
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as catalog:
        if not _strays(catalog, folder):
            return 0
        catalog.execute("begin immediate")  # others wait, or find it done
        try:
            strays = _strays(catalog, folder)
            for location, move in strays.items():
                new = Rewriting(move).table(location)
                catalog.execute(
                    "update iceberg_tables set metadata_location = ?,"
                    " previous_metadata_location = null where metadata_location = ?",
                    (new, location),
                )
            catalog.execute("commit")
        except BaseException:
            catalog.execute("rollback")
            raise
    return len(strays)


def _strays(catalog: sqlite3.Connection, folder: Path) -> dict[str, Move]:
    """Tables whose metadata is said to be elsewhere but is here, by where it is said to be."""
    known = catalog.execute("select 1 from sqlite_master where name = 'iceberg_tables'").fetchone()
    if known is None:
        return {}
    rows = catalog.execute("select metadata_location from iceberg_tables").fetchall()
    moves = {location: _move(location, folder / WAREHOUSE) for (location,) in rows if location}
    return {location: move for location, move in moves.items() if move is not None}


def _move(location: str, warehouse: Path) -> Move | None:
    path = local_path(location)
    if path is None or Path(path).is_relative_to(warehouse):
        return None
    old, _, rest = location.rpartition(f"/{WAREHOUSE}/")
    here = warehouse / rest
    if not old or not here.exists():
        return None
    if Path(path).exists() and Path(path).samefile(here):  # another name for the same folder
        return None
    return Move(f"{old}/{WAREHOUSE}", location_of(warehouse))


@dataclass(slots=True)
class Rewriting:
    """Writes one table's metadata anew, next to what it stands for."""

    move: Move
    written: list[str] = field(default_factory=list)
    _manifests: dict[str, tuple[str, int]] = field(default_factory=dict)

    def table(self, location: str) -> str:
        """Write everything that names files; returns where the table's metadata is now."""
        from pyiceberg.io import load_file_io
        from pyiceberg.serializers import FromInputFile, ToOutputFile
        from pyiceberg.table.metadata import TableMetadataUtil

        here = self.move(location)
        io = load_file_io({}, here)
        metadata = FromInputFile.table_metadata(io.new_input(here))
        lists = {
            snapshot.manifest_list: self._manifest_list(io, metadata, snapshot)
            for snapshot in metadata.snapshots
        }
        content = self._moved(json.loads(metadata.model_dump_json(exclude_none=True)), lists)
        folder, _, name = here.rpartition("/")
        version = int(name.partition("-")[0]) + 1 if name.partition("-")[0].isdigit() else 0
        new = self._new(f"{folder}/{version:05}-{uuid.uuid4()}.metadata.json")
        made = TableMetadataUtil.parse_obj(content)
        ToOutputFile.table_metadata(made, io.new_output(new))
        sync_local(self.written)
        return new

    def _new(self, path: str) -> str:
        self.written.append(path)
        return path

    def _moved(self, value: Any, lists: dict[str, str], name: str = "") -> Any:
        match value:
            case dict():
                return {key: self._moved(item, lists, key) for key, item in value.items()}
            case list():
                return [self._moved(item, lists) for item in value]
            case str() if name in _PATHS:
                return lists.get(value) or self.move(value)
        return value

    def _manifest_list(self, io: FileIO, metadata: TableMetadata, snapshot: Snapshot) -> str:
        from pyiceberg.manifest import read_manifest_list, write_manifest_list

        here = self.move(snapshot.manifest_list)
        found = list(read_manifest_list(io.new_input(here)))
        for manifest in found:
            path, size = self._manifest(io, metadata, manifest)
            manifest[0], manifest[1] = path, size
            assert (manifest.manifest_path, manifest.manifest_length) == (path, size)
        folder = here.rpartition("/")[0]
        new = self._new(f"{folder}/snap-{snapshot.snapshot_id}-0-{uuid.uuid4()}.avro")
        with write_manifest_list(
            metadata.format_version,
            io.new_output(new),
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.sequence_number,
            "deflate",
        ) as writer:
            writer.add_manifests(found)
        return new

    def _manifest(
        self, io: FileIO, metadata: TableMetadata, manifest: ManifestFile
    ) -> tuple[str, int]:
        """A manifest with its entries as they were but for their paths; written once."""
        from pyiceberg.manifest import write_manifest

        old = manifest.manifest_path
        if old in self._manifests:
            return self._manifests[old]
        manifest[0] = self.move(old)
        entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
        new = self._new(f"{manifest.manifest_path.rpartition('/')[0]}/{uuid.uuid4()}-m0.avro")
        with write_manifest(
            metadata.format_version,
            metadata.specs()[manifest.partition_spec_id],
            metadata.schema(),
            io.new_output(new),
            manifest.added_snapshot_id or 0,
            "deflate",
        ) as writer:
            for entry in entries:
                path = self.move(entry.data_file.file_path)
                entry.data_file[1] = path
                assert entry.data_file.file_path == path
                writer.add_entry(entry)
        self._manifests[old] = new, len(io.new_input(new))
        return self._manifests[old]
