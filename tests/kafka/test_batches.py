"""Kafka's record batches as bodies of our entries (SPEC L3)."""

from __future__ import annotations

from typing import TypeAlias

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from nexo.batch import decode, encode, verify
from nexo.batch.kafka import check_kafka, parse_kafka, wrap
from nexo.batch.kafka_write import gap, to_kafka
from nexo.errors import Corrupt, InvalidInput
from nexo.storage.header import stamp

Row: TypeAlias = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def kafka_batch(rows: list[Row], compression: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1_000_000)
    for index, (time_ms, key, value, headers) in enumerate(rows):
        builder.append(index, time_ms, key, value, headers)
    return bytes(builder.build())


def stored(batch: bytes, offset: int = 7) -> bytes:
    head, body = wrap(parse_kafka(batch), batch)
    stamp(head, offset)
    return bytes(head) + b"".join(body)


ROWS: list[Row] = [
    (1_000, b"k", b"v", [("a", b"1"), ("b", None)]),
    (1_001, None, None, []),
    (1_001, b"", b"", [("a", b"1"), ("a", b"2")]),
    (1_005, b"x" * 300, b"y" * 70_000, []),
]


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_a_batch_of_kafka_has_the_columns_of_its_records(compression: int) -> None:
    batch = verify(stored(kafka_batch(ROWS, compression)))
    assert batch.is_kafka
    assert batch.keys() == [b"k", None, b"", b"x" * 300]
    assert batch.values() == [b"v", None, b"", b"y" * 70_000]
    assert batch.headers() == [b'{"a":"1","b":null}', b"", b'{"a":"2"}', b""]
    assert list(batch.timestamps()) == [1_000, 1_001, 1_001, 1_005]
    assert list(batch.offsets) == [7, 8, 9, 10]
    assert not batch.is_kafka


def test_snappy_in_the_frames_of_java_is_read_too() -> None:
    plain = kafka_batch(ROWS[:1])
    block = bytes(cramjam.snappy.compress_raw(plain[61:]))
    framed = b"\x82SNAPPY\x00" + bytes(8) + len(block).to_bytes(4, "big") + block
    head = bytearray(plain[:61])
    head[8:12] = (49 + len(framed)).to_bytes(4, "big")
    head[22] = 2
    assert decode(stored(bytes(head) + framed)).values() == [b"v"]


records = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
    ),
    min_size=1,
    max_size=20,
)


@given(records)
def test_our_batches_are_read_by_a_kafka_client_as_they_are(
    rows: list[tuple[int, bytes | None, bytes | None]],
) -> None:
    stamps, keys, values = (list(column) for column in zip(*rows, strict=True))
    head, body = encode(
        values, 0, stamps, keys=keys, headers=[b'{"h":"\xc3\xa9","n":1}'] * len(rows)
    )
    stamp(head, 2**40)
    raw = to_kafka(decode(bytes(head) + b"".join(body)))
    read = DefaultRecordBatch(raw)
    assert read.validate_crc()
    assert [(r.timestamp, r.key, r.value) for r in read] == rows
    read = DefaultRecordBatch(raw)
    assert [r.offset for r in read] == list(range(2**40, 2**40 + len(rows)))
    assert all(
        list(r.headers) == [("h", "é".encode()), ("n", b"1")] for r in DefaultRecordBatch(raw)
    )


def test_a_gap_is_a_control_batch_that_covers_its_offsets() -> None:
    read = DefaultRecordBatch(gap(10, 5))
    assert read.validate_crc()
    assert read.is_control_batch
    assert (read.base_offset, read.last_offset_delta) == (10, 4)


@given(st.data())
def test_any_damage_is_found_when_a_batch_enters(data: st.DataObject) -> None:
    raw = bytearray(kafka_batch(ROWS[:3]))
    at = data.draw(st.integers(16, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((Corrupt, InvalidInput)):
        verify(stored(bytes(raw)))


@given(st.binary(max_size=200), st.integers(0, 4))
def test_records_that_cannot_be_read_are_shown_as_such(junk: bytes, compression: int) -> None:
    head = bytearray(kafka_batch(ROWS[:3])[:61])
    head[8:12] = (49 + len(junk)).to_bytes(4, "big")
    head[22] = compression
    batch = decode(stored(bytes(head) + junk))
    assert len(batch.values()) == len(batch) == 3
    assert all(b"nexo-error" in text for text in batch.headers())


def test_both_heads_have_to_say_the_same() -> None:
    entry = stored(kafka_batch(ROWS[:2]))
    header = decode(entry).header
    with pytest.raises(Corrupt, match="does not fit"):
        check_kafka(header._replace(count=3), memoryview(entry)[64:])
