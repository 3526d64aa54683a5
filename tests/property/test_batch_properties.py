"""Batches: what goes in comes out, whole, cut, thinned, compressed; nothing broken gets through."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo import batch as batches
from nexo.batch import Batch, BatchRecord, Compression, EntryParts
from nexo.errors import Corrupt, NexoError

COMPRESSIONS = st.sampled_from(Compression)


class Table(NamedTuple):
    values: list[bytes | None]
    types: int | list[int]
    timestamps: int | list[int]
    keys: list[bytes | None] | None
    headers: list[bytes] | None


T = TypeVar("T")


def _lists(n: int, item: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
    return st.lists(item, min_size=n, max_size=n)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    n = draw(st.integers(1, 20))
    blob = st.binary(max_size=12)
    stamp, kind = st.integers(0, 2**62), st.integers(0, 2)
    return Table(
        draw(_lists(n, blob | st.none())),
        draw(kind | _lists(n, kind)),
        draw(stamp | _lists(n, stamp)),
        draw(st.none() | _lists(n, blob | st.none())),
        draw(st.none() | _lists(n, blob)),
    )


def rows(table: Table, base: int = 0) -> list[BatchRecord]:
    n = len(table.values)
    types = [table.types] * n if isinstance(table.types, int) else table.types
    stamps = [table.timestamps] * n if isinstance(table.timestamps, int) else table.timestamps
    keys, headers = table.keys or [None] * n, table.headers or [b""] * n
    return [
        BatchRecord(base + i, stamps[i], keys[i], table.values[i], types[i], headers[i])
        for i in range(n)
    ]


def encoded(table: Table, compression: Compression = Compression.NONE) -> bytes:
    values, types, stamps, keys, headers = table
    return joined(
        batches.encode(values, types, stamps, keys=keys, headers=headers, compression=compression)
    )


def joined(entry: EntryParts) -> bytes:
    return bytes(entry[0]) + b"".join(entry[1])


@given(tables(), COMPRESSIONS)
def test_a_batch_gives_back_what_was_put_in(table: Table, compression: Compression) -> None:
    raw = encoded(table, compression)
    batch = batches.verify(raw)
    assert list(batch.records()) == rows(table)
    assert len(raw) % 8 == 0
    for i, row in enumerate(rows(table)):
        assert (batch.value(i), batch.key(i)) == (row.value, row.key)


@given(tables(), COMPRESSIONS, st.integers(-3, 25), st.integers(-3, 25))
def test_a_cut_holds_exactly_the_records_in_its_range(
    table: Table, compression: Compression, start: int, stop: int
) -> None:
    batch = batches.decode(encoded(table, compression))
    expected = [row for row in rows(table) if start <= row.offset < stop]
    part = batches.cut(batch, start, stop)
    assert (part is None) == (not expected)
    if part is not None:
        assert list(batches.verify(joined(part)).records()) == expected


@given(tables(), st.data())
def test_a_cut_of_a_cut_is_a_cut(table: Table, data: st.DataObject) -> None:
    low, a, b, high = sorted(data.draw(st.tuples(*[st.integers(0, 20)] * 4)))
    outer = batches.cut(batches.decode(encoded(table)), low, high)
    inner = outer and batches.cut(batches.decode(joined(outer)), a, b)
    direct = batches.cut(batches.decode(encoded(table)), a, b)
    assert _records(inner) == _records(direct)


@given(tables(), st.data(), st.integers(0, 20), st.integers(0, 20))
def test_a_thinned_batch_keeps_offsets_and_span_and_can_be_cut(
    table: Table, data: st.DataObject, start: int, stop: int
) -> None:
    n = len(table.values)
    kept = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    thin = batches.verify(joined(batches.select(batches.decode(encoded(table)), kept)))
    assert list(thin.records()) == [rows(table)[i] for i in kept]
    assert thin.header.span == n
    part = batches.cut(thin, start, stop)
    assert _records(part) == [rows(table)[i] for i in kept if start <= i < stop]


@given(tables(), COMPRESSIONS, st.data())
def test_a_batch_cut_short_anywhere_is_refused(
    table: Table, compression: Compression, data: st.DataObject
) -> None:
    raw = encoded(table, compression)
    size = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(Corrupt):
        batches.verify(raw[:size])


@given(tables(), COMPRESSIONS, st.data())
def test_a_flipped_bit_anywhere_is_noticed(
    table: Table, compression: Compression, data: st.DataObject
) -> None:
    raw = bytearray(encoded(table, compression))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        batches.verify(bytes(raw))


@given(tables(), COMPRESSIONS, st.data())
def test_a_body_of_garbage_with_a_right_checksum_raises_only_our_errors(
    table: Table, compression: Compression, data: st.DataObject
) -> None:
    raw = bytearray(encoded(table, compression))
    for at in data.draw(st.lists(st.integers(64, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    header = batches.decode(encoded(table, compression)).header
    try:
        batch = Batch(header, bytes(raw[64:]), max_bytes=2**16)
        batch.check()
        list(batch.records())
    except NexoError:
        pass


@given(tables(), st.integers(0, 2**40), st.integers(0, 2**40))
def test_retimed_records_never_go_back_in_time(table: Table, floor: int, width: int) -> None:
    batch = batches.verify(
        joined(batches.retime(batches.decode(encoded(table)), floor, floor + width))
    )
    stamps = list(batch.timestamps())
    assert stamps == sorted(stamps)
    assert floor <= stamps[0]
    assert stamps[-1] <= floor + width
    assert batch.values() == table.values


def _records(entry: EntryParts | None) -> list[BatchRecord]:
    return list(batches.verify(joined(entry)).records()) if entry else []
