"""Small files of users' tables, merged beside those who read the tables as streams.

A streaming reader's place is the number of a commit. A merged file counts as added by the newest
commit whose rows it holds, and has a column that no schema names, with the commit of each row: a
reader that is between two of them takes the rows that it lacks (`nexo.lake.reading.growing`).
The column's id is the one that Iceberg's format 3 reserves for just that.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nexo.errors import Corrupt
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io, target
from nexo.lake.manifests import partition_values
from nexo.lake.paths import delete_files
from nexo.lake.reading.deletes import DeletedRows
from nexo.lake.reading.growing import ADDED_BY, commits_of
from nexo.lake.reading.ordered import row_groups
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.rows import chunked
from nexo.lake.tables import BESIDE, TERMS
from nexo.lake.user_tables import SORT
from nexo.lake.writing.modes import live_entries

if TYPE_CHECKING:
    from pyiceberg.table import Table

LABEL = "merged"
_ROW_GROUP = 512 * 1024
"""Rows of a merged file that are read at once."""


@dataclass(frozen=True, slots=True)
class GrownFile:
    """A data file of a users' table."""

    path: str
    size_bytes: int
    rows: int
    commit: int
    """The newest whose rows it holds."""
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrownRewrite:
    """Files of one part of a table that become one."""

    table: str
    where: Target
    files: tuple[GrownFile, ...]
    sort: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.files]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)

    def run(self) -> list[DataFileFacts]:
        """Write the rows; `Corrupt` if not all of them can be read."""
        schema = pa.schema([*self.where.schema, ADDED_BY])
        made = FileWriter(replace(self.where, schema=schema), LABEL).save(self._rows(schema))
        count, wanted = sum(facts.count for facts in made), sum(each.rows for each in self.files)
        if count != wanted and not any(each.deletes for each in self.files):
            delete_files(file_io(self.where), [facts.path for facts in made])
            raise Corrupt(
                f"{wanted} rows of table {self.table} were to be merged, and {count} were: the "
                "files stay as they are"
            )
        newest = max(each.commit for each in self.files)
        for facts in made:
            facts.commit = newest
        return made

    def _rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        found = (
            batch
            for file in self.files
            for rows in row_groups(file_io(self.where), file.path, schema, file.deletes)
            for batch in _numbered(rows, file.commit).to_batches()
        )
        if not self.sort:
            yield from chunked(found, _ROW_GROUP)
            return
        order = [(name, "ascending") for name in self.sort]
        rows = pa.Table.from_batches(list(found), schema).sort_by(order)
        for first in range(0, rows.num_rows, _ROW_GROUP):
            yield rows.slice(first, _ROW_GROUP)


def _numbered(rows: pa.Table, commit: int) -> pa.Table:
    """Rows with the commit that added them; those of a merged file have it."""
    place = rows.num_columns - 1
    numbers = pc.fill_null(rows.column(place), commit)
    return rows.set_column(place, ADDED_BY, numbers)


def grown_rewrites(
    table: Table, small_bytes: int, target_bytes: int, min_files: int
) -> Iterator[GrownRewrite]:
    """Files in which another program marked rows as deleted, then small ones, oldest first.

    Tables of rows by key are merged by who writes them.
    """
    if not {TERMS, BESIDE}.isdisjoint(table.properties) or ADDED_BY.name in _names(table):
        return
    where, name = target(table), ".".join(table.name())
    wanted = json.loads(table.properties.get(SORT, "[]"))
    sort = tuple(each for each in wanted if each in _names(table))
    for files, least in _parts(table):
        for some in _bins(files, small_bytes, target_bytes, least or min_files):
            yield GrownRewrite(name, where, tuple(some), sort)


def _names(table: Table) -> list[str]:
    return [each.name for each in table.schema().fields]


def _parts(table: Table) -> Iterator[tuple[list[GrownFile], int]]:
    """The files of each part of a table, and how few are worth merging; 0 for what is usual."""
    deleted = DeletedRows(table.io)
    marked = {
        each.path: each.deletes
        for each in file_ranges(table)
        if deleted.of(each.path, each.deletes) is not None
    }
    parts = defaultdict[tuple[object, ...], list[GrownFile]](list)
    for entry in live_entries(table):
        file = entry["data_file"]
        path = str(file["file_path"])
        part = (path not in marked, entry["spec_id"], *partition_values(file))
        parts[part].append(
            GrownFile(
                path, int(file["file_size_in_bytes"]), int(file["record_count"]),
                commits_of(entry)[1], marked.get(path, ()),
            )
        )  # fmt: skip
    for part in sorted(parts, key=lambda each: (each[0], str(each))):
        files = sorted(parts[part], key=lambda each: (each.commit, each.path))
        yield files, 0 if part[0] else 1


def _bins(
    files: Sequence[GrownFile], small_bytes: int, target_bytes: int, least: int
) -> Iterator[list[GrownFile]]:
    """Files that are merged together."""
    some, size = list[GrownFile](), 0
    for each in files:
        if each.size_bytes >= small_bytes and not each.deletes:
            continue
        if some and size + each.size_bytes > target_bytes:
            if len(some) >= least:
                yield some
            some, size = [], 0
        some.append(each)
        size += each.size_bytes
    if len(some) >= least:
        yield some
