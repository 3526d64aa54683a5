"""Typed columns: JSON values taken apart into columns of the stream's own table.

The raw columns stay, so replay never depends on a schema. A value that does not fit leaves its
typed columns null, or in permissive mode only those of the fields that do not fit, and says why in
``rejected``: those rows are the stream's dead letters. Columns
are bound to JSON fields by field id, so renaming one rewrites nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa

from nexo.errors import InvalidOption
from nexo.lake.catalog import as_ours
from nexo.lake.rows import ROWS
from nexo.lake.schema import iceberg_type

if TYPE_CHECKING:
    from pyiceberg.table import Table

COLUMNS, PERMISSIVE = "nexo.columns", "nexo.columns.permissive"
"""Table properties: the columns, and whether a field that does not fit leaves the others alone."""
REJECTED = "rejected"

_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MOST_FLOAT = (2 - 2**-23) * 2.0**127
_FLOAT = Annotated[float, msgspec.Meta(ge=-_MOST_FLOAT, le=_MOST_FLOAT)]
KINDS: dict[str, tuple[Any, pa.DataType]] = {
    "boolean": (bool, pa.bool_()),
    "int": (_INT, pa.int32()),
    "long": (_LONG, pa.int64()),
    "float": (_FLOAT, pa.float32()),
    "double": (float, pa.float64()),
    "string": (str, pa.string()),
    "date": (date, pa.date32()),
    "timestamp": (datetime, pa.timestamp("us", tz="UTC")),
    "json": (msgspec.Raw, pa.string()),
}
"""What a column may be: how its JSON is read, and how it is stored."""

_WIDER = {("int", "long"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """A JSON field and the column it goes to."""

    source: str
    field_id: int
    kind: str


def columns_of(properties: Mapping[str, str]) -> list[ParsedColumn]:
    """A table's typed columns."""
    return [ParsedColumn(**row) for row in json.loads(properties.get(COLUMNS, "[]"))]


# -- the schema ------------------------------------------------------------------------


def set_schema(table: Table, wanted: Mapping[str, str]) -> Table:
    """Have JSON fields as columns, ``{"amount": "double"}``: added, or widened if they exist.

    Columns that are not named stay. Nothing that is stored is rewritten. Columns and the fields
    they are bound to change in one commit, so that a running pipeline never sees half of it.
    """
    stored_names = {field.field_id: field.name for field in table.schema().fields}
    bound = {  # but for columns that were dropped, whose fields may have new ones
        column.source: column
        for column in columns_of(table.properties)
        if column.field_id in stored_names
    }
    changes = [_change(bound.get(source), source, kind) for source, kind in wanted.items()]
    names = _Names(table.schema().column_names)
    made: dict[str, str] = {}
    with (
        as_ours(f"cannot change the columns of {'.'.join(table.name())}"),
        table.transaction() as transaction,
    ):
        with transaction.update_schema() as update:
            if REJECTED not in names:
                update.add_column(names.take(REJECTED), iceberg_type(pa.string()))
            for column, source, kind in filter(None, changes):
                stored = iceberg_type(KINDS[kind][1])
                if column is None:
                    made[source] = names.take(source)
                    update.add_column((made[source],), stored)
                else:
                    update.update_column((stored_names[column.field_id],), stored)
        ids = {field.name: field.field_id for field in transaction.table_metadata.schema().fields}
        for source, kind in wanted.items():
            field_id = ids[made[source]] if source in made else bound[source].field_id
            bound[source] = ParsedColumn(source, field_id, kind)
        text = json.dumps([asdict(column) for column in bound.values()])
        transaction.set_properties({COLUMNS: text})
    return table.refresh()


class _Names:
    """Names of columns, told apart as SQL does: in any case."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {name.lower() for name in (*taken, *ROWS.names)}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._taken

    def take(self, source: str) -> str:
        """A name that is free, from now on taken: the field's own where possible."""
        numbered = (f"value_{source}_{number}" for number in count(2))
        own = [source, f"value_{source}"] if source.strip() else [f"value_{source}"]
        name = next(name for name in chain(own, numbered) if name not in self)
        self._taken.add(name.lower())
        return name


def _change(
    column: ParsedColumn | None, source: str, kind: str
) -> tuple[ParsedColumn | None, str, str] | None:
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidOption(f"column {source!r}: {kind!r} is not one of {', '.join(KINDS)}")
    if column is None:
        return None, source, kind
    if column.kind == kind:
        return None
    if (column.kind, kind) not in _WIDER:
        raise InvalidOption(
            f"column {source!r} is {column.kind} and cannot become {kind}: only int to long and "
            "float to double keep what is stored; drop the column first (in PyIceberg: "
            "update_schema().delete_column), the raw values stay"
        )
    return column, source, kind


def rename(table: Table, old: str, new: str) -> Table:
    """Give a column another name; its JSON field stays the same."""
    known = {field.field_id: field.name for field in table.schema().fields}
    if old not in {known.get(column.field_id) for column in columns_of(table.properties)}:
        raise InvalidOption(f"there is no typed column {old!r} to rename")
    if not new.strip():
        raise InvalidOption(f"column {old!r} needs a new name, such as {old}={old}_2")
    if new in _Names(name for name in known.values() if name != old):
        raise InvalidOption(f"there is a column {new!r} already")
    with (
        as_ours(f"cannot rename a column of {'.'.join(table.name())}"),
        table.update_schema() as update,
    ):
        update.rename_column((old,), new)
    return table.refresh()


MOST_COLUMNS = 200
"""Columns that are inferred at most; the fields that occur most often have them."""


def infer(values: Iterable[bytes | None]) -> dict[str, str]:
    """Columns that fit the JSON objects among ``values``; what varies is kept as ``json``."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for value in values:
        try:
            record = json.loads(value or b"")
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            for source, item in record.items():
                if item is not None:
                    kind = _kind(item)
                    found[source] = _common(found.get(source, kind), kind)
                    counts[source] += 1
    kept = {source for source, _ in counts.most_common(MOST_COLUMNS)}
    return {source: kind for source, kind in found.items() if source in kept}


def _kind(item: object) -> str:
    match item:
        case bool():
            return "boolean"
        case int():
            return "long" if -(2**63) <= item < 2**63 else "json"
        case float():
            return "double"
        case str():
            return _kind_of_text(item)
    return "json"


def _kind_of_text(text: str) -> str:
    """``date`` or ``timestamp`` for what is written as ISO 8601 says."""
    for kind in ("date", "timestamp"):
        try:
            msgspec.convert(text, KINDS[kind][0])
        except msgspec.ValidationError:
            continue
        return kind
    return "string"


def _common(left: str, right: str) -> str:
    if left == right:
        return left
    kinds = {left, right}
    if kinds <= {"string", "date", "timestamp"}:
        return "string"
    return "double" if kinds == {"long", "double"} else "json"


# -- the values ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """How values are taken apart; ``names`` maps field ids to the columns' names."""

    columns: Sequence[ParsedColumn]
    names: Mapping[int, str]
    permissive: bool = False
    """Whether a field that does not fit leaves the others of its value alone."""


class Parser:
    """Adds typed columns to rows."""

    def __init__(self, terms: Terms) -> None:
        columns = terms.columns
        self._columns = [(terms.names[each.field_id], KINDS[each.kind][1]) for each in columns]
        fields = [
            (f"f{n}", _optional(column.kind), msgspec.field(name=column.source, default=None))
            for n, column in enumerate(columns)
        ]
        record = msgspec.defstruct("Record", fields)
        self._empty = msgspec.structs.astuple(record())
        self._decode = msgspec.json.Decoder(record).decode
        self._finished = [
            (number, column.source, _FINISH[column.kind])
            for number, column in enumerate(columns)
            if column.kind in _FINISH
        ]
        self._fields = [_Field(column) for column in columns] if terms.permissive else []

    def add_to(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the typed columns and ``rejected``."""
        reasons: list[str | None] = []
        records = [self._items(value, reasons) for value in rows.column("value").to_pylist()]
        for number, (name, kind) in enumerate(self._columns):
            items = [record[number] for record in records]
            rows = rows.append_column(name, pa.array(items, kind))
        return rows.append_column(REJECTED, pa.array(reasons, pa.string()))

    def _items(self, value: bytes | None, reasons: list[str | None]) -> Sequence[Any]:
        """A value's fields; none, and the reason, of one that does not fit."""
        items: Sequence[Any] = self._empty
        reason = None
        if value is not None:
            try:
                items = self._finish(msgspec.structs.astuple(self._decode(value)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                items, reason = self._fitting(value, str(error))
            except RecursionError:
                reason = "JSON is nested too deeply"
        reasons.append(reason)
        return items

    def _fitting(self, value: bytes, reason: str) -> tuple[Sequence[Any], str]:
        """The fields that fit, if that is wanted, and what is wrong with the others."""
        if not self._fields:
            return self._empty, reason
        try:
            raw = _objects(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._empty, reason
        found = [each.read(raw) for each in self._fields]
        return [item for item, _ in found], "; ".join(why for _, why in found if why)

    def _finish(self, items: Sequence[Any]) -> Sequence[Any]:
        if not self._finished:
            return items
        done = list(items)
        for number, source, finish in self._finished:
            try:
                done[number] = finish(items[number])
            except (UnicodeDecodeError, OverflowError) as error:
                raise msgspec.DecodeError(f"{error} - at `$.{source}`") from None
        return done


def _optional(kind: str) -> Any:
    read = KINDS[kind][0]
    return read if read is msgspec.Raw else read | None


def _text(item: msgspec.Raw | None) -> str | None:
    text = None if item is None else bytes(item).decode()
    return None if text == "null" else text


def _utc(item: datetime | None) -> datetime | None:
    """A time without a zone is in UTC."""
    if item is None:
        return None
    return item.astimezone(UTC) if item.tzinfo is not None else item.replace(tzinfo=UTC)


_FINISH: dict[str, Callable[[Any], Any]] = {"json": _text, "timestamp": _utc}
"""What is left to do once a value is read, and may fail."""


_objects = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Field:
    """One field of a JSON object, read by itself."""

    def __init__(self, column: ParsedColumn) -> None:
        self._source = column.source
        self._decode = msgspec.json.Decoder(_optional(column.kind)).decode
        self._finish = _FINISH.get(column.kind)

    def read(self, raw: Mapping[str, msgspec.Raw]) -> tuple[Any, str]:
        """Its item, or None and what is wrong with it."""
        if self._source not in raw:
            return None, ""
        try:
            item = self._decode(raw[self._source])
            return (item if self._finish is None else self._finish(item)), ""
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
            return None, f"{error} - at `$.{self._source}`"


def set_permissive(table: Table, permissive: bool) -> Table:
    """Whether a field that does not fit leaves the others alone, from now on."""
    with (
        as_ours(f"cannot change table {'.'.join(table.name())}"),
        table.transaction() as transaction,
    ):
        transaction.set_properties({PERMISSIVE: str(permissive).lower()})
    return table.refresh()


def parser_of(table: Table) -> Terms | None:
    """What `Parser` needs for a table, in a form that travels; None without typed columns."""
    return terms_of(table.properties, {each.field_id: each.name for each in table.schema().fields})


def terms_of(properties: Mapping[str, str], names: Mapping[int, str]) -> Terms | None:
    """The same for a table of these properties, whose columns have these names."""
    columns = [column for column in columns_of(properties) if column.field_id in names]
    permissive = properties.get(PERMISSIVE) == "true"
    return Terms(columns, names, permissive) if columns else None


def parsed(tables: Iterable[pa.Table], terms: Terms | None) -> Iterator[pa.Table]:
    """Rows with their typed columns, if there are any."""
    if terms is None:
        yield from tables
        return
    parser = Parser(terms)
    for table in tables:
        yield parser.add_to(table)
