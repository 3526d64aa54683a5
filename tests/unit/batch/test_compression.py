"""What the batch format promises beyond the round trip."""

from __future__ import annotations

import pytest

from nexo import batch as batches
from nexo.batch import BatchProducer, Compression
from nexo.batch.compression import compress, decompress
from nexo.batch.partitions import murmur2, partition_of
from nexo.errors import Corrupt, InvalidInput, InvalidOption, PayloadTooLarge
from nexo.storage import header


def joined(entry: batches.EntryParts) -> bytes:
    return bytes(entry[0]) + b"".join(entry[1])


def test_plain_values_need_no_optional_column() -> None:
    batch = batches.verify(joined(batches.encode_plain([b"a", b"", b"ccc"], 1, 77)))
    assert batch.header.columns == 0
    assert batch.values() == [b"a", b"", b"ccc"]
    assert list(batch.timestamps()) == [77, 77, 77]
    assert list(batch.types()) == [1, 1, 1]


def test_the_producer_travels_in_the_header() -> None:
    entry = batches.encode_plain([b"a"], 0, 1, BatchProducer(7, 2, 40))
    got = batches.verify(joined(entry)).header
    assert (got.producer_id, got.epoch, got.sequence) == (7, 2, 40)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidInput):
        batches.encode_plain([], 0, 1)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidInput):
        batches.encode([b"a", b"b"], 0, 1, keys=[b"k"])


def test_offsets_that_go_backwards_are_refused() -> None:
    _, body = batches.encode_plain([b"aa", b"bb"], 0, 1)
    body[0] = body[0][:4] + (9).to_bytes(4, "little") + body[0][8:]
    forged = header.seal(body, count=2, first_ms=1, last_ms=1)
    with pytest.raises(Corrupt, match="backwards"):
        batches.verify(bytes(forged) + b"".join(body))


def test_a_count_far_beyond_the_body_is_refused_without_allocating() -> None:
    _, body = batches.encode_plain([b"aa"], 0, 1)
    forged = header.seal(body, count=2**31, first_ms=1, last_ms=1)
    with pytest.raises(PayloadTooLarge):
        batches.verify(bytes(forged) + b"".join(body))
    with pytest.raises(Corrupt):
        batches.decode(bytes(forged) + b"".join(body))


def test_entries_lying_one_after_another_are_told_apart() -> None:
    first, second = (joined(batches.encode_plain([b"x" * n], 0, 1)) for n in (3, 30))
    assert [bytes(entry) for entry in batches.entries(first + second)] == [first, second]
    with pytest.raises(Corrupt):
        list(batches.entries(first + second[:-8]))


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_compression_shrinks_and_a_bomb_is_refused(kind: Compression) -> None:  # SPEC G3
    packed = b"".join(compress(kind, bytes(1_000_000)))
    assert len(packed) < 20_000
    assert decompress(kind, packed) == bytes(1_000_000)
    with pytest.raises(PayloadTooLarge):
        decompress(kind, packed, max_bytes=999_999)


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_compressed_body_that_lies_about_its_size_is_refused(kind: Compression) -> None:
    packed = bytearray(b"".join(compress(kind, bytes(1_000))))
    packed[0:4] = (10).to_bytes(4, "little")
    with pytest.raises(Corrupt):
        decompress(kind, bytes(packed))


def test_unknown_compression_names_are_refused() -> None:
    assert Compression.named(None) is Compression.NONE
    assert Compression.named("zstd") is Compression.ZSTD
    with pytest.raises(InvalidOption, match="snappy"):
        Compression.named("snappy")


def test_keys_land_where_kafka_puts_them() -> None:  # SPEC E2
    assert partition_of(b"order_123", 8) == 5
    assert partition_of(b"order_123", 3) == 2
    # Known answers of the reference implementation, as signed numbers there.
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
