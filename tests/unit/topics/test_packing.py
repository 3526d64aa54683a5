"""Kafka's murmur2: where a key goes (SPEC E2, G3).

The vectors are those of the published algorithm as Kafka's own tests state them, and
placements computed with its formula.
"""

from __future__ import annotations

from typing import Any

import pytest

from nexo.batch.partitions import murmur2, partition_of
from nexo.errors import InvalidInput, InvalidOption
from nexo.topics.packing import Chooser, partitioner_named

VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


def signed(number: int) -> int:
    """As Java shows it."""
    return number - 2**32 if number >= 2**31 else number


@pytest.mark.parametrize(("key", "hashed"), VECTORS)
def test_hashes_are_those_that_kafka_publishes(key: bytes, hashed: int) -> None:
    assert signed(murmur2(key)) == hashed


def reference(data: bytes) -> int:
    """The algorithm written out byte by byte, with Java's signed 32-bit arithmetic in mind."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for i in range(len(data) // 4):
        k = 0
        for byte in range(4):
            k |= (data[4 * i + byte] & 0xFF) << (8 * byte)
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = (h * m) & mask
        h ^= k
    rest = len(data) & ~3
    match len(data) % 4:
        case 3:
            h ^= (data[rest + 2] & 0xFF) << 16
            h ^= (data[rest + 1] & 0xFF) << 8
            h = ((h ^ (data[rest] & 0xFF)) * m) & mask
        case 2:
            h ^= (data[rest + 1] & 0xFF) << 8
            h = ((h ^ (data[rest] & 0xFF)) * m) & mask
        case 1:
            h = ((h ^ (data[rest] & 0xFF)) * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    return h ^ (h >> 15)


@pytest.mark.parametrize(
    "key", ["", "a", "ab", "order_123", "käse", "鍵", "🔑", "ключ-1", "é" * 33]
)
def test_any_text_goes_where_the_algorithm_says(key: str) -> None:
    data = key.encode()
    assert murmur2(data) == reference(data)
    for count in (1, 3, 8, 1_000):
        assert partition_of(data, count) == (reference(data) & 0x7FFFFFFF) % count


def test_an_empty_key_has_the_published_hash() -> None:
    assert signed(murmur2(b"")) == 275646681


def test_the_examples_of_the_specification() -> None:
    assert partition_of(b"order_123", 8) == 5
    assert partition_of(b"order_123", 3) == 2


def test_keys_agree_with_a_kafka_client() -> None:
    partitioner = pytest.importorskip("aiokafka.partitioner")
    for key in ("", "a", "käse", "🔑", *(f"user-{n}" for n in range(200))):
        theirs = partitioner.DefaultPartitioner()(key.encode(), list(range(12)), list(range(12)))
        assert partition_of(key.encode(), 12) == theirs


def test_a_partitioner_is_murmur2_or_a_function() -> None:
    assert partitioner_named("murmur2") is partition_of
    assert partitioner_named(lambda key, count: 1)(b"k", 2) == 1
    with pytest.raises(InvalidOption, match="crc32"):
        partitioner_named("crc32")


def test_messages_without_a_key_go_to_the_partitions_of_each_topic_in_turn() -> None:
    """SPEC G3."""
    chooser = Chooser(partition_of)
    assert [chooser.partition_of("a", None, None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert chooser.partition_of("b", None, None, 3) == 0


def test_a_partition_that_is_given_comes_before_the_key() -> None:
    """SPEC G3."""
    chooser = Chooser(partition_of)
    assert chooser.partition_of("a", None, b"order_123", 8) == 5
    assert chooser.partition_of("a", 1, b"order_123", 8) == 1


@pytest.mark.parametrize("chosen", [-1, 3, True, 1.0, "1"])
def test_a_partition_that_does_not_exist_is_refused_whoever_chose_it(chosen: Any) -> None:
    """SPEC G3."""
    with pytest.raises(InvalidInput, match="'a'"):
        Chooser(partition_of).partition_of("a", chosen, None, 3)
    with pytest.raises(InvalidInput, match="'a'"):
        Chooser(lambda key, count: chosen).partition_of("a", None, b"k", 3)
