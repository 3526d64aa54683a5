"""Batches wrapped for Arrow hold the same records, without copying values."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from nexo import batch as batches  # noqa: E402
from nexo.errors import Corrupt  # noqa: E402
from nexo.lake.arrow import as_stored, to_arrow  # noqa: E402
from nexo.lake.own_columns import LOGGED  # noqa: E402
from nexo.storage import header  # noqa: E402


def joined(entry: batches.EntryParts) -> bytes:
    return bytes(entry[0]) + b"".join(entry[1])


def sample() -> batches.Batch:
    entry = batches.encode(
        [b"one", None, b"", b"four"],
        [0, 1, 2, 1],
        [10, 11, 11, 12],
        keys=[b"k", None, b"", b"kk"],
        headers=[b'{"a":"b"}', b"", b"", b"{}"],
    )
    return batches.decode(joined(entry))


def rows(batch: batches.Batch) -> list[tuple[object, ...]]:
    return [
        (r.offset, r.timestamp_ms, r.key, r.value, r.headers or None, r.value_type)
        for r in batch.records()
    ]


def arrow_rows(batch: batches.Batch) -> list[tuple[object, ...]]:
    table = to_arrow(batch)
    assert table.schema == LOGGED
    stamps = table.column("timestamp").cast(pa.int64())
    columns = [table.column(name) for name in table.schema.names]
    columns[1] = stamps
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_arrow_shows_the_same_records() -> None:
    assert arrow_rows(sample()) == rows(sample())


def test_a_plain_batch_and_a_cut_one_are_shown_alike() -> None:
    plain = batches.decode(joined(batches.encode_plain([b"a", b"bb", b"ccc"], 1, 5)))
    part = batches.cut(sample(), 1, 4)
    assert part is not None
    for batch in (plain, batches.decode(joined(part))):
        assert arrow_rows(batch) == rows(batch)


def test_a_batch_as_it_is_stored_has_aligned_buffers_and_empty_headers() -> None:
    entry = joined(batches.encode([b"one", None], 1, 10, headers=[b"{}", b""]))
    for shift in range(8):
        batch = batches.decode(memoryview(b"x" * shift + entry)[shift:])
        found = as_stored(batch)
        assert found.column("headers").to_pylist() == [b"{}", b""]
        assert found.drop_columns(["headers"]) == to_arrow(batch).drop_columns(["headers"])
        buffers = [each for column in found.columns for each in column.buffers() if each]
        assert not any(each.address % 8 for each in buffers)


def test_values_are_not_copied() -> None:
    batch = sample()
    body = pa.py_buffer(batch.body)
    content = to_arrow(batch).column("value").buffers()[2]
    assert body.address <= content.address < body.address + body.size


def test_offsets_that_lead_outside_are_refused() -> None:
    _, body = batches.encode_plain([b"aa", b"bb"], 0, 1)
    body[0] = body[0][:4] + (9).to_bytes(4, "little") + body[0][8:]
    forged = header.seal(body, count=2, first_ms=1, last_ms=1)
    with pytest.raises(Corrupt):
        to_arrow(batches.decode(bytes(forged) + b"".join(body)))
