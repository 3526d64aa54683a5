"""The data files of a lake's tables as DuckDB reads them.

Columns are matched by field id, so that renamed, widened and added columns are read correctly.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa

from nexo.lake.failures import lake_errors
from nexo.lake.paths import local_path
from nexo.lake.reading.deletes import DeletedRows
from nexo.lake.reading.stored import (
    StoredField,
    StoredFile,
    StoredTable,
    is_plain,
    unmarked_columns,
)
from nexo.sql.dialect import duck_type, literal, quoted_name
from nexo.sql.streams import copy_table


@dataclass
class LakeFiles:
    """Makes queries of data files, and knows which files they read."""

    connection: duckdb.DuckDBPyConnection
    paths: list[str] = field(default_factory=list)
    _deleted: int = 0
    """Files with deleted rows so far."""

    def query(self, table: StoredTable) -> str | None:
        """A query of a table's data files, matched by field id; None if it has none."""
        with lake_errors(f"cannot read table {table.name}"):
            found = table.files()
        if not found:
            return None
        if local_path(found[0].path) is None:
            _make_readable(self.connection, table.io(), found[0].path)
        self.paths.extend(local_path(each.path) or each.path for each in found)
        fields = ", ".join(
            f"{each.field_id}: {{name: {literal(each.name)}, "
            f"type: {literal(duck_type(each.kind))}, default_value: NULL}}"
            for each in table.fields
        )
        read = f"schema = MAP {{{fields}}}"
        plain = ", ".join(_address(each.path) for each in found if is_plain(each))
        parts = [f"select * from read_parquet([{plain}], {read})"] if plain else []
        with lake_errors(f"cannot read table {table.name}"):
            parts += [self._foreign(table, each, read) for each in found if not is_plain(each)]
        return " union all ".join(parts)

    def _foreign(self, table: StoredTable, file: StoredFile, read: str) -> str:
        """A query of a file that another program wrote, or has deleted rows of."""
        io = None if local_path(file.path) else table.io()
        names = unmarked_columns(io, file.path)
        given = "" if names is not None else f", {read}"
        numbered = f"read_parquet([{_address(file.path)}]{given}, file_row_number = true)"
        left = ""
        if (positions := DeletedRows(io).of(file.path, file.deletes)) is not None:
            self._deleted += 1
            deleted = f"__deleted_{self._deleted}"
            copy_table(self.connection, deleted, pa.table({"pos": positions}))
            left = f' where file_row_number not in (select pos from "{deleted}")'
        if names is None:
            columns = "* exclude (file_row_number)"
        else:
            columns = ", ".join(_by_name(table.fields, names))
        return f"select {columns} from {numbered}{left}"


def _make_readable(connection: duckdb.DuckDBPyConnection, io: Any, path: str) -> None:
    """Let DuckDB read the object store of ``path``.

    It uses the file system that PyIceberg made from the catalog's settings, so that credentials are
    configured once.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415 - only if need be

    parts = urlsplit(path)
    if connection.filesystem_is_registered(parts.scheme):
        return

    class Wrapped(ArrowFSWrapper):  # type: ignore[misc]
        protocol = parts.scheme
        cachable = False

    connection.register_filesystem(Wrapped(io.fs_by_scheme(parts.scheme, parts.netloc)))


def nothing(table: StoredTable) -> str:
    columns = ", ".join(
        f"null::{duck_type(each.kind)} as {quoted_name(each.name)}" for each in table.fields
    )
    return f"select {columns} where false"


def _by_name(fields: Sequence[StoredField], names: Container[str]) -> Iterator[str]:
    """The columns of a table in a file that has only names for them."""
    for each in fields:
        source = quoted_name(each.name) if each.name in names else "null"
        yield f"{source}::{duck_type(each.kind)} as {quoted_name(each.name)}"


def _address(path: str) -> str:
    return literal(local_path(path) or path)
