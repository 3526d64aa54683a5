"""Rows that other programs marked as deleted beside a table's files, as Iceberg's position deletes.

A delete file names data files by path, and the positions of rows in them. Files of version 2's
other kind (equality deletes), and those of version 3, are refused: a table must not show rows that
somebody deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import Conflict
from nexo.lake.paths import local_path
from nexo.lake.schema import marked, projected
from nexo.lake.tables import PATH_ID, POSITION_DELETES

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

# ruff: noqa: PLC0415 - slow to import, and only some tables need it

_IDS = {"file_path": PATH_ID, "pos": 2147483545}
_COLUMNS = marked(
    pa.schema([pa.field("file_path", pa.string()), pa.field("pos", pa.int64())]), _IDS
)


def check_deletes(label: str, content: int, file_format: str) -> None:
    """`Conflict` if rows of a table are marked as deleted in a way that is not understood."""
    if content != POSITION_DELETES or file_format.upper() != "PARQUET":
        kind = "equality deletes" if content != POSITION_DELETES else f"{file_format} files"
        raise Conflict(
            f"rows of table {label} are marked as deleted by {kind}, which Nexo cannot read: have "
            "the program that did so rewrite the data files (in Spark: CALL "
            "system.rewrite_data_files with delete-file-threshold 1), and delete with "
            "copy-on-write or position deletes"
        )


class DeletedRows:
    """The deleted rows of data files; each delete file is read once.

    Without ``io`` all files are on this machine.
    """

    def __init__(self, io: FileIO | None = None) -> None:
        self._io = io
        self._read: dict[str, pa.Table] = {}

    def of(self, path: str, delete_files: Sequence[str]) -> pa.Array | None:
        """The positions of deleted rows of a data file; None if there are none."""
        if not delete_files:
            return None
        import pyarrow.compute as pc

        found = [
            rows.column("pos").filter(pc.equal(rows.column("file_path"), plain_path(path)))
            for rows in map(self._rows, delete_files)
        ]
        positions = pa.chunked_array([chunk for each in found for chunk in each.chunks], pa.int64())
        return positions.combine_chunks() if len(positions) else None

    def named(self, delete_file: str) -> set[str]:
        """The data files that it names, by their plain paths."""
        return set(self._rows(delete_file).column("file_path").to_pylist())

    def _rows(self, delete_file: str) -> pa.Table:
        import pyarrow.parquet as pq

        if delete_file not in self._read:
            io = self._io
            source = io.new_input(delete_file).open() if io else plain_path(delete_file)
            with pq.ParquetFile(source) as file:
                rows = projected(file.read(), _COLUMNS)
            paths = rows.column("file_path").to_pylist()
            plain = pa.array([plain_path(each) for each in paths], pa.string())
            self._read[delete_file] = rows.set_column(0, "file_path", plain)
        return self._read[delete_file]


def plain_path(path: str) -> str:
    """One spelling for ``/x``, ``file:/x`` and ``file:///x``."""
    return local_path(path) or path


def without(rows: pa.Table, first: int, deleted: pa.Array | None) -> pa.Table:
    """``rows``, of which the first is at this position of its file, without deleted ones."""
    if deleted is None or not rows.num_rows:
        return rows
    import pyarrow.compute as pc

    positions = pa.array(range(first, first + rows.num_rows), pa.int64())
    return rows.filter(pc.invert(pc.is_in(positions, value_set=deleted)))
