"""Consumers that ask for the next batch while they work on the last one (SPEC F1, F2, F3, F5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import nexo
from nexo.client._async.stream.records import StreamRecord
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from tests.integration.test_stream import events, take
from tests.timing import eventually, wait_until

__all__ = ["events"]

BATCH = 10


async def in_flight(events: Stream[Any]) -> int:
    info = await events.group("g").info()
    return sum(partition.in_flight for partition in info.partitions)


async def holds(events: Stream[Any], count: int) -> bool:
    return await in_flight(events) == count


async def asked(client: nexo.AsyncClient, op: Op) -> int:
    """How many requests of a kind the stream broker has answered."""
    reply = await client.link(Broker.STREAM).call(Op.STATUS, bytes((Broker.STREAM,)))
    status = decode_value(reply or b"")
    return sum(status["requests"].get(op.name.lower(), {"buckets": []})["buckets"])


async def test_the_next_batch_is_here_before_it_is_asked_for(events: Stream[Any]) -> None:
    await events.publish_many(list(range(5 * BATCH)))
    consumer = events.consume("g", batch=BATCH)
    batches = consumer.batches()
    first = await anext(batches)
    assert await in_flight(events) == BATCH, "its pace is not known yet"
    second = await anext(batches)
    await eventually(lambda: holds(events, 3 * BATCH))
    await first.ack()
    await second.ack()
    assert [record.value for record in await anext(batches)] == list(range(20, 30))
    await eventually(lambda: holds(events, 2 * BATCH))
    await consumer.close()
    left = await take(events, "g", 3 * BATCH)
    assert {record.offset: record.attempt for record in left} == {
        offset: 2 if offset < 30 else 1 for offset in range(20, 50)
    }, "only what a handler had counts"


async def test_what_failed_comes_before_what_was_asked_for_ahead(events: Stream[Any]) -> None:
    await events.publish_many(list(range(4 * BATCH)))
    async with events.consume("g", batch=BATCH) as consumer:
        batches = consumer.batches()
        await (await anext(batches)).ack()
        second = await anext(batches)
        await eventually(lambda: holds(events, 2 * BATCH))
        await second.nack("not yet")
        again = await anext(batches)
        assert [(r.offset, r.attempt) for r in again] == [(n, 2) for n in range(10, 20)]


async def test_a_fetch_gets_what_was_asked_for_ahead(events: Stream[Any]) -> None:
    await events.publish_many(list(range(3 * BATCH)))
    async with events.consume("g", batch=BATCH) as consumer:
        batches = consumer.batches()
        await anext(batches)
        await anext(batches)
        await eventually(lambda: holds(events, 3 * BATCH))
        assert [record.offset for record in await consumer.fetch(wait=0)] == list(range(20, 30))
        assert not await consumer.fetch(wait=0)


async def test_who_takes_one_by_one_asks_for_none_ahead(events: Stream[Any]) -> None:
    await events.publish_many(list(range(5)))
    async with events.consume("g", batch=1) as consumer:
        async for record in consumer:
            assert await in_flight(events) == 1
            await record.ack()
            if record.offset == 4:
                break


async def test_a_handler_acks_with_the_question_for_more(
    aclient: nexo.AsyncClient, events: Stream[Any]
) -> None:
    seen: list[int] = []
    await events.publish_many(list(range(100 * BATCH)))
    async with await events.subscribe("g", lambda record: seen.append(record.offset), batch=BATCH):
        await eventually(lambda: _done(events))
    assert seen == list(range(100 * BATCH))
    requests = await asked(aclient, Op.S_NEXT)
    assert requests >= 50
    assert await asked(aclient, Op.S_SETTLE) < 50


async def _done(events: Stream[Any]) -> bool:
    return await events.group("g").lag() == 0


async def test_what_waits_for_a_handler_goes_to_another(events: Stream[Any]) -> None:  # SPEC F1
    slow, release = asyncio.Event(), asyncio.Event()
    others: list[tuple[int, int]] = []

    async def handle(record: Record[Any]) -> None:
        if record.offset == 25:
            slow.set()
            await release.wait()

    await events.publish_many(list(range(6 * BATCH)))
    first = await events.subscribe("g", handle, batch=BATCH, ack_wait=0.8)
    await slow.wait()
    second = await events.subscribe("g", lambda r: others.append((r.offset, r.attempt)))
    await eventually(lambda: len(others) == 34)
    release.set()
    await first.close()
    await second.close()
    assert sorted(others) == [(offset, 1) for offset in range(26, 60)]
    assert await events.group("g").lag() == 0


async def test_three_handlers_have_equal_parts(events: Stream[Any]) -> None:
    runs: Counter[int] = Counter()
    parts: Counter[str] = Counter()

    async def handle(record: StreamRecord[Any]) -> None:
        runs[record.offset] += 1
        parts[record.consumer.name] += 1
        await asyncio.sleep(0.001)

    three = [await events.subscribe("g", handle) for _ in range(3)]
    await events.publish_many(list(range(210)))
    await eventually(lambda: _done(events))
    for each in three:
        await each.close()
    assert runs == Counter(range(210))
    assert sorted(parts.values()) == [70, 70, 70]


def test_threads_ask_ahead_as_well(client: nexo.Client) -> None:
    events = client.stream("events").create()
    events.publish_many(list(range(30 * BATCH)))
    seen: list[int] = []
    with events.subscribe("g", lambda record: seen.append(record.offset), batch=BATCH):
        wait_until(lambda: events.group("g").lag() == 0)
    assert seen == list(range(30 * BATCH))
    with events.consume("h", batch=BATCH) as consumer:
        found = []
        for records in consumer.batches():
            found += [record.offset for record in records]
            records.ack()
            if len(found) == 300:
                break
    assert found == seen
    assert events.group("h").lag() == 0
