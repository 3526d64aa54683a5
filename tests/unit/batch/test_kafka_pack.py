"""Batches in another compression hold the same records, for every reader (SPEC L3)."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from nexo.batch import decode
from nexo.batch.kafka import COMPRESSION, crc_holds, native, parse_kafka, wrap
from nexo.batch.kafka_pack import KINDS, repacked
from nexo.errors import PayloadTooLarge
from nexo.storage.header import parse

VALUES = [b"", b"v" * 100_000, *(b"%d" % number for number in range(500))]


def sent(kind: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, kind, 1, 7, 3, 11, 1 << 20)
    for offset, value in enumerate(VALUES):
        builder.append(offset, 1_000 + offset, b"k%d" % offset, value, [("h", b"x")])
    return bytes(builder.build())


def done(batch: bytes, kind: int, most: int = 1 << 20) -> tuple[bytes, int]:
    """The batch that is made, and in how many steps."""
    steps, count = repacked(batch, kind, most), 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, count
        count += 1


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_every_reader_finds_the_same_records(name: str, before: int) -> None:
    old = sent(before)
    new, steps = done(old, KINDS[name])
    first, then = parse_kafka(old), parse_kafka(new)
    assert then.size == len(new)
    assert then.attributes == first.attributes & ~COMPRESSION | KINDS[name]
    assert then[6:] == first[6:]
    assert crc_holds(then, new)
    assert steps > 1
    read = DefaultRecordBatch(new)
    assert read.validate_crc()
    assert [record.value for record in read] == VALUES
    head, body = wrap(parse_kafka(new), new)
    _, entry = native(parse(bytes(head)), memoryview(b"".join(body)))
    assert decode(entry).values() == VALUES


def test_a_batch_that_becomes_too_large_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        done(sent(1), KINDS["uncompressed"], 50_000)
