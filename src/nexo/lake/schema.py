"""Table schemas: the same columns for Iceberg and for Arrow, matched by field id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

_FIELD_ID = b"PARQUET:field_id"


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Arrow columns as Iceberg ones, field ids from 1."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    numbered = enumerate(columns, 1)
    marked = [field.with_metadata({_FIELD_ID: str(number)}) for number, field in numbered]
    return pyarrow_to_schema(pa.schema(marked))


def file_schema(schema: Schema) -> pa.Schema:
    """The schema of a table's data files: its columns, marked with their ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([_short(field) for field in schema_to_pyarrow(schema)])


def _short(field: pa.Field) -> pa.Field:
    """A column, or a part of one, with 32-bit lengths as Spark wants them; it may be null."""
    return field.with_type(_short_type(field.type)).with_nullable(True)


def _short_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_short(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_short(kind.key_field).with_nullable(False), _short(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_short(each) for each in kind])
    return kind


def leaf_ids(field: pa.Field) -> Iterator[int]:
    """The ids of a column's plain parts, in the order in which Parquet stores them."""
    kind = field.type
    if pa.types.is_list(kind):
        yield from leaf_ids(kind.value_field)
    elif pa.types.is_map(kind):
        yield from leaf_ids(kind.key_field)
        yield from leaf_ids(kind.item_field)
    elif pa.types.is_struct(kind):
        for each in kind:
            yield from leaf_ids(each)
    elif (found := field_id_of(field)) is not None:
        yield found


def sources(stored: pa.Schema, schema: pa.Schema) -> list[str | None]:
    """For each column of ``schema``, the column of a data file that holds it; None if none does.

    Columns are matched by field id where both have ids, else by name.
    """
    by_id = {found: field.name for field in stored if (found := field_id_of(field)) is not None}
    names = set(stored.names)

    def source(field: pa.Field) -> str | None:
        if by_id and (number := field_id_of(field)) is not None:
            return by_id.get(number)
        return field.name if field.name in names else None

    return [source(field) for field in schema]


def projected(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` of a data file as ``schema``: renamed, widened, and with nulls for new columns."""
    return arranged(rows, schema, sources(rows.schema, schema))


def arranged(rows: pa.Table, schema: pa.Schema, names: Sequence[str | None]) -> pa.Table:
    """The columns of these names, as ``schema`` has them; nulls where the name is None."""
    columns = []
    for field, name in zip(schema, names, strict=True):
        if name is None:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
        else:
            column = rows.column(name)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def marked(schema: pa.Schema, ids: Mapping[str, int]) -> pa.Schema:
    """``schema`` with these ids for columns of these names that have none."""
    return pa.schema(
        [
            field.with_metadata({_FIELD_ID: str(ids[field.name])})
            if field.name in ids and field_id_of(field) is None
            else field
            for field in schema
        ]
    )


def field_id_of(field: pa.Field) -> int | None:
    """The id that a column is marked with."""
    found = (field.metadata or {}).get(_FIELD_ID)
    return None if found is None else int(found)
