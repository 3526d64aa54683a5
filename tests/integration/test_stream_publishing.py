"""Publishing with the real server: bad input touches nothing else, keys find a partition (E)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Published
from nexo.errors import InvalidInput, NotFound, PayloadTooLarge
from tests.integration.test_stream import events

__all__ = ["events"]

Publish = Callable[[Stream[Any]], Awaitable[Any]]

MIB = 1024**2

REFUSED: dict[str, Publish] = {
    "key of a number": lambda s: s.publish("bad", key=5),  # type: ignore[arg-type]
    "key of a list": lambda s: s.publish(1, key=[1]),  # type: ignore[arg-type]
    "key with a lone surrogate": lambda s: s.publish("bad", key="\udcff"),
    "text with a lone surrogate": lambda s: s.publish("\udcff"),
    "texts with a lone surrogate": lambda s: s.publish_many(["fine", "\udcff"]),
    "no list": lambda s: s.publish_many(5),  # type: ignore[arg-type]
    "headers of text": lambda s: s.publish("bad", headers="x"),  # type: ignore[arg-type]
    "headers of a number": lambda s: s.publish("bad", headers=5),  # type: ignore[arg-type]
    "nothing to delete": lambda s: s.tombstone(None),  # type: ignore[arg-type]
    "too large a value": lambda s: s.publish(b"x" * (11 * MIB)),
    "too large a value with a key": lambda s: s.publish(b"x" * (11 * MIB), key="k"),
}


async def outcome(stream: Stream[Any], publish: Publish) -> Any:
    """What a call gives or raises, whether at once or when awaited."""
    try:
        async with asyncio.timeout(10):
            return await publish(stream)
    except Exception as error:
        return error


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_refused_is_not_stored_and_touches_nothing_else(
    events: Stream[Any], bad: Publish
) -> None:  # SPEC E7, A6
    before, refused, after = await asyncio.gather(
        outcome(events, lambda s: s.publish("before")),
        outcome(events, bad),
        outcome(events, lambda s: s.publish("after", key="k")),
    )
    assert isinstance(refused, InvalidInput)
    assert [before.offset, after.offset] == [0, 1]
    assert [record.value for record in await events.read()] == ["before", "after"]


@pytest.mark.parametrize("count", [3, 50])
async def test_only_the_record_over_the_streams_limit_is_refused(
    aclient: nexo.AsyncClient, count: int
) -> None:  # SPEC E7
    stream: Stream[Any] = await aclient.stream("s").create(max_message_bytes=100)
    values = [b"x" * (200 if number == 1 else 10) for number in range(count)]
    found = await asyncio.gather(*(stream.publish(v) for v in values), return_exceptions=True)
    assert isinstance(found[1], PayloadTooLarge)
    assert sum(isinstance(each, Exception) for each in found) == 1
    assert len(await stream.read()) == count - 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_goes_with_a_record_over_the_limit_keeps_its_order(
    aclient: nexo.AsyncClient, key: str | None
) -> None:  # SPEC E2, E7
    stream: Stream[Any] = await aclient.stream("s").create(max_message_bytes=100)
    sent = [stream.publish("first", key=key), stream.publish("x" * 200, key=key)]
    await asyncio.sleep(0)
    sent.append(stream.publish("second", key=key))
    found = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(found[1], PayloadTooLarge)
    assert [record.value for record in await stream.read()] == ["first", "second"]


@pytest.mark.parametrize("told", ["never", "before it was lowered"])
async def test_a_limit_that_the_client_does_not_know_hurts_nothing_else(
    aclient: nexo.AsyncClient, told: str
) -> None:  # SPEC E2, E7: neither the neighbours in a batch nor the order
    async with nexo.AsyncClient(str(aclient.address)) as other:
        await other.stream("s").create(max_message_bytes=1_000)
        stream: Stream[Any] = aclient.stream("s")
        if told != "never":
            await stream.info()
        await other.stream("s").update(max_message_bytes=100)
    large = "x" * 200
    sent = [stream.publish(value) for value in ("first", large, "second", large)]
    await asyncio.sleep(0)
    sent.append(stream.publish("third"))
    found = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(each) for each in found] == [
        Published, PayloadTooLarge, Published, PayloadTooLarge, Published,
    ]  # fmt: skip
    assert "limit of 100 bytes" in str(found[1])
    stored = await stream.read()
    assert [record.value for record in stored] == ["first", "second", "third"]
    places = [each for each in found if isinstance(each, Published)]
    assert [place.offset for place in places] == [record.offset for record in stored]
    alone = await asyncio.gather(*(stream.publish(large) for _ in "ab"), return_exceptions=True)
    assert [type(each) for each in alone] == [PayloadTooLarge] * 2


async def test_a_publish_many_that_is_refused_stores_nothing(events: Stream[Any]) -> None:  # E7
    small = [b"x" * MIB] * 3
    for bad in (
        events.publish_many([*small, b"x" * (11 * MIB)]),
        events.publish_many([*small, b"x" * (11 * MIB)], keys=["a", "b", "c", "d"]),
        events.publish_many([*small, "\udcff"]),
        events.publish_many(["a", "b"], keys=["k", 5]),  # type: ignore[list-item]
        events.publish_many(["a", "b"], headers=[None, 5]),  # type: ignore[list-item]
        events.publish_many(["a"], keys=[]),
        events.publish_many(["a", "b"], keys="ab"),
        events.publish_many(["a", "b"], keys=(key for key in "ab")),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput):
            await bad
    assert await events.read() == []


async def test_values_that_differ_much_in_size_are_published_together(
    events: Stream[Any],
) -> None:  # SPEC E7
    values = [b"x" * (MIB - 1)] * 9 + [b"y" * (9 * MIB)] + [b"z"] * 500
    for keys in (None, ["k"] * len(values)):
        places = await events.publish_many(values, keys=keys)
        assert len(places) == len(values)


# -- partitions


@pytest.mark.parametrize(("before", "after"), [(3, 8), (8, 3), (1, 8), (8, 1)])
async def test_keys_find_their_partition_in_a_stream_that_was_created_anew(
    aclient: nexo.AsyncClient, before: int, after: int
) -> None:  # SPEC E2: order_123 of 8 is in 5, of 3 in 2
    expected = {8: 5, 3: 2, 1: 0}[after]
    keys = [f"order_{number}" for number in range(100, 130)]
    handle: Stream[Any] = await aclient.stream("s").create(partitions=before)
    await handle.publish(0, key="order_123")

    async def anew() -> None:
        async with nexo.AsyncClient(str(aclient.address)) as other:
            await other.stream("s").delete()
            await other.stream("s").create(partitions=after)

    await anew()
    places = await asyncio.gather(*(handle.publish(key, key=key) for key in keys))
    assert places[23].partition == expected
    await anew_again(anew, handle, before)
    many = await handle.publish_many(keys, keys=keys)
    assert [place.partition for place in many] == [place.partition for place in places]
    for place, key in zip(many, keys, strict=True):
        (record, *_) = await handle.read(place.partition, place.offset)
        assert (record.key, record.value) == (key, key)
    await anew_again(anew, handle, before)
    async with aclient.transaction() as tx:
        assert (await tx.publish("s", 1, key="order_123")).partition == expected


async def anew_again(anew: Callable[[], Awaitable[None]], handle: Stream[Any], before: int) -> None:
    """Let the handle learn the first count again, then change it behind its back."""
    await handle.delete()
    await handle.create(partitions=before)
    await anew()


async def test_records_of_a_key_keep_their_order_over_a_new_stream(
    aclient: nexo.AsyncClient,
) -> None:  # SPEC E2
    handle: Stream[Any] = await aclient.stream("s").create(partitions=2)
    other: Stream[Any] = aclient.stream("s")
    await other.delete()
    await other.create(partitions=5)
    async with asyncio.timeout(10):
        pending = []
        for turn in range(20):
            pending += [handle.publish((turn, n), key="k") for n in range(3)]
            await asyncio.sleep(0)
        places = [await each for each in pending]
    found = await other.read(places[0].partition)
    assert [tuple(record.value) for record in found] == [
        (t, n) for t in range(20) for n in range(3)
    ]


async def test_a_stream_that_is_gone_is_told(aclient: nexo.AsyncClient) -> None:  # SPEC E2
    handle: Stream[Any] = await aclient.stream("s").create(partitions=3)
    await aclient.stream("s").delete()
    async with asyncio.timeout(10):
        found = await asyncio.gather(
            *(handle.publish(n, key=str(n)) for n in range(9)), return_exceptions=True
        )
    assert all(isinstance(each, NotFound) for each in found)


def test_the_sync_client_finds_the_partition_too(client: nexo.Client) -> None:  # SPEC E2
    handle = client.stream("s").create(partitions=3)
    assert handle.publish(1, key="order_123").partition == 2
    other = client.stream("s")
    other.delete()
    other.create(partitions=8)
    assert handle.publish(1, key="order_123").partition == 5
    other.delete()
    other.create(partitions=3)
    assert [place.partition for place in handle.publish_many([1], keys=["order_123"])] == [2]
    with pytest.raises(InvalidInput, match="key"):
        handle.publish(1, key=5)  # type: ignore[arg-type]


async def test_records_without_a_key_are_spread_over_the_partitions(
    aclient: nexo.AsyncClient,
) -> None:  # SPEC E2
    stream: Stream[Any] = await aclient.stream("s").create(partitions=3)
    expected = Counter({0: 3, 1: 3, 2: 3})
    many = await stream.publish_many(range(9))
    assert Counter(place.partition for place in many) == expected
    texts = await stream.publish_many([str(n) for n in range(9)])
    assert Counter(place.partition for place in texts) == expected
    gathered = await asyncio.gather(*(stream.publish(n) for n in range(9)))
    assert Counter(place.partition for place in gathered) == expected
    singles = [await stream.publish(n) for n in range(9)]
    assert Counter(place.partition for place in singles) == expected
    for places in (many, texts, gathered):
        for n, place in enumerate(places):
            (record, *_) = await stream.read(place.partition, place.offset)
            assert int(record.value) == n


@pytest.mark.parametrize("headers", [None, [{"a": "b"}] * 30], ids=["plain", "with headers"])
async def test_calls_that_are_under_way_together_take_turns(
    aclient: nexo.AsyncClient, headers: list[dict[str, str]] | None
) -> None:
    """Cut into parts for each partition, batches of a hundred would cost several times as much."""
    stream: Stream[Any] = await aclient.stream("s").create(partitions=3)
    sent = await asyncio.gather(
        *(stream.publish_many([b"x"] * 30, headers=headers) for _ in range(12))
    )
    assert Counter(place.partition for places in sent for place in places) == {
        0: 120,
        1: 120,
        2: 120,
    }
    used = [len({place.partition for place in places}) for places in sent]
    assert used == [3] * 3 + [1] * 9
    alone = await stream.publish_many([b"x"] * 30)
    assert len({place.partition for place in alone}) == 3


async def test_one_partition_keeps_records_with_and_without_a_key_in_order(
    events: Stream[Any],
) -> None:  # SPEC E2
    await asyncio.gather(*(events.publish(n, key="k" if n % 3 else None) for n in range(30)))
    await events.publish_many(range(30, 40), keys=["k" if n % 3 else None for n in range(10)])
    assert [record.value for record in await events.read()] == list(range(40))


async def test_the_first_records_with_and_without_a_key_keep_their_order(
    events: Stream[Any], url: str
) -> None:
    """SPEC E2: also while it is not known yet how many partitions there are."""
    async with nexo.AsyncClient(url) as other:
        new = other.stream(events.name)
        await asyncio.gather(*(new.publish(n, key=None if n % 3 else "k") for n in range(1_000)))
    assert [record.value for record in await events.read()] == list(range(1_000))


# -- keys


async def test_a_key_that_is_not_text_is_given_back_as_bytes(events: Stream[Any]) -> None:  # E2
    key = b"\xff\xfe"
    await events.publish(1, key=key)
    await events.publish(2, key="k")
    (record, _) = await events.read()
    assert record.key == key
    found = await events.get(key)
    assert found is not None
    assert found.value == 1
    assert {each: record.value for each, record in (await events.state()).items()} == {
        key: 1,
        "k": 2,
    }
    with pytest.raises(InvalidInput, match="key is needed"):
        await events.get(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [1, 4])
async def test_what_was_published_before_comes_before(
    aclient: nexo.AsyncClient, url: str, partitions: int
) -> None:
    """SPEC A3, E2: a record that was not awaited yet is not overtaken by the next request."""
    await aclient.stream("lanes").create(partitions=partitions, cleanup="compact")
    async with nexo.AsyncClient(url) as other:
        lanes = other.stream("lanes")  # one that has yet to learn how many there are
        for _ in range(2):
            first = lanes.publish("first", key="k")
            second, third = await lanes.publish_many(["second", "third"], keys=["k", "k"])
            assert (await first).offset < second.offset < third.offset
        last = lanes.publish("last", key="k")
        newest = await lanes.get("k")
        assert newest is not None
        assert newest.value == "last"
        assert (await last).offset == newest.offset


async def test_two_objects_for_a_stream_keep_the_order_of_its_records(
    aclient: nexo.AsyncClient,
) -> None:
    """SPEC E2: also if one of them was used before and the other was not."""
    await aclient.stream("lanes").create(partitions=4)
    used = aclient.stream("lanes")
    await used.publish(0, key="k")
    first, second = aclient.stream("lanes").publish(1, key="k"), used.publish(2, key="k")
    assert [(await first).offset, (await second).offset] == [1, 2]


async def test_values_alone_do_not_overtake_what_was_published_before(events: Stream[Any]) -> None:
    """SPEC A3, E2."""
    for values in ([1, 2], ["1", "2"]):
        first = events.publish(0)
        assert [place.offset for place in await events.publish_many(values)] == [
            (await first).offset + 1,
            (await first).offset + 2,
        ]
    events.publish("seen")
    assert (await events.info()).partitions[0].next_offset == 7
