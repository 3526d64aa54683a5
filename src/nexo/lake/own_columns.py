"""The columns of every stream's table: the one list that files, SQL and Spark read.

DuckDB's and Spark's types follow from these (`nexo.sql.dialect.duck_type`,
`pyspark_nexo.types.spark_type`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

_TEXT, _BYTES, _INT, _LONG = pa.string(), pa.binary(), pa.int32(), pa.int64()
_HEADER = pa.struct([("key", _TEXT), ("value", _BYTES)])


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """A column of every stream's table."""

    name: str
    kind: pa.DataType
    """In data files and in Spark, which takes it without conversion."""
    iceberg: tuple[str, ...]
    """As Iceberg calls it, and what other programs may widen it to."""
    logged: pa.DataType | None
    """In batches of the log; None for what their place says."""
    must: bool = False
    """Whether batches of the log always have a value."""
    written: tuple[pa.DataType, ...] = ()
    """What rows may have that Spark publishes; none for what the broker gives."""
    has_bounds: bool = False
    """Whether every file has its bounds, by which readers skip files."""
    repeats: bool = False
    """Whether it has few different values."""


OWN_COLUMNS = (
    OwnColumn(
        "partition", _INT, ("int", "long"), None,
        written=(_INT, _LONG), has_bounds=True, repeats=True,
    ),
    OwnColumn("offset", _LONG, ("long",), _LONG, must=True, has_bounds=True),
    OwnColumn(
        "timestamp", pa.timestamp("us", "UTC"), ("timestamptz",), pa.timestamp("ms", "UTC"),
        must=True, has_bounds=True,
    ),
    OwnColumn("key", _BYTES, ("binary",), _BYTES, written=(_TEXT, _BYTES)),
    OwnColumn("value", _BYTES, ("binary",), _BYTES, written=(_TEXT, _BYTES)),
    OwnColumn("headers", _TEXT, ("string",), _BYTES, written=(_TEXT, pa.list_(_HEADER))),
    OwnColumn(
        "value_type", _INT, ("int", "long"), pa.uint8(),
        must=True, written=(_INT,), repeats=True,
    ),
)  # fmt: skip
"""``headers`` is a JSON object, null for none; ``value_type`` is 0 raw, 1 text, 2 JSON."""
ROWS = pa.schema([(each.name, each.kind) for each in OWN_COLUMNS])
LOGGED = pa.schema(
    [
        pa.field(each.name, each.logged, nullable=not each.must)
        for each in OWN_COLUMNS
        if each.logged is not None
    ]
)
FIELD_IDS = {each.name: number for number, each in enumerate(OWN_COLUMNS, 1)}
"""By column: its field id in every table, by which it is known though others rename it."""
