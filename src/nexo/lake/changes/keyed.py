"""The three tables of rows by key: made together, found together, removed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from nexo.errors import Conflict, InvalidInput, Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.changes.buckets import bucket_counts, buckets_of, divide
from nexo.lake.changes.events import SEQUENCE, event_schema
from nexo.lake.changes.merge import KeyedTable
from nexo.lake.changes.scd import END_AT, START_AT
from nexo.lake.changes.terms import (
    CHANGES_SUFFIX,
    STATE_SUFFIX,
    KeyTerms,
    terms_in,
)
from nexo.lake.tables import BESIDE, TERMS
from nexo.lake.user_tables import (
    TableShape,
    ensure_user_table,
    find_user_table,
    get_user_table,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table

BUCKETS = 16
"""Of a table for which nothing else is said."""
_KEPT = {"history.expire.min-snapshots-to-keep": "10"}
"""Each merge writes files anew, so that old snapshots take much room."""
_ATTEMPTS = 20
_NO_BUCKET = (pa.types.is_floating, pa.types.is_boolean, pa.types.is_nested)


def row_columns(columns: pa.Schema, sequence: pa.DataType | None, *, history: bool) -> pa.Schema:
    """The columns of a table of rows by key; without a sequence, rows count as they come."""
    if history:
        return pa.schema([*columns, pa.field(START_AT, sequence), pa.field(END_AT, sequence)])
    return columns if sequence is None else pa.schema([*columns, pa.field(SEQUENCE, sequence)])


def check_keys(name: str, columns: pa.Schema, keys: Sequence[str]) -> None:
    """`InvalidInput` if rows of these columns cannot be told apart by these keys."""
    if not keys:
        raise InvalidInput(f"table {name!r}: name at least one column of the key")
    for key in keys:
        if key not in columns.names:
            known = ", ".join(columns.names)
            raise InvalidInput(
                f"table {name!r} has no column {key!r} for its key: known are {known}"
            )
        kind = columns.field(key).type
        if any(test(kind) for test in _NO_BUCKET):
            raise InvalidInput(f"column {key!r} of table {name!r} is {kind}, which is no key")


def _bucket_fields(keys: Sequence[str], buckets: int) -> list[str]:
    """How a table is divided."""
    counts = bucket_counts(keys, buckets)
    return [f"bucket({count}, {key})" for key, count in zip(keys, counts, strict=False)]


def ensure_keyed(
    lake: Lake,
    name: str,
    columns: pa.Schema,
    sequence: pa.DataType | None,
    terms: KeyTerms,
    shape: TableShape | None = None,
    buckets: int = BUCKETS,
) -> KeyedTable:
    """A table of rows by key and those beside it, made if missing; new columns are added to all.

    `Conflict` if the table has other keys, or is no such table.
    """
    check_keys(name, columns, terms.keys)
    shape = shape or TableShape()
    if shape.partitions:
        raise InvalidInput(f"table {name!r} is divided by its keys, not by {shape.partitions[0]!r}")
    known = find_user_table(lake, name)
    if known is not None:
        _check_terms(known, name, terms)
    _check_beside(lake, name)
    parts = _bucket_fields(terms.keys, buckets)
    given = {**_KEPT, **shape.properties, TERMS: msgspec.json.encode(terms).decode()}
    rows = ensure_user_table(
        lake,
        name,
        row_columns(columns, sequence, history=terms.history),
        TableShape(parts, (), shape.comment, given),
    )
    events = event_schema(columns, sequence or pa.int64())
    beside = {**_KEPT, **shape.properties, BESIDE: name}
    state = ensure_user_table(
        lake, name + STATE_SUFFIX, events, TableShape(parts, properties=beside)
    )
    changes = ensure_user_table(
        lake, name + CHANGES_SUFFIX, events, TableShape(properties=beside)
    )  # small batches stay undivided
    divide(changes, terms.keys, bucket_counts(terms.keys, buckets_of(rows)))
    return KeyedTable(rows, state, changes, terms)


def _check_beside(lake: Lake, name: str) -> None:
    for suffix in (STATE_SUFFIX, CHANGES_SUFFIX):
        known = find_user_table(lake, name + suffix)
        if known is not None and known.properties.get(BESIDE) != name:
            raise Conflict(
                f"table {name + suffix!r} is in the way of table {name!r}, which keeps changes "
                "there: give one of them another name"
            )


def _check_terms(table: Table, name: str, terms: KeyTerms) -> None:
    known = terms_in(table.properties)
    if known is None:
        raise Conflict(
            f"table {name!r} is no table of rows by key: give the new one another name, or make it "
            "anew with --full"
        )
    if known != terms:
        raise Conflict(
            f"table {name!r} is kept by {_said(known)}, not by {_said(terms)}: make it anew with "
            "--full"
        )


def _said(terms: KeyTerms) -> str:
    kept = "all versions" if terms.history else "the newest row"
    return f"the key {', '.join(terms.keys)}, with {kept}"


def find_keyed(lake: Lake, name: str) -> KeyedTable | None:
    """A table of rows by key with those beside it; None if there is none of that name."""
    rows = find_user_table(lake, name)
    terms = None if rows is None else terms_in(rows.properties)
    if rows is None or terms is None:
        return None
    state, changes = (
        get_user_table(lake, name + suffix) for suffix in (STATE_SUFFIX, CHANGES_SUFFIX)
    )
    return KeyedTable(rows, state, changes, terms)


def keyed_at_once(lake: Lake, name: str) -> KeyedTable | None:
    """The same, as the three were at one moment: that when the changes were read."""
    for _ in range(_ATTEMPTS):
        found = find_keyed(lake, name)
        if found is None or all(_is_newest(each) for each in (found.rows, found.state)):
            return found
    raise Unavailable(f"table {name!r} changed {_ATTEMPTS} times while it was read: ask again")


def _is_newest(table: Table) -> bool:
    return table.catalog.load_table(table.name()).metadata_location == table.metadata_location
