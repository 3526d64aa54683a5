"""A stream's contract: the typed columns of its table, and how values are parsed into them.

The contract is kept in the table's properties and changes in one commit with the columns, so a
running pipeline never sees half of a change. Columns are bound to the fields of the values by field
id, so a renamed column needs no rewrite. The raw columns stay, so replay needs no contract.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import InvalidOption
from nexo.lake.failures import lake_errors
from nexo.lake.own_columns import ROWS
from nexo.lake.tables import COLUMNS, noted
from nexo.lake.typed.formats import ValueFormat, format_of, format_text
from nexo.lake.typed.kinds import Kind, arrow_type, parse, widened

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

FORMAT = f"{COLUMNS}.format"
PERMISSIVE, ADDITIONS = f"{COLUMNS}.permissive", f"{COLUMNS}.additions"
"""Table properties: how values are encoded, whether a field that does not fit leaves the others
alone, and whether new fields become columns."""
REJECTED, MISFITS = "rejected", "misfits"
"""Columns that say why a value was rejected, and which fields of a value were left out."""
MOST_SET = 1_000
"""Typed columns of a table."""


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """A field of the values and its column."""

    source: str
    field_id: int
    kind: str


@dataclass(frozen=True, slots=True)
class Terms:
    """How values are parsed; ``names`` maps field ids to the columns' names."""

    columns: Sequence[ParsedColumn]
    names: Mapping[int, str]
    permissive: bool = False
    """Whether a field that does not fit leaves the others of its value alone."""
    additions: bool = False
    """Whether to look for fields that have no column."""
    format: ValueFormat | None = None
    """How values are encoded; None for JSON."""


def columns_of(properties: Mapping[str, str]) -> list[ParsedColumn]:
    return [ParsedColumn(**row) for row in noted(properties, COLUMNS, "[]")]


def parser_of(table: Table) -> Terms | None:
    """What `Parser` needs for a table, in a form that can be sent; None without a contract."""
    return terms_of(table.properties, {each.field_id: each.name for each in table.schema().fields})


def terms_of(properties: Mapping[str, str], names: Mapping[int, str]) -> Terms | None:
    """The same for a table of these properties, whose columns have these names."""
    columns = [column for column in columns_of(properties) if column.field_id in names]
    found = Terms(
        columns,
        names,
        properties.get(PERMISSIVE) == "true",
        properties.get(ADDITIONS) == "true",
        format_of(properties.get(FORMAT)),
    )
    return found if columns or found.additions else None


# -- changes ---------------------------------------------------------------------------


def set_schema(table: Table, wanted: Mapping[str, str]) -> Table:
    """Give fields columns, ``{"amount": "double"}``: added, or widened if they exist.

    Columns that are not named stay. Nothing that is stored is rewritten.
    """
    return _alter(table, wanted, {})


def set_format(table: Table, value_format: ValueFormat | None, wanted: Mapping[str, str]) -> Table:
    """Read values of this format from now on, with ``wanted`` columns; None is JSON."""
    return _alter(table, wanted, {FORMAT: format_text(value_format)})


def set_permissive(table: Table, permissive: bool) -> Table:
    """Whether only a field that does not fit is left out, with the reason in ``misfits``."""
    return _alter(table, {}, {PERMISSIVE: str(permissive).lower()})


def set_additions(table: Table, additions: bool) -> Table:
    """Whether new fields of JSON values become columns by themselves."""
    if additions and format_of(table.properties.get(FORMAT)) is not None:
        raise InvalidOption("new fields are added from JSON values: others have them in a schema")
    return _alter(table, {}, {ADDITIONS: str(additions).lower()})


def _alter(table: Table, wanted: Mapping[str, str], properties: Mapping[str, str]) -> Table:
    """Change columns and properties in one commit."""
    with (
        lake_errors(f"cannot change the columns of {'.'.join(table.name())}"),
        table.transaction() as transaction,
    ):
        bound = _bind(transaction, wanted, _extra(table, wanted, properties))
        text = json.dumps([asdict(column) for column in bound])
        transaction.set_properties({COLUMNS: text, **properties})
    return table.refresh()


def _extra(table: Table, wanted: Mapping[str, str], properties: Mapping[str, str]) -> list[str]:
    """Columns for rejected values and misfits that the change needs."""
    needed = [REJECTED] if wanted or properties.get(ADDITIONS) == "true" else []
    if properties.get(PERMISSIVE) != "true":
        return needed
    names = {each.field_id: each.name.lower() for each in table.schema().fields}
    if MISFITS in {names.get(column.field_id) for column in columns_of(table.properties)}:
        raise InvalidOption(f"column {MISFITS!r} is a field of the values: rename it first")
    return [*needed, MISFITS]


def _bind(
    transaction: Transaction, wanted: Mapping[str, str], extra: Iterable[str]
) -> list[ParsedColumn]:
    """Add and widen columns; returns every column with its field."""
    metadata = transaction.table_metadata
    stored = {field.field_id: field.name for field in metadata.schema().fields}
    bound = {  # but for columns that were dropped, whose fields may have new ones
        column.source: column
        for column in columns_of(metadata.properties)
        if column.field_id in stored
    }
    kinds = {source: _kind(bound.get(source), source, kind) for source, kind in wanted.items()}
    if len(bound.keys() | kinds.keys()) > MOST_SET:
        raise InvalidOption(f"a table has at most {MOST_SET:,} typed columns")
    parts = [field.name for field in metadata.spec().fields]  # which columns cannot share
    names = _Names([*stored.values(), *parts])
    fields = [pa.field(names.take(name), pa.string()) for name in extra if name not in names]
    columns = {
        source: stored[bound[source].field_id] if source in bound else names.take(source)
        for source in kinds
    }
    fields += [pa.field(columns[source], arrow_type(kind)) for source, kind in kinds.items()]
    with transaction.update_schema() as update:
        update.union_by_name(pa.schema(fields))
    ids = {field.name: field.field_id for field in transaction.table_metadata.schema().fields}
    for source, kind in kinds.items():
        bound[source] = ParsedColumn(source, ids[columns[source]], str(kind))
    return list(bound.values())


def _kind(column: ParsedColumn | None, source: str, text: object) -> Kind:
    """A column's new type, checked against its present one."""
    if not isinstance(source, str):
        raise InvalidOption(f"{source!r} is not the name of a field")
    try:
        kind = parse(text)
    except InvalidOption as error:
        raise InvalidOption(f"column {source!r}: {error.message}") from None
    return kind if column is None else widened(parse(column.kind), kind, f"column {source!r}")


class _Names:
    """Names of columns; like SQL, it ignores case."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {name.lower() for name in (*taken, *ROWS.names)}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._taken

    def take(self, source: str) -> str:
        """Reserve a free name: the field's own if possible."""
        numbered = (f"value_{source}_{number}" for number in count(2))
        own = [source, f"value_{source}"] if source.strip() else [f"value_{source}"]
        name = next(name for name in chain(own, numbered) if self._is_free(name.lower()))
        self._taken.add(name.lower())
        return name

    def _is_free(self, name: str) -> bool:
        """Iceberg also names fields of structs by path: ``a.b`` must not mean two columns."""
        inside = any(each.startswith(f"{name}.") for each in self._taken)
        return not inside and not any(path in self._taken for path in _paths(name))


def _paths(name: str) -> Iterator[str]:
    """``a.b.c``, ``a.b`` and ``a``."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def rename(table: Table, old: str, new: str) -> Table:
    """Give a column another name; its field stays the same."""
    known = {field.field_id: field.name for field in table.schema().fields}
    if old not in {known.get(column.field_id) for column in columns_of(table.properties)}:
        raise InvalidOption(f"there is no typed column {old!r} to rename")
    if not new.strip():
        raise InvalidOption(f"column {old!r} needs a new name, such as {old}={old}_2")
    parts = [field.name for field in table.spec().fields]
    if new in _Names([*(name for name in known.values() if name != old), *parts]):
        raise InvalidOption(f"there is a column {new!r} already")
    with (
        lake_errors(f"cannot rename a column of {'.'.join(table.name())}"),
        table.update_schema() as update,
    ):
        update.rename_column((old,), new)
    return table.refresh()
