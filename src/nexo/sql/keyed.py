"""A table of rows by key as SQL shows it: with the changes that wait.

What they make of the rows is `nexo.lake.changes.overlay`; DuckDB finds the rows that they concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from nexo.lake.catalog import Lake
from nexo.lake.changes.events import shaped
from nexo.lake.changes.overlay import Overlay, overlay_of
from nexo.lake.changes.scd import KeyedRows
from nexo.lake.changes.terms import CHANGES_SUFFIX, STATE_SUFFIX, KeyTerms, terms_in
from nexo.lake.reading.stored import StoredTable, find_together
from nexo.lake.tables import USER
from nexo.sql.dialect import quoted_name
from nexo.sql.lake_files import LakeFiles, nothing
from nexo.sql.streams import copy_table


def made_query(
    connection: duckdb.DuckDBPyConnection,
    files: LakeFiles,
    lake: Lake,
    table: StoredTable,
    label: str,
) -> str:
    """The rows of a table that users' code fills; ``label`` begins the names of what it needs."""
    terms = terms_in(table.properties)
    found = None if terms is None else find_together(lake, beside(table.properties[USER]))
    if terms is None or found is None:
        return files.query(table) or nothing(table)
    return KeyedView(connection, files, terms, label).query(found)


def beside(name: str) -> list[str]:
    """A table's name, and those of what belongs to it; what changes alone is the last."""
    return [name, name + STATE_SUFFIX, name + CHANGES_SUFFIX]


@dataclass(frozen=True, slots=True)
class KeyedView:
    """Makes the query of one table of rows by key."""

    connection: duckdb.DuckDBPyConnection
    files: LakeFiles
    terms: KeyTerms
    label: str

    def query(self, tables: Sequence[StoredTable]) -> str:
        """The rows of the tables of `beside`, in SQL."""
        rows, state, changes = (self.files.query(each) or nothing(each) for each in tables)
        events = self._read(changes)
        if not events.num_rows:
            return rows
        key = quoted_name(self.terms.keys[0])
        removals = self._read(f"select * from ({state}) where {key} is null")
        # Columns are added to the state first, and to the changes then.
        found = overlay_of(self.terms, shaped(events, removals.schema), removals)
        keys, shown = f"{self.label}_keys", f"{self.label}_shown"
        copy_table(self.connection, keys, found.events.select(list(self.terms.keys)))
        copy_table(self.connection, shown, self._shown(found, rows, state, keys))
        newest = f"select * from {quoted_name(shown)}"
        if found.concerns_all:
            return newest
        return f"{self._joined('anti', rows, keys)} union all by name {newest}"

    def _shown(self, found: Overlay, rows: str, state: str, keys: str) -> pa.Table:
        """The rows of keys that have changed."""
        if not found.concerns_all:
            rows, state = (self._joined("semi", each, keys) for each in (rows, state))
        return found.shown(KeyedRows(self._read(rows), self._read(state)))

    def _joined(self, kind: str, query: str, keys: str) -> str:
        names = [quoted_name(each) for each in self.terms.keys]
        same = " and ".join(f"r.{each} = k.{each}" for each in names)
        return f"select r.* from ({query}) as r {kind} join {quoted_name(keys)} as k on {same}"

    def _read(self, query: str) -> pa.Table:
        return self.connection.execute(query).to_arrow_reader().read_all()
