"""Typed columns: JSON values taken apart into columns of the stream's own table.

The raw columns stay, so replay never depends on a schema. A value that does not fit leaves its
typed columns null and says why in ``rejected``: those rows are the stream's dead letters. Columns
are bound to JSON fields by field id, so renaming one rewrites nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa

from nexo.errors import InvalidOption
from nexo.lake.catalog import as_ours
from nexo.lake.rows import ROWS
from nexo.lake.schema import iceberg_type

if TYPE_CHECKING:
    from pyiceberg.table import Table

COLUMNS = "nexo.columns"
REJECTED = "rejected"

_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
KINDS: dict[str, tuple[Any, pa.DataType]] = {
    "boolean": (bool, pa.bool_()),
    "int": (_INT, pa.int32()),
    "long": (_LONG, pa.int64()),
    "float": (float, pa.float32()),
    "double": (float, pa.float64()),
    "string": (str, pa.string()),
    "date": (date, pa.date32()),
    "timestamp": (datetime, pa.timestamp("us", tz="UTC")),
    "json": (msgspec.Raw, pa.string()),
}
"""What a column may be: how its JSON is read, and how it is stored."""

_WIDER = {("int", "long"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class Column:
    """A JSON field and the column it goes to."""

    source: str
    field_id: int
    kind: str


def columns_of(properties: Mapping[str, str]) -> list[Column]:
    """A table's typed columns."""
    return [Column(**row) for row in json.loads(properties.get(COLUMNS, "[]"))]


# -- the schema ------------------------------------------------------------------------


def set_schema(table: Table, wanted: Mapping[str, str]) -> Table:
    """Have JSON fields as columns, ``{"amount": "double"}``: added, or widened if they exist.

    Columns that are not named stay. Nothing that is stored is rewritten.
    """
    known = {column.source: column for column in columns_of(table.properties)}
    changes = [_change(known.get(source), source, kind) for source, kind in wanted.items()]
    with as_ours(f"cannot change the columns of {'.'.join(table.name())}"):
        with table.update_schema() as update:
            if REJECTED not in table.schema().column_names:
                update.add_column(REJECTED, iceberg_type(pa.string()))
            for column, source, kind in filter(None, changes):
                stored = iceberg_type(KINDS[kind][1])
                if column is None:
                    update.add_column(_free_name(table, source), stored)
                else:
                    name = table.schema().find_column_name(column.field_id)
                    update.update_column(name or source, stored)
        return _bind(table.refresh(), known, wanted)


def _change(column: Column | None, source: str, kind: str) -> tuple[Column | None, str, str] | None:
    if kind not in KINDS:
        raise InvalidOption(f"column {source!r}: {kind!r} is not one of {', '.join(KINDS)}")
    if column is None:
        return None, source, kind
    if column.kind == kind:
        return None
    if (column.kind, kind) not in _WIDER:
        raise InvalidOption(
            f"column {source!r} is {column.kind} and cannot become {kind}: only int to long and "
            "float to double keep what is stored; rename the old column and add a new one"
        )
    return column, source, kind


def _free_name(table: Table, source: str) -> str:
    taken = {*ROWS.names, REJECTED, *table.schema().column_names}
    return f"value_{source}" if source in taken else source


def _bind(table: Table, known: Mapping[str, Column], wanted: Mapping[str, str]) -> Table:
    def field_id(source: str) -> int:
        if source in known:
            return known[source].field_id
        names = table.schema().column_names
        taken = source in ROWS.names or source == REJECTED
        name = source if source in names and not taken else f"value_{source}"
        return int(table.schema().find_field(name).field_id)

    bound = dict(known) | {
        source: Column(source, field_id(source), kind) for source, kind in wanted.items()
    }
    text = json.dumps([asdict(column) for column in bound.values()])
    with table.transaction() as transaction:
        transaction.set_properties({COLUMNS: text})
    return table.refresh()


def rename(table: Table, old: str, new: str) -> Table:
    """Give a column another name; its JSON field stays the same."""
    typed = {table.schema().find_column_name(c.field_id) for c in columns_of(table.properties)}
    if old not in typed:
        raise InvalidOption(f"there is no typed column {old!r} to rename")
    if new in table.schema().column_names:
        raise InvalidOption(f"there is a column {new!r} already")
    with (
        as_ours(f"cannot rename a column of {'.'.join(table.name())}"),
        table.update_schema() as update,
    ):
        update.rename_column(old, new)
    return table.refresh()


def infer(values: Iterable[bytes | None]) -> dict[str, str]:
    """Columns that fit the JSON objects among ``values``; what varies is kept as ``json``."""
    found: dict[str, str] = {}
    for value in values:
        try:
            record = json.loads(value or b"")
        except ValueError:
            continue
        if isinstance(record, dict):
            for source, item in record.items():
                if item is not None:
                    kind = _kind(item)
                    found[source] = _common(found.get(source, kind), kind)
    return found


def _kind(item: object) -> str:
    match item:
        case bool():
            return "boolean"
        case int():
            return "long"
        case float():
            return "double"
        case str():
            return "string"
    return "json"


def _common(left: str, right: str) -> str:
    if left == right:
        return left
    return "double" if {left, right} == {"long", "double"} else "json"


# -- the values ------------------------------------------------------------------------


class Parser:
    """Adds typed columns to rows. ``names`` maps field ids to the columns' names."""

    def __init__(self, columns: Sequence[Column], names: Mapping[int, str]) -> None:
        self._columns = [(names[column.field_id], KINDS[column.kind][1]) for column in columns]
        fields = [
            (f"f{n}", _optional(column.kind), msgspec.field(name=column.source, default=None))
            for n, column in enumerate(columns)
        ]
        self._record = msgspec.defstruct("Record", fields)
        self._empty = self._record()
        self._decode = msgspec.json.Decoder(self._record).decode

    def add_to(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the typed columns and ``rejected``."""
        reasons: list[str | None] = []
        records = [self._record_of(value, reasons) for value in rows.column("value").to_pylist()]
        for number, (name, kind) in enumerate(self._columns):
            items = [_plain(getattr(record, f"f{number}")) for record in records]
            rows = rows.append_column(name, pa.array(items, kind))
        return rows.append_column(REJECTED, pa.array(reasons, pa.string()))

    def _record_of(self, value: bytes | None, reasons: list[str | None]) -> Any:
        if value is None:
            reasons.append(None)
            return self._empty
        try:
            record = self._decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reasons.append(str(error))
            return self._empty
        reasons.append(None)
        return record


def _optional(kind: str) -> Any:
    read = KINDS[kind][0]
    return read if read is msgspec.Raw else read | None


def _plain(item: Any) -> Any:
    if not isinstance(item, msgspec.Raw):
        return item
    text = bytes(item).decode()
    return None if text == "null" else text


def parser_of(table: Table) -> tuple[list[Column], dict[int, str]] | None:
    """What `Parser` needs for a table, in a form that travels; None without typed columns."""
    columns = columns_of(table.properties)
    if not columns:
        return None
    names = {field.field_id: field.name for field in table.schema().fields}
    return columns, names


def parsed(
    tables: Iterable[pa.Table], terms: tuple[list[Column], dict[int, str]] | None
) -> Iterator[pa.Table]:
    """Rows with their typed columns, if there are any."""
    if terms is None:
        yield from tables
        return
    parser = Parser(*terms)
    for table in tables:
        yield parser.add_to(table)
