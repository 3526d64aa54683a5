"""Deleting files that no snapshot names, in two steps: seen unused, and still unused later.

What was seen unused, and when, is in ``metadata/unused.json`` beside the table's metadata. A folder
may also hold files of another table, for example of one that was renamed: they stay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from pyarrow.fs import FileSelector, FileType

from nexo.lake.manifests import read_entries, read_whole_list
from nexo.lake.names import file_name
from nexo.lake.paths import delete_files, local_path, read_file, write_file

if TYPE_CHECKING:
    from pyiceberg.table import Table

NOTE = "metadata/unused.json"


@dataclass(frozen=True, slots=True)
class Swept:
    """How many files were deleted, and how many wait to be."""

    deleted: int
    waiting: int


def sweep(table: Table, grace_s: float) -> Swept:
    """Delete what has been unused for ``grace_s``; note what is unused now."""
    now_s = time.time()
    # List first: a file that is committed before the table is read is then named by it.
    there = set(stored_files(table))
    unused = _without(there, table.refresh())
    for other in _others(table, unused):
        unused = _without(unused, other)
    seen = {path: since for path, since in _noted(table).items() if path in unused}
    seen |= dict.fromkeys(unused - seen.keys(), now_s)
    due = [path for path, since in seen.items() if now_s - since >= grace_s]
    deleted = delete_files(table.io, due)
    waiting = {path: since for path, since in seen.items() if path not in set(due)}
    _note(table, waiting)
    return Swept(deleted, len(waiting))


def _without(paths: set[str], table: Table) -> set[str]:
    """``paths`` without those that a table needs."""
    used = {_plain(path) for path in _used(table)}
    return {path for path in paths if _plain(path) not in used}


def _others(table: Table, unused: set[str]) -> Iterator[Table]:
    """Other tables whose metadata is among ``unused``, as their newest metadata has them."""
    from pyiceberg.exceptions import ValidationError  # noqa: PLC0415 - as the next
    from pyiceberg.table import StaticTable  # noqa: PLC0415 - takes half a second to import

    newest: dict[UUID, Table] = {}
    for path in unused:
        if not path.endswith(".metadata.json"):
            continue
        try:
            found = StaticTable.from_metadata(path, table.io.properties)
        except (FileNotFoundError, ValidationError):
            continue  # swept by another, or left half written by a crash
        known = newest.get(found.metadata.table_uuid)
        if known is None or known.metadata.last_updated_ms < found.metadata.last_updated_ms:
            newest[found.metadata.table_uuid] = found
    newest.pop(table.metadata.table_uuid, None)
    yield from newest.values()


def delete_named(table: Table, label: str) -> int:
    """Delete the files whose names begin with ``label``, which nothing names; returns how many."""
    return delete_files(
        table.io, [path for path in stored_files(table) if file_name(path).startswith(label)]
    )


def stored_files(table: Table) -> Iterator[str]:
    """Every file in a table's folder."""
    location = table.location()
    io: Any = table.io
    parts = urlsplit(location)
    scheme, prefix = parts.scheme or "file", location
    root = local_path(location) or parts.netloc + parts.path
    filesystem = io.fs_by_scheme(scheme, parts.netloc or None)
    for info in filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True)):
        path = prefix + info.path[len(root) :]
        if info.type == FileType.File and not path.endswith("/" + NOTE):
            yield path


def _used(table: Table) -> Iterator[str]:
    """Every file that the table needs for any of its snapshots."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    yield from (each.statistics_path for each in table.metadata.statistics)
    yield from (each.statistics_path for each in table.metadata.partition_statistics)
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in read_whole_list(table.io, snapshot.manifest_list):
            path = manifest["manifest_path"]
            if path in seen:
                continue
            seen.add(path)
            yield path
            for entry in read_entries(table.io, manifest):
                yield entry["data_file"]["file_path"]


def _plain(path: str) -> str:
    """One spelling for ``/x``, ``file:/x`` and ``file:///x``."""
    return local_path(path) or path


def _noted(table: Table) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads(read_file(table.io, f"{table.location()}/{NOTE}"))
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _note(table: Table, waiting: dict[str, float]) -> None:
    path = f"{table.location()}/{NOTE}"
    if not waiting:
        delete_files(table.io, [path])
        return
    write_file(table.io, path, json.dumps(waiting).encode())
