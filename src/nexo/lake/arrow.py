"""A batch as an Arrow record batch, wrapped in place: no value is copied."""

from __future__ import annotations

from array import array
from functools import cache

import pyarrow as pa

from nexo.batch import Batch
from nexo.batch.columns import Strings
from nexo.errors import Corrupt
from nexo.lake.own_columns import LOGGED
from nexo.storage.header import ALIGN

# ruff: noqa: PLC0415 - pyarrow.compute takes longer to import than most SQL queries, see `as_stored`


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """The records of ``batch`` as `LOGGED`; the result keeps the batch's buffer alive.

    ``headers`` are JSON text, null for none.

    Every offset is checked, because Arrow itself trusts what it is given: `Corrupt` if bad.
    """
    body = pa.py_buffer(batch.body)
    return _columns(batch, body, _offsets(batch), _headers(batch, body))


def as_stored(batch: Batch) -> pa.RecordBatch:
    """The same without ``pyarrow.compute``: headers are empty for none, and buffers are aligned."""
    body = pa.py_buffer(batch.body)
    if body.address % ALIGN:
        body = pa.py_buffer(bytes(batch.body))
    offsets = _int64s(array("q", batch.offsets), pa.int64())
    return _columns(batch, body, offsets, _strings(batch, body, batch.layout.headers, -1))


def _columns(batch: Batch, body: pa.Buffer, offsets: pa.Array, headers: pa.Array) -> pa.RecordBatch:
    columns = [
        offsets,
        _timestamps(batch, body),
        _strings(batch, body, batch.layout.keys, batch.layout.key_valid),
        _strings(batch, body, batch.layout.values, batch.layout.value_valid),
        headers,
        _types(batch, body),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOGGED)


def _int64s(numbers: array[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _offsets(batch: Batch) -> pa.Array:
    if batch.layout.deltas >= 0:
        return _int64s(array("q", batch.offsets), pa.int64())
    import pyarrow.compute as pc

    return pc.add(counting(len(batch)), batch.base_offset)


_COUNT = 65_536


@cache
def _first_numbers() -> pa.Array:
    return _int64s(array("q", range(_COUNT)), pa.int64())


def counting(n: int) -> pa.Array:
    """The numbers below ``n``; cached, because counting in Python costs more than all the rest."""
    if n <= _COUNT:
        return _first_numbers().slice(0, n)
    return _int64s(array("q", range(n)), pa.int64())


def _timestamps(batch: Batch, body: pa.Buffer) -> pa.Array:
    kind, n, at = LOGGED.field("timestamp").type, len(batch), batch.layout.timestamps
    if at < 0:
        return _int64s(array("q", [batch.header.first_ms]) * n, kind)
    return pa.Array.from_buffers(kind, n, [None, body.slice(at, 8 * n)])


def _types(batch: Batch, body: pa.Buffer) -> pa.Array:
    n, at = len(batch), batch.layout.value_types
    types = pa.py_buffer(bytes([batch.header.value_type]) * n) if at < 0 else body.slice(at, n)
    return pa.Array.from_buffers(pa.uint8(), n, [None, types])


def _strings(batch: Batch, body: pa.Buffer, column: Strings | None, valid_at: int) -> pa.Array:
    n = len(batch)
    if column is None:
        return pa.nulls(n, pa.binary())
    valid = None if valid_at < 0 else body.slice(valid_at, (n + 7) // 8)
    offsets = _from_zero(body.slice(column.offsets, 4 * (n + 1)), n, column.first)
    content = body.slice(column.content, column.size)
    return _validated(pa.Array.from_buffers(pa.binary(), n, [valid, offsets, content]))


def _from_zero(offsets: pa.Buffer, n: int, first: int) -> pa.Buffer:
    """Offsets counted from the content's start; the offsets of a cut batch begin later."""
    if not first:
        return offsets
    import pyarrow.compute as pc

    numbers = pa.Array.from_buffers(pa.int32(), n + 1, [None, offsets])
    return pc.subtract(numbers, pa.scalar(first, pa.int32())).buffers()[1]


def _headers(batch: Batch, body: pa.Buffer) -> pa.Array:
    texts = _strings(batch, body, batch.layout.headers, -1)
    if batch.layout.headers is None:
        return texts
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(pc.binary_length(texts), 0), None, texts)


def _validated(column: pa.Array) -> pa.Array:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Corrupt(f"a column of the batch is malformed: {error}") from None
    return column
