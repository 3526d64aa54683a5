"""Table schemas: Iceberg's and Arrow's view of the same columns, bound by field id."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.lake.rows import ROWS

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, PrimitiveType

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

FIELD_ID = b"PARQUET:field_id"


def raw_schema() -> Schema:
    """The table of a stream without a given schema: `ROWS`, field ids from 1."""
    return iceberg_schema(ROWS)


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Arrow columns as Iceberg ones."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    return Schema(
        *(
            NestedField(number, field.name, iceberg_type(field.type), required=False)
            for number, field in enumerate(columns, 1)
        )
    )


def iceberg_type(kind: pa.DataType) -> PrimitiveType:
    """The Iceberg type that holds an Arrow type of ours."""
    return _pairs()[kind]


def arrow_type(kind: IcebergType) -> pa.DataType:
    """The Arrow type for an Iceberg one, with 32-bit lengths as Spark wants them."""
    return next(arrow for arrow, iceberg in _pairs().items() if iceberg == kind)


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
    return pa.schema(
        [
            pa.field(
                field.name,
                arrow_type(field.field_type),
                metadata={FIELD_ID: str(field.field_id).encode()},
            )
            for field in schema.fields
        ]
    )


def sources(stored: pa.Schema, schema: pa.Schema) -> list[str | None]:
    """For each column of ``schema``, the column of a data file that holds it; None if none does.

    Columns are matched by field id where ``schema`` has ids, else by name.
    """
    by_id = {_id(field): field.name for field in stored}
    names = set(stored.names)

    def source(field: pa.Field) -> str | None:
        if _id(field) is not None:
            return by_id.get(_id(field))
        return field.name if field.name in names else None

    return [source(field) for field in schema]


def projected(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` of a data file as ``schema``: renamed, widened, and with nulls for new columns."""
    columns = []
    for field, name in zip(schema, sources(rows.schema, schema), strict=True):
        if name is None:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
        else:
            columns.append(rows.column(name).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)
