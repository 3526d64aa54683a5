"""Assignments of Kafka's classic groups, as far as people are shown them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.batch.kafka_assignment import assigned, subscribed


def blob(*topics: tuple[str, list[int]]) -> bytes:
    body = b"".join(
        struct.pack(f">h{len(name)}si{len(parts)}i", len(name), name.encode(), len(parts), *parts)
        for name, parts in topics
    )
    return struct.pack(">hi", 1, len(topics)) + body + b"\xff\xff\xff\xff"


def test_topics_and_partitions_are_read() -> None:
    assert assigned(blob(("a", [0, 2]), ("b", [1]))) == [("a", 0), ("a", 2), ("b", 1)]
    assert assigned(blob()) == []
    assert assigned(b"") == []


@pytest.mark.parametrize("bad", [b"\x00", b"\x00\x01\x7f\xff\xff\xff", b"\x00\x01\xff\xff\xff\xff"])
def test_what_makes_no_sense_is_nothing(bad: bytes) -> None:
    assert assigned(bad) == []


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_nothing(data: bytes) -> None:
    assert isinstance(assigned(data), list)
    whole = blob(("topic", [0, 1, 2]))
    assert assigned(whole[: len(data)]) in ([], assigned(whole))


MANY = b"\0\1" + struct.pack(">i", 2**31 - 1)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xff\xff", b"\0\0", b"\xff\xfa\0\0\0\0"])
def test_a_blob_of_few_bytes_keeps_nobody_busy(name: bytes) -> None:
    """A length below zero would lead the reader back to where it was, two billion times."""
    assert subscribed(MANY + name) == frozenset()
    assert assigned(MANY + name) == []


@pytest.mark.parametrize("count", [2, 2_000])
def test_subscriptions_are_read(count: int) -> None:
    names = [f"topic-{number}" for number in range(count)]
    body = b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)
    found = struct.pack(">hi", 1, count) + body
    assert subscribed(found) == subscribed(found + b"\xff\xff\xff\xff") == frozenset(names)
    assert subscribed(found[:-1]) == frozenset()
