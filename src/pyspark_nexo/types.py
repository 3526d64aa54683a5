"""Arrow types as Spark's."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from nexo.lake.schema import field_id_of

FIELD_ID = "parquet.field.id"
"""What Spark calls the id by which a column is found in a Parquet file."""


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of the same values; PySpark's own conversion drops the ids of fields."""
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_struct(kind):
        return spark_schema(kind)
    return from_arrow_type(kind)


def spark_schema(fields: pa.Schema | pa.StructType) -> StructType:
    """Columns, or the fields of a struct, with their ids if they have any."""
    return StructType([_spark_field(field) for field in fields])


def _spark_field(field: pa.Field) -> StructField:
    found = field_id_of(field)
    marked = None if found is None else {FIELD_ID: found}
    return StructField(field.name, spark_type(field.type), True, marked)
