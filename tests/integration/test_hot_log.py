"""Many requests about streams asked together, by the pipeline and its tasks (SPEC I8)."""

from __future__ import annotations

import pytest

import nexo
from nexo.errors import NotFound, OffsetOutOfRange, StreamReplaced
from nexo.hot_log import TOGETHER, HotLog
from nexo.protocol import stream as wire

COUNT = TOGETHER + 20
"""More than are sent at a time."""


@pytest.fixture
def names(client: nexo.Client) -> list[str]:
    """Streams with tiering, each with as many records as its number says."""
    found = [f"s{n:03}" for n in range(COUNT)]
    for number, name in enumerate(found):
        stream = client.stream(name).create(tiering=True)
        if number:
            stream.publish_many([b"x" * 50] * number)
    client.stream("plain").create()
    return found


def test_streams_are_described_together_and_a_missing_one_is_told_apart(
    url: str, names: list[str]
) -> None:
    with HotLog(url) as broker:
        assert list(broker.names(tiering=True)) == names
        assert list(broker.names()) == ["plain", *names]
        found = broker.describe_all(["nowhere", *names])
        assert isinstance(found.pop("nowhere"), NotFound)
        for number, name in enumerate(names):
            info = found[name]
            assert isinstance(info, wire.StreamInfo)
            assert info.partitions[0].stable_offset == number
        assert broker.describe_all([]) == {}


def test_the_broker_is_told_of_many_streams_together(
    url: str, client: nexo.Client, names: list[str]
) -> None:
    asks = [
        wire.TieredTo(stream=name, partition=0, offset=number, created_ms=created_ms)
        for number, name in enumerate(names)
        for created_ms in (1 if number == 7 else client.stream(name).info().created_ms,)
    ]
    with HotLog(url) as broker:
        refused = broker.tiered_all(asks)
    assert [number for number, error in enumerate(refused) if error is not None] == [7]
    assert isinstance(refused[7], StreamReplaced)
    assert client.stream(names[9]).info().partitions[0].tiered_offset == 9
    assert client.stream(names[7]).info().partitions[0].tiered_offset == 0


def test_ranges_fetched_together_are_read_to_their_ends(url: str, names: list[str]) -> None:
    """What does not fit the first reply is asked for after it."""
    with HotLog(url) as broker:
        asks = [wire.Read(name, 0, 0, 1_000) for name in names]
        for number, fetched in enumerate(broker.first_batches(asks)):
            batches = list(broker.read(names[number], 0, 0, number, 0, fetched))
            assert sum(map(len, batches)) == number
        (gone,) = broker.first_batches([wire.Read("nowhere", 0, 0, 1_000)])
        with pytest.raises(NotFound):
            list(broker.read("nowhere", 0, 0, 1, 0, gone))
        (short,) = broker.first_batches([wire.Read(names[5], 0, 0, 1_000)])
        with pytest.raises(OffsetOutOfRange):
            list(broker.read(names[5], 0, 0, 6, 0, short))
