"""Arrow types as Spark's."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nexo.lake.schema import field_id_of

FIELD_ID = "parquet.field.id"
"""What Spark calls the id by which a column is found in a Parquet file."""
_PLAIN: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(), pa.int32(): IntegerType(), pa.int64(): LongType(),
    pa.float32(): FloatType(), pa.float64(): DoubleType(), pa.string(): StringType(),
    pa.binary(): BinaryType(), pa.date32(): DateType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}  # fmt: skip


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of the same values."""
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_struct(kind):
        return StructType([spark_field(each) for each in kind])
    return _PLAIN[kind]


def spark_field(field: pa.Field) -> StructField:
    """A column, or a field of a struct, with its id if it has one."""
    found = field_id_of(field)
    marked = None if found is None else {FIELD_ID: found}
    return StructField(field.name, spark_type(field.type), True, marked)
