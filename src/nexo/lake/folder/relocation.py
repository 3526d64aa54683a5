"""A lake whose folder was moved or copied works where it is now.

Iceberg tables name their files by absolute path. When the folder's catalog is opened and its
tables point elsewhere while their files are here, the metadata is rewritten with the new paths,
including every snapshot and tag; data files stay as they are. The catalog switches to it in one
transaction, so a crash changes nothing. Without this, a copy would read, write and sweep the files
of the original.

Other programs spell the same path otherwise (``file:/x`` instead of ``file:///x``), so paths are
compared, and nothing is ever written outside the folder that was opened.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nexo.lake.paths import local_file, local_path, location_of, read_metadata, sync_local
from nexo.lake.settings import CATALOG
from nexo.lake.tables import PATH_ID, POSITION_DELETES

# ruff: noqa: PLC0415 - slow to import

WAREHOUSE = "warehouse"
_PATHS = {
    "location", "manifest-list", "metadata-file", "statistics-path",
    "write.data.path", "write.metadata.path", "write.object-storage.path",
    "write.folder-storage.path",
}  # fmt: skip
"""Fields of a table's metadata that are paths, and such properties."""
_WAIT_S = 60.0
_DELETED = 2
"""Iceberg's status of a deleted entry."""


@dataclass(frozen=True, slots=True)
class Move:
    """From a former warehouse to the present one, without a slash at the end."""

    old: str
    """A path."""
    new: str
    """A location."""

    def __call__(self, location: str) -> str:
        """Where a file is now."""
        path = local_path(location) or location
        return self.new + path[len(self.old) :] if path.startswith(f"{self.old}/") else location

    def has(self, location: str) -> bool:
        """Whether a file is in the present warehouse."""
        path, new = local_path(location) or location, local_path(self.new)
        return path.startswith(f"{new}/")


def relocate(folder: Path) -> int:
    """Make the tables of a folder's catalog point into it; returns how many did not."""
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
                new = MetadataRewriting(move).table(location)
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
    """By location in the catalog: the moves of tables whose metadata is here, not there."""
    known = catalog.execute("select 1 from sqlite_master where name = 'iceberg_tables'").fetchone()
    if known is None:
        return {}
    rows = catalog.execute("select metadata_location from iceberg_tables").fetchall()
    moves = {location: _move(location, folder / WAREHOUSE) for (location,) in rows if location}
    return {location: move for location, move in moves.items() if move is not None}


def is_at_home(location: str, folder: Path) -> bool:
    """Whether a table's metadata is in this folder's warehouse, or in no folder at all."""
    path = local_path(location)
    return path is None or path.startswith(f"{folder}/{WAREHOUSE}/")


def _move(location: str, warehouse: Path) -> Move | None:
    if is_at_home(location, warehouse.parent):
        return None
    path = local_path(location) or location
    old, _, rest = path.rpartition(f"/{WAREHOUSE}/")
    here = warehouse / rest
    if not old or not here.exists():
        return None
    if Path(path).exists() and Path(path).samefile(here):  # another name for the same folder
        return None
    return Move(f"{old}/{WAREHOUSE}", location_of(warehouse))


@dataclass(slots=True)
class MetadataRewriting:
    """Writes one table's metadata again, next to what it replaces.

    Manifests and their lists are Avro files that contain their schemas, so only the paths in them
    change; everything else stays as it is.
    """

    move: Move
    written: list[str] = field(default_factory=list)
    _manifests: dict[str, tuple[str, int]] = field(default_factory=dict)
    _deletes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What changed of delete files, by their former paths."""
    _folder: str = ""
    """Where the table's metadata is now."""

    def table(self, location: str) -> str:
        """Write everything that names files; returns where the table's metadata is now."""
        here = self.move(location)
        self._folder = here.rpartition("/")[0]
        content = json.loads(read_metadata(here))
        lists = {
            snapshot["manifest-list"]: self._manifest_list(snapshot["manifest-list"])
            for snapshot in content.get("snapshots", ())
        }
        new = self._new(here, next_metadata(here).rpartition("/")[2])
        local_file(new).write_text(json.dumps(self._moved(content, lists)))
        sync_local(self.written)
        return new

    def _new(self, beside: str, name: str) -> str:
        """A new file beside another one, or beside the metadata if that is not in the warehouse."""
        folder = beside.rpartition("/")[0] if self.move.has(beside) else self._folder
        self.written.append(f"{folder}/{name}")
        return self.written[-1]

    def _moved(self, value: Any, lists: dict[str, str], name: str = "") -> Any:
        match value:
            case dict():
                return {key: self._moved(item, lists, key) for key, item in value.items()}
            case list():
                return [self._moved(item, lists) for item in value]
            case str() if name in _PATHS:
                return lists.get(value) or self.move(value)
        return value

    def _manifest_list(self, location: str) -> str:
        def moved(manifest: dict[str, Any]) -> dict[str, Any]:
            path, size = self._manifest(manifest["manifest_path"])
            return {**manifest, "manifest_path": path, "manifest_length": size}

        here = self.move(location)
        name = here.rpartition("/")[2]
        stem = name.removesuffix(".avro").rsplit("-", 5)[0]
        new = self._new(here, f"{stem}-{uuid.uuid4()}.avro")
        _rewrite(local_file(here), local_file(new), moved)
        return new

    def _manifest(self, location: str) -> tuple[str, int]:
        """A manifest with its entries as they were but for their paths; written once."""

        def moved(entry: dict[str, Any]) -> dict[str, Any]:
            file = entry["data_file"]
            if file["content"] == POSITION_DELETES and entry["status"] != _DELETED:
                return {**entry, "data_file": {**file, **self._delete_file(file)}}
            return {**entry, "data_file": {**file, "file_path": self.move(file["file_path"])}}

        if location not in self._manifests:
            here = self.move(location)
            new = self._new(here, f"{uuid.uuid4()}-m0.avro")
            _rewrite(local_file(here), local_file(new), moved)
            self._manifests[location] = new, local_file(new).stat().st_size
        return self._manifests[location]

    def _delete_file(self, file: dict[str, Any]) -> dict[str, Any]:
        """A file that names data files by their paths, written again; its changed fields."""
        location = file["file_path"]
        here = self.move(location)
        if not self.move.has(here) or file["file_format"].upper() != "PARQUET":
            return {"file_path": here}
        if location not in self._deletes:
            new = self._new(here, f"{uuid.uuid4()}-deletes.parquet")
            lowest, highest = _rewrite_deletes(local_file(here), local_file(new), self.move)
            self._deletes[location] = {
                "file_path": new,
                "file_size_in_bytes": local_file(new).stat().st_size,
                "lower_bounds": _with_path(file.get("lower_bounds"), lowest),
                "upper_bounds": _with_path(file.get("upper_bounds"), highest),
            }
        changed = dict(self._deletes[location])
        if file.get("referenced_data_file"):
            changed["referenced_data_file"] = self.move(file["referenced_data_file"])
        return changed


def _with_path(bounds: list[dict[str, Any]] | None, path: str) -> list[dict[str, Any]] | None:
    """Bounds with another one of the paths, if they have one."""
    return bounds and [
        {**each, "value": path.encode()} if each["key"] == PATH_ID else each for each in bounds
    ]


def _rewrite_deletes(old: Path, new: Path, move: Move) -> tuple[str, str]:
    """Copy a delete file with its data files' present paths; returns the first and the last."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(old, partitioning=None)
    number = rows.schema.get_field_index("file_path")
    paths = [move(each) for each in rows.column(number).to_pylist()]
    kind = rows.schema.field(number)
    pq.write_table(rows.set_column(number, kind, pa.array(paths, kind.type)), new)
    return min(paths, default=""), max(paths, default="")


def next_metadata(known: str) -> str:
    """A path for the metadata that follows ``known``."""
    folder, _, name = known.rpartition("/")
    number = name.partition("-")[0]
    version = int(number) + 1 if number.isdigit() else 0
    return f"{folder}/{version:05}-{uuid.uuid4()}.metadata.json"


def _rewrite(old: Path, new: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Copy an Avro file with its schema and metadata, each record changed."""
    import fastavro  # only for a lake that was moved

    with old.open("rb") as source, new.open("wb") as target:
        found = fastavro.reader(source)
        records = [change(record) for record in found if isinstance(record, dict)]
        own = {key: text for key, text in found.metadata.items() if not key.startswith("avro.")}
        fastavro.writer(target, found.writer_schema, records, codec=found.codec, metadata=own)
