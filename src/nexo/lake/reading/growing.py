"""A table that grows, read as a stream: what each commit added, by its sequence number.

A commit that replaces rows cannot be read so: what readers saw before is no longer true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexo.errors import Conflict
from nexo.lake.once import REPLACED
from nexo.lake.reading.ordered import SourceFile
from nexo.lake.tables import USER, check_version, read_point
from nexo.lake.writing.modes import live_entries

if TYPE_CHECKING:
    from pyiceberg.table import Table


def newest_position(table: Table) -> int:
    """Where a reader is that has read all of a table."""
    return read_point(table)


def added_between(table: Table, after: int, until: int) -> list[tuple[SourceFile, int]]:
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
    }
    if after and (rewritten or int(table.properties.get(REPLACED, "0")) > after):
        raise Conflict(
            f"rows of table {name!r} were replaced, so it cannot be read as a stream from where "
            "this reader was: read it as a table, or begin anew (--full)"
        )
    entries = sorted(live_entries(table), key=lambda each: int(each["sequence_number"]))
    return [
        (
            SourceFile(str(entry["data_file"]["file_path"])),
            int(entry["data_file"]["file_size_in_bytes"]),
        )
        for entry in entries
        if after < int(entry["sequence_number"]) <= until
    ]
