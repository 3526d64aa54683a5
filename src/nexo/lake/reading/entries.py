"""Rows of the lake as entries of the log again, so that consumers cannot tell the tiers apart."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from nexo.batch import MIXED
from nexo.batch.columns import Column, padded
from nexo.lake.arrow import counting
from nexo.storage.header import seal

_LAST_TYPE = 2
"""The highest type that a value of the lake has (`nexo.lake.own_columns.ROWS`)."""


def to_entry(rows: pa.Table) -> bytes:
    """``rows`` (`nexo.lake.own_columns.ROWS`, one partition, in offset order) as one entry."""
    rows = rows.combine_chunks()
    offsets, stamps_ms = _column(rows, "offset"), _millis(rows)
    first, last, count = offsets[0].as_py(), offsets[-1].as_py(), len(offsets)
    columns = Column.TIMESTAMPS | Column.VALUE_TYPES | Column.HEADERS | Column.KEYS
    values, keys = _column(rows, "value"), _column(rows, "key")
    body = [*_fixed(stamps_ms, 8), *_strings(values)]
    if values.null_count:
        columns |= Column.VALUE_NULLS
        body += _validity(values)
    body += _fixed(_types(rows), 1)
    body += [*_validity(keys), *_strings(keys)]
    body += _strings(pc.fill_null(_column(rows, "headers").cast(pa.binary()), b""))
    if last - first + 1 != count:
        columns |= Column.DELTAS
        deltas = pc.subtract(offsets, first).cast(pa.int32())
        body += _fixed(deltas, 4)
    head = seal(
        body, count=count, span=last - first + 1, base_offset=first, columns=columns,
        first_ms=stamps_ms[0].as_py(), last_ms=pc.max(stamps_ms).as_py(), value_type=MIXED,
    )  # fmt: skip
    return b"".join([bytes(head), *body])


def _column(rows: pa.Table, name: str) -> pa.Array:
    """One array that starts at the start of its buffers."""
    column = rows.column(name)
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return array if array.offset == 0 else array.take(counting(len(array)))


def _millis(rows: pa.Table) -> pa.Array:
    return pc.divide(pc.fill_null(_column(rows, "timestamp").cast(pa.int64()), 0), 1_000)


def _types(rows: pa.Table) -> pa.Array:
    """Types of values; another program may have written any number, or none."""
    kinds = pc.fill_null(_column(rows, "value_type"), 0)
    known = pc.and_(pc.greater_equal(kinds, 0), pc.less_equal(kinds, _LAST_TYPE))
    return pc.if_else(known, kinds, 0).cast(pa.uint8())


def _fixed(array: pa.Array, width: int) -> list[bytes]:
    return padded(array.buffers()[1][: width * len(array)].to_pybytes())


def _strings(array: pa.Array) -> list[bytes]:
    offsets = array.buffers()[1][: 4 * (len(array) + 1)].to_pybytes()
    ends = memoryview(offsets).cast("i")
    content = array.buffers()[2]
    raw = content[ends[0] : ends[-1]].to_pybytes() if content is not None else b""
    return [*padded(offsets), *padded(raw)]


def _validity(array: pa.Array) -> list[bytes]:
    size, bits = (len(array) + 7) // 8, array.buffers()[0]
    return padded(b"\xff" * size if bits is None else bits[:size].to_pybytes())
