"""A table that grows, read as a stream: what each commit added, by its sequence number.

A commit that replaces rows cannot be read so: what readers saw before is no longer true. Files that
Nexo merged can (`nexo.lake.maintenance.grown`): each of their rows says which commit added it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import Conflict
from nexo.lake.manifests import DATA, AvroRecord, read_list
from nexo.lake.once import REPLACED
from nexo.lake.reading.ordered import row_groups
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.schema import marked
from nexo.lake.tables import USER, check_version, newest_snapshot, read_point
from nexo.lake.writing.modes import live_entries

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

_ADDED_BY_ID = 2147483539
_ADDED_BY = "_nexo_added_by"
ADDED_BY = marked(pa.schema([pa.field(_ADDED_BY, pa.int64())]), {_ADDED_BY: _ADDED_BY_ID}).field(0)
"""The column of a merged file that says which commit added a row."""
MERGED = "nexo.merged"
"""In the summary of a snapshot that only merged files: the last one that changed rows."""


@dataclass(frozen=True, slots=True)
class GrownPart:
    """A file with rows of commits after ``after``, up to ``until``; all of its rows if None."""

    path: str
    deletes: tuple[str, ...] = ()
    between: tuple[int, int] | None = None

    def rows(self, io: FileIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows, row group by row group."""
        if self.between is None:
            yield from row_groups(io, self.path, schema, self.deletes)
            return
        import pyarrow.compute as pc  # noqa: PLC0415 - slow, and few readers need it

        after, until = self.between
        for rows in row_groups(io, self.path, pa.schema([*schema, ADDED_BY]), self.deletes):
            number = rows.column(rows.num_columns - 1)
            wanted = pc.and_(pc.greater(number, after), pc.less_equal(number, until))
            yield rows.filter(wanted).select(schema.names)


def newest_position(table: Table) -> int:
    """Where a reader is that has read all of a table."""
    return read_point(table)


def rows_version(table: Table) -> str:
    """What changes with a table's rows, and not when files are merged."""
    found = newest_snapshot(table)
    if found is None:
        return "None"
    return str((found.summary and found.summary.get(MERGED)) or found.snapshot_id)


def commits_of(entry: AvroRecord) -> tuple[int, int]:
    """The oldest and the newest commit whose rows a file holds."""
    newest = int(entry["sequence_number"])
    for pair in entry["data_file"].get("lower_bounds") or ():
        if pair["key"] == _ADDED_BY_ID:
            return int.from_bytes(pair["value"], "little", signed=True), newest
    return newest, newest


def added_between(table: Table, after: int, until: int) -> list[tuple[GrownPart, int]]:
    """The files whose rows were added after one position, up to another one, with their sizes.

    A reader that begins, with ``after`` 0, reads the table as it is. `Conflict` if rows that were
    read have been replaced since.
    """
    name = table.properties.get(USER) or ".".join(table.name())
    check_version(name, table.metadata.format_version)
    rewritten = {
        each.snapshot_id
        for each in table.metadata.snapshots
        if (each.sequence_number or 0) > after
        and each.summary is not None
        and each.summary.operation.value in ("replace", "overwrite", "delete")
        and each.summary.get(MERGED) is None
    }
    if after and (rewritten or int(table.properties.get(REPLACED, "0")) > after):
        raise Conflict(
            f"rows of table {name!r} were replaced, so it cannot be read as a stream from where "
            "this reader was: read it as a table, or begin anew (--full)"
        )
    return _parts(list(live_entries(table)), _deletes(table), after, until)


def _deletes(table: Table) -> Mapping[str, tuple[str, ...]]:
    """Which files mark rows of a data file as deleted; other programs write those."""
    snapshot = newest_snapshot(table)
    lists = [] if snapshot is None else read_list(table.io, snapshot.manifest_list)
    if all(each["content"] == DATA for each in lists):
        return {}
    return {each.path: each.deletes for each in file_ranges(table)}


def _parts(
    entries: Sequence[AvroRecord], deletes: Mapping[str, tuple[str, ...]], after: int, until: int
) -> list[tuple[GrownPart, int]]:
    found = []
    for entry in sorted(entries, key=lambda each: int(each["sequence_number"])):
        oldest, newest = commits_of(entry)
        if newest <= after or oldest > until:
            continue
        between = None if after < oldest and newest <= until else (after, until)
        file = entry["data_file"]
        path = str(file["file_path"])
        part = GrownPart(path, deletes.get(path, ()), between)
        found.append((part, int(file["file_size_in_bytes"])))
    return found
