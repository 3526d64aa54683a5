"""Streams over TCP, with the real server and the async client (SPEC E, F, H)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.records import StreamRecord
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record
from nexo.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    NotFound,
    NotPending,
    TransactionAborted,
)
from nexo.testing import Server
from tests.timing import eventually

WAIT_S = 30.0


@pytest.fixture
async def events(aclient: nexo.AsyncClient) -> Stream[Any]:
    return await aclient.stream("events").create()


async def take(stream: Stream[Any], group: str, count: int) -> list[StreamRecord[Any]]:
    """Records of a group, acked."""
    found = []
    async with asyncio.timeout(WAIT_S), stream.consume(group) as consumer:
        async for record in consumer:
            found.append(record)
            await record.ack()
            if len(found) == count:
                break
    return found


# -- publishing and reading


async def test_every_kind_of_value_round_trips(events: Stream[Any]) -> None:  # SPEC A4
    values = [b"", b"\x00raw", "", "tëxt 🎈", None, 0, 1.5, [1, {"a": None}], {"k": "v"}, True]
    for value in values:
        await events.publish(value)
    assert [record.value for record in await events.read()] == values


async def test_a_record_carries_key_headers_and_time(events: Stream[Any]) -> None:
    before = datetime.now(UTC)
    place = await events.publish("v", key="kéy", headers={"trace": "1", "n": 2})
    (record,) = await events.read()
    assert (record.key, record.headers, record.value) == ("kéy", {"trace": "1", "n": 2}, "v")
    assert (record.partition, record.offset) == (place.partition, place.offset)
    assert abs((record.timestamp - before).total_seconds()) < 60


async def test_records_published_together_get_each_their_offset(events: Stream[Any]) -> None:
    places = await asyncio.gather(*[events.publish(i) for i in range(500)])
    assert [place.offset for place in places] == list(range(500))
    assert [record.value for record in await events.read()] == list(range(500))


async def test_publish_many_says_where_each_went(aclient: nexo.AsyncClient) -> None:  # SPEC E2
    stream = await aclient.stream("keyed").create(partitions=8)
    keys = [f"order_{i % 20}" for i in range(200)]
    places = await stream.publish_many(list(range(200)), keys=keys)
    assert places[-200] == places[0]
    for outside in (200, -201):
        with pytest.raises(IndexError):
            places[outside]
    assert len(places) == 200
    for i in (0, 7, 199):
        partition, offset = places[i]
        (record, *_) = await stream.read(partition, offset)
        assert (record.value, record.key) == (i, keys[i])
    single = await stream.publish("x", key="order_123")
    assert single.partition == 5


async def test_publish_many_splits_what_is_too_large_for_one_frame(events: Stream[Any]) -> None:
    places = await events.publish_many([bytes(1_000_000)] * 15)
    assert [place.offset for place in places] == list(range(15))
    large = bytes(5_000_000)
    await events.publish(large)  # SPEC E7
    assert (await events.read(offset=15))[0].value == large


async def test_reading_can_wait_for_the_next_record(events: Stream[Any]) -> None:
    reading = asyncio.ensure_future(events.read(0, 0, wait=WAIT_S))
    await asyncio.sleep(0)
    await events.publish("late")
    assert [record.value for record in await reading] == ["late"]


async def test_values_are_checked_against_a_type(aclient: nexo.AsyncClient) -> None:  # SPEC K1
    @dataclass
    class Order:
        id: int

    orders = await aclient.stream("orders", Order).create()
    await orders.publish(Order(7))
    assert (await orders.read())[0].value == Order(7)
    await aclient.stream("orders").publish({"id": "seven"})
    with pytest.raises(InvalidInput, match="Order"):
        _ = (await orders.read(offset=1))[0].value


async def test_the_newest_value_of_a_key_and_the_state(aclient: nexo.AsyncClient) -> None:
    users = await aclient.stream("users").create(partitions=3, cleanup="compact")  # SPEC G2
    for i in range(30):
        await users.publish({"n": i}, key=f"u{i % 3}")
    await users.tombstone("u0")
    found = await users.get("u1")
    assert found is not None
    assert found.value == {"n": 28}
    assert await users.get("u0") is None
    await users.compact()
    state = await users.state()
    assert {key: record.value for key, record in state.items()} == {
        "u1": {"n": 28},
        "u2": {"n": 29},
    }


async def test_a_stream_can_be_described_changed_and_deleted(aclient: nexo.AsyncClient) -> None:
    stream = aclient.stream("s")
    assert not await stream.exists()
    with pytest.raises(NotFound, match="create it first"):
        await stream.publish("x")
    await stream.create(partitions=2)
    with pytest.raises(AlreadyExists):
        await stream.create(partitions=3)
    assert (await stream.update(retention={"max_age": "5ms"})).options["retention_ms"] == 5
    assert len((await stream.info()).partitions) == 2
    await stream.delete()
    assert not await stream.exists()


async def test_streams_are_listed_by_name(aclient: nexo.AsyncClient) -> None:  # SPEC E1
    for name in ("b", "a/2", "a/1"):
        await aclient.stream(name).create()
    assert await aclient.streams() == ["a/1", "a/2", "b"]
    assert await aclient.streams("a/") == ["a/1", "a/2"]


# -- shared groups


async def test_consumers_of_a_group_share_the_work(events: Stream[Any]) -> None:  # SPEC F1
    got: list[list[int]] = [[], [], []]

    def collector(mine: list[int]) -> Callable[[Record[Any]], None]:
        return lambda record: mine.append(record.offset)

    subscriptions = [await events.subscribe("g", collector(mine), batch=10) for mine in got]
    await events.publish_many(list(range(300)))
    await eventually(lambda: sum(map(len, got)) == 300)
    for subscription in subscriptions:
        await subscription.close()
    assert sorted(offset for mine in got for offset in mine) == list(range(300))
    assert await events.group("g").lag() == 0


async def test_a_handler_sees_records_in_order_and_failures_come_back(events: Stream[Any]) -> None:
    seen: list[tuple[int, int]] = []  # SPEC F2, F5

    async def handle(record: Record[Any]) -> None:
        seen.append((record.offset, record.attempt))
        if record.offset == 1 and record.attempt < 3:
            raise ValueError("not yet")

    await events.publish_many(["a", "b", "c"])
    subscription = await events.subscribe("g", handle)
    await eventually(lambda: (1, 3) in seen)
    await subscription.close()
    assert [row for row in seen if row[1] == 1] == [(0, 1), (1, 1), (2, 1)]
    assert await events.group("g").lag() == 0


async def test_what_keeps_failing_is_parked_and_can_be_replayed(events: Stream[Any]) -> None:
    failing = True  # SPEC F3
    done: list[Any] = []

    def handle(record: Record[Any]) -> None:
        if failing and record.value == "bad":
            raise ValueError("broken")
        done.append(record.value)

    await events.publish_many(["bad", "good"])
    subscription = await events.subscribe("g", handle, max_deliveries=2)
    await eventually(lambda: done == ["good"])
    parked = await eventually(events.group("g").parked.peek)
    assert [(r.value, r.attempts) for r in parked] == [("bad", 2)]
    assert "broken" in parked[0].reason
    failing = False
    assert await events.group("g").parked.replay(parked[0]) == 1
    await eventually(lambda: done == ["good", "bad"])
    await subscription.close()
    assert await events.group("g").parked.peek() == []


async def test_a_released_record_comes_again_uncounted(events: Stream[Any]) -> None:
    await events.publish("a")  # SPEC F3
    async with events.consume("g", max_deliveries=2, wait=5) as consumer:
        for _ in range(3):
            (record,) = await consumer.fetch()
            assert record.attempt == 1
            await record.release()
            with pytest.raises(NotPending):
                await record.ack()
        (record,) = await consumer.fetch()
        await record.nack("no")
        (record,) = await consumer.fetch()
        assert record.attempt == 2


async def test_some_parked_records_are_replayed_and_others_deleted(events: Stream[Any]) -> None:
    await events.publish_many([0, 1, 2, 3, 4])  # SPEC F3
    aside = events.group("g").parked
    async with events.consume("g", max_deliveries=1, wait=5) as consumer:
        for record in await consumer.fetch():
            await record.nack("no")
        assert [record.value for record in await aside.peek(2, offset=1)] == [3, 2]
        parked = await aside.peek()
        assert await aside.replay([]) == 0
        assert await aside.replay(parked[3:]) == 2
        assert [record.value for record in await consumer.fetch()] == [0, 1]
        assert await aside.delete(parked[0])
        assert not await aside.delete(parked[0])
        assert await aside.purge() == 2
    assert [record.value for record in await events.read()] == [0, 1, 2, 3, 4]


async def test_stopping_is_quick_and_gives_back_what_was_not_begun(events: Stream[Any]) -> None:
    begun = asyncio.Event()
    release = asyncio.Event()

    async def handle(record: Record[Any]) -> None:
        begun.set()
        await release.wait()

    await events.publish_many(list(range(10)))
    slow = await events.subscribe("g", handle, batch=10)
    await begun.wait()
    stopping = asyncio.ensure_future(slow.close())
    await asyncio.sleep(0)
    release.set()
    async with asyncio.timeout(10):
        await stopping
    rest = await take(events, "g", 9)
    assert [(r.offset, r.attempt) for r in rest] == [(i, 1) for i in range(1, 10)]
    idle = await events.subscribe("g", handle)
    async with asyncio.timeout(10):
        await idle.close()


async def test_records_fetched_by_a_cancelled_consumer_go_to_others(events: Stream[Any]) -> None:
    consumer = events.consume("g")
    waiting = asyncio.ensure_future(consumer.fetch())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await events.publish("x")
    assert [(r.value, r.attempt) for r in await take(events, "g", 1)] == [("x", 1)]


async def test_seek_replays_and_fences_late_acks(events: Stream[Any]) -> None:  # SPEC F4
    await events.publish_many(["a", "b"])
    async with events.consume("g") as consumer:
        old = await anext(consumer)
        await events.seek("g", "beginning")
        with pytest.raises(Fenced):
            await old.ack()
    assert [r.value for r in await take(events, "g", 2)] == ["a", "b"]
    await events.seek("g", 1)
    assert [r.value for r in await take(events, "g", 1)] == ["b"]
    await events.seek("g", "end")
    assert await events.group("g").lag() == 0


async def test_a_seek_of_one_partition_leaves_the_others(
    aclient: nexo.AsyncClient,
) -> None:  # SPEC F4
    events = await aclient.stream("parted", str).create(partitions=2)
    placed = [await events.publish(f"v{number}") for number in range(4)]  # they take turns
    await take(events, "g", 4)
    _, there = [at for at in placed if at.partition == 1]
    await events.seek("g", {1: there.offset})
    assert await events.group("g").lag() == 1
    (again,) = await take(events, "g", 1)
    assert (again.partition, again.offset) == (1, there.offset)


async def test_batches_are_taken_and_acked_as_a_whole(events: Stream[Any]) -> None:
    await events.publish_many([b"%d" % i for i in range(1_000)])
    found: list[bytes | None] = []
    async with events.consume("g", batch=64) as consumer:
        async for records in consumer.batches():
            found += records.payloads()
            await records.ack()
            if len(found) == 1_000:
                break
    assert found == [b"%d" % i for i in range(1_000)]
    assert await events.group("g").lag() == 0


async def test_consumers_and_records_survive_a_crash(nexo_server: Server) -> None:  # SPEC F6, A5
    async with nexo.AsyncClient(nexo_server.url) as client:
        events = await client.stream("events").create()
        seen: list[int] = []
        subscription = await events.subscribe("g", lambda r: seen.append(r.offset), wait=1.0)
        await events.publish_many(list(range(100)))
        await eventually(lambda: len(seen) >= 100)

        async def finished() -> bool:
            return await events.group("g").lag() == 0

        await eventually(finished)
        await asyncio.to_thread(nexo_server.crash)
        await asyncio.to_thread(nexo_server.start)
        place = await events.publish("after")
        assert place.offset == 100
        await eventually(lambda: 100 in seen)
        await subscription.close()
        assert sorted(seen) == list(range(101))


# -- transactions


async def test_a_transaction_is_all_or_nothing(aclient: nexo.AsyncClient) -> None:  # SPEC H1
    a = await aclient.stream("a").create()
    await aclient.stream("b").create(partitions=3)
    async with aclient.transaction() as tx:
        await tx.publish("a", {"n": 1})
        await tx.publish("b", "two", key="k")
        assert await a.read() == []
    assert [r.value for r in await a.read()] == [{"n": 1}]

    async def fail() -> None:
        async with aclient.transaction() as tx:
            await tx.publish("a", "never")
            await tx.publish("missing", "never")

    with pytest.raises(NotFound):
        await fail()
    await a.publish("after")
    assert [r.value for r in await a.read()] == [{"n": 1}, "after"]


async def test_read_process_write_is_exactly_once(aclient: nexo.AsyncClient) -> None:  # SPEC H1
    source = await aclient.stream("in").create()
    target = await aclient.stream("out").create()
    await source.publish_many([1, 2, 3])
    failed = False
    async with source.consume("g", batch=1) as consumer:
        while await source.group("g").lag():
            record = await anext(consumer)
            try:
                async with aclient.transaction() as tx:
                    await tx.ack(record)
                    await tx.publish("out", record.value * 10)
                    if record.value == 2 and not failed:
                        failed = True
                        raise ValueError("crash in the middle")
            except ValueError:
                continue
    assert [r.value for r in await target.read()] == [10, 20, 30]


async def test_a_lost_input_rolls_the_outputs_back(aclient: nexo.AsyncClient) -> None:  # SPEC H1
    source = await aclient.stream("in").create()
    target = await aclient.stream("out").create()
    await source.publish("x")

    async def process() -> None:
        async with source.consume("g") as consumer:
            record = await anext(consumer)
            async with aclient.transaction() as tx:
                await tx.publish("out", "y")
                await tx.ack(record)
                await source.seek("g", "beginning")

    with pytest.raises(TransactionAborted):
        await process()
    assert await target.read() == []
    assert await source.group("g").lag() == 1


async def test_a_transaction_whose_input_is_gone_holds_back_nobody(
    aclient: nexo.AsyncClient,
) -> None:  # SPEC H1
    source = await aclient.stream("in").create()
    target = await aclient.stream("out").create()
    await source.publish("x")

    async def process() -> None:
        async with source.consume("g") as consumer:
            record = await anext(consumer)
            async with aclient.transaction() as tx:
                await tx.publish("out", "never")
                await tx.ack(record)
                await source.delete()

    with pytest.raises(NotFound):
        await process()
    await target.publish("after")
    assert [r.value for r in await target.read()] == ["after"]


async def test_a_record_is_given_up_for_a_while_that_makes_sense(aclient: nexo.AsyncClient) -> None:
    """SPEC F2: nack redelivers after a delay; a bad one is refused and the record stays held."""
    log = await aclient.stream("log").create()
    await log.publish("a")
    async with log.consume("g") as consumer:
        record = await anext(aiter(consumer))
        bad: Any
        for bad in (float("inf"), float("nan"), -1, "soon", [1]):
            with pytest.raises(InvalidInput):
                await record.nack(delay=bad)
        [group] = [each for each in await log.groups() if each.name == "g"]
        assert group.partitions[0].in_flight == 1
        await record.nack(delay="1ms")
        assert (await anext(aiter(consumer))).attempt == 2
