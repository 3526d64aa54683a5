"""Table schemas: Iceberg's and Arrow's view of the same columns, bound by field id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField, PrimitiveType

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

FIELD_ID = b"PARQUET:field_id"


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Arrow columns as Iceberg ones, field ids from 1."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    numbered = enumerate(columns, 1)
    marked = [field.with_metadata({FIELD_ID: str(number)}) for number, field in numbered]
    return pyarrow_to_schema(pa.schema(marked))


def arrow_type(kind: IcebergType) -> pa.DataType:
    """The Arrow type for an Iceberg one, with 32-bit lengths as Spark wants them."""
    from pyiceberg import types

    match kind:
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case types.ListType():
            return pa.list_(_arrow_field(kind.element_field))
        case types.MapType():
            return pa.map_(
                _arrow_field(kind.key_field).with_nullable(False), _arrow_field(kind.value_field)
            )
        case types.StructType():
            return pa.struct([_arrow_field(each) for each in kind.fields])
    return next(arrow for arrow, iceberg in _pairs().items() if iceberg == kind)


def _arrow_field(field: NestedField) -> pa.Field:
    """A column, or a part of one, marked with its id."""
    marked = {FIELD_ID: str(field.field_id).encode()}
    return pa.field(field.name, arrow_type(field.field_type), metadata=marked)


@cache
def _pairs() -> dict[pa.DataType, PrimitiveType]:
    from pyiceberg import types

    return {
        pa.bool_(): types.BooleanType(), pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(), pa.float32(): types.FloatType(),
        pa.float64(): types.DoubleType(), pa.string(): types.StringType(),
        pa.binary(): types.BinaryType(), pa.date32(): types.DateType(),
        pa.timestamp("us", tz="UTC"): types.TimestamptzType(),
    }  # fmt: skip


def file_schema(schema: Schema) -> pa.Schema:
    """What data files of a table are written with: its columns, marked with their ids."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


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

    Columns are matched by field id where ``schema`` has ids, else by name.
    """
    by_id = {field_id_of(field): field.name for field in stored}
    names = set(stored.names)

    def source(field: pa.Field) -> str | None:
        if field_id_of(field) is not None:
            return by_id.get(field_id_of(field))
        return field.name if field.name in names else None

    return [source(field) for field in schema]


def projected(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` of a data file as ``schema``: renamed, widened, and with nulls for new columns."""
    return arranged(rows, schema, sources(rows.schema, schema))


def arranged(rows: pa.Table, schema: pa.Schema, names: Sequence[str | None]) -> pa.Table:
    """The columns of these names as those of ``schema``; nulls for what has no name."""
    columns = []
    for field, name in zip(schema, names, strict=True):
        if name is None:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
        else:
            column = rows.column(name)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def field_id_of(field: pa.Field) -> int | None:
    """The id that a column is marked with."""
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)
