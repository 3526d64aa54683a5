"""Handlers of shared groups with the real server: leases, failures, and how they end (SPEC F)."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record
from nexo.errors import InvalidInput, NotFound
from nexo.testing import Server
from tests.integration.test_stream import events, take
from tests.timing import eventually, wait_until

__all__ = ["events"]


async def lag_is(events: Stream[Any], lag: int) -> bool:
    return await events.group("g").lag() == lag


async def counted(
    events: Stream[Any], subscribers: int, work_s: float, count: int, **options: Any
) -> Counter[int]:
    """How often each of ``count`` records was handled, by handlers that take ``work_s``."""
    runs: Counter[int] = Counter()

    async def handle(record: Record[Any]) -> None:
        runs[record.offset] += 1
        await asyncio.sleep(work_s)

    await events.publish_many(list(range(count)))
    subscriptions = [await events.subscribe("g", handle, **options) for _ in range(subscribers)]
    await eventually(lambda: lag_is(events, 0))
    for subscription in subscriptions:
        await subscription.close()
    return runs


@pytest.mark.parametrize(("subscribers", "concurrency"), [(1, 1), (2, 1), (1, 4)])
async def test_a_batch_may_take_longer_than_the_lease_of_each_record(
    events: Stream[Any], subscribers: int, concurrency: int
) -> None:  # SPEC F1, F3
    runs = await counted(
        events, subscribers, 0.3, 12, concurrency=concurrency, ack_wait=0.8, max_deliveries=3
    )
    assert runs == Counter(range(12)), "each once"
    assert await events.group("g").parked.peek() == []


async def test_a_handler_may_take_longer_than_the_lease(events: Stream[Any]) -> None:  # SPEC F1
    runs = await counted(events, 2, 1.2, 2, batch=1, ack_wait=0.5, max_deliveries=2)
    assert runs == Counter(range(2))


async def test_what_waits_for_a_slow_handler_goes_to_another_consumer(
    events: Stream[Any],
) -> None:  # SPEC F1
    release = asyncio.Event()
    others: list[tuple[int, int]] = []

    async def slow(record: Record[Any]) -> None:
        await release.wait()

    await events.publish_many(list(range(10)))
    first = await events.subscribe("g", slow, ack_wait=0.8)
    second = await events.subscribe("g", lambda r: others.append((r.offset, r.attempt)))
    await eventually(lambda: len(others) == 9)
    release.set()
    await first.close()
    await second.close()
    assert sorted(others) == [(offset, 1) for offset in range(1, 10)]
    assert await events.group("g").lag() == 0


async def test_iterating_slowly_gives_back_what_waits(events: Stream[Any]) -> None:  # SPEC F5
    await events.publish_many(list(range(6)))
    seen: list[tuple[int, int]] = []
    async with events.consume("g", ack_wait=1.2) as consumer:
        async for record in consumer:
            seen.append((record.offset, record.attempt))
            await asyncio.sleep(0.35)
            await record.ack()
            if len(seen) == 6:
                break
    assert seen == [(offset, 1) for offset in range(6)]


async def test_only_the_record_a_handler_had_counts_when_its_process_dies(
    aclient: nexo.AsyncClient, events: Stream[Any]
) -> None:  # SPEC F3
    begun, ends = asyncio.Event(), asyncio.Event()

    async def hang(record: Record[Any]) -> None:
        if record.offset == 2:
            begun.set()
            await ends.wait()

    await events.publish_many(list(range(6)))
    other = nexo.AsyncClient(str(aclient.address))
    await other.stream("events").subscribe("g", hang)
    await begun.wait()
    await eventually(lambda: lag_is(events, 4))
    link = other.link(nexo.model.Broker.STREAM)
    link._wire.abort(nexo.errors.ConnectionLost("killed"))  # type: ignore[union-attr]
    ends.set()
    await other.close()
    found = {r.offset: r.attempt for r in await take(events, "g", 4)}
    assert found == {2: 2, 3: 1, 4: 1, 5: 1}


async def test_one_record_takes_one_place_of_many(events: Stream[Any]) -> None:  # SPEC F5
    tasks: list[int] = []

    def handle(record: Record[Any]) -> None:
        tasks.append(sum(task.get_name() == "nexo-worker" for task in asyncio.all_tasks()))

    async with await events.subscribe("g", handle, concurrency=100):
        await events.publish(1)
        await eventually(lambda: bool(tasks))
    assert tasks == [1]


# -- endings


async def test_a_subscription_stops_while_the_server_is_down(nexo_server: Server) -> None:
    """SPEC A5, F5: nothing runs, so there is nothing to wait for."""
    async with nexo.AsyncClient(nexo_server.url, down_wait=0.1) as client:
        stream = await client.stream("events").create()
        subscription = await stream.subscribe("g", print)
        await asyncio.to_thread(nexo_server.stop)
        await eventually(lambda: client.link(nexo.model.Broker.STREAM)._wire is None)
        async with asyncio.timeout(5):
            await subscription.close()
        assert not subscription.running


def test_a_subscription_of_threads_stops_while_the_server_is_down(nexo_server: Server) -> None:
    """SPEC A5, F5."""
    with nexo.connect(nexo_server.url, down_wait=0.1) as client:
        subscription = client.stream("events").create().subscribe("g", print)
        nexo_server.stop()
        subscription.close(timeout=5)
        assert not subscription.running


async def test_a_consumer_that_is_closed_while_it_joins_is_no_member(
    events: Stream[Any],
) -> None:  # SPEC F1, F5
    consumer = events.consume("g")
    waiting = asyncio.ensure_future(anext(consumer, None))
    await asyncio.sleep(0)
    await consumer.close()
    async with asyncio.timeout(5):
        assert await waiting is None
    assert (await events.group("g").info()).consumers == []


# -- failures


async def fail_by_cancelling(_record: Record[Any]) -> None:
    inner = asyncio.ensure_future(asyncio.sleep(10))
    inner.cancel()
    await inner


async def fail_by_exiting(_record: Record[Any]) -> None:
    sys.exit(3)


async def fail_in_odd_words(_record: Record[Any]) -> None:
    raise FileNotFoundError("x\udcff" * 3_000_000)


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("fail", [fail_by_cancelling, fail_by_exiting, fail_in_odd_words])
async def test_whatever_a_handler_raises_is_its_failure_alone(
    events: Stream[Any], fail: Callable[[Record[Any]], Any], concurrency: int
) -> None:  # SPEC F2, F5
    handled: list[Any] = []

    async def handle(record: Record[Any]) -> None:
        if record.value == "bad":
            await fail(record)
        handled.append(record.value)

    await events.publish_many(["bad", "good"])
    subscription = await events.subscribe("g", handle, max_deliveries=2, concurrency=concurrency)
    parked = await eventually(events.group("g").parked.peek)
    await events.publish("later")
    await eventually(lambda: handled == ["good", "later"])
    assert subscription.running
    await subscription.close()
    assert [record.value for record in parked] == ["bad"]
    assert len(parked[0].reason) < 50_000


async def test_a_subscription_whose_stream_is_deleted_says_so(
    events: Stream[Any], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F5
    subscription = await events.subscribe("g", lambda record: None)
    with caplog.at_level(logging.ERROR, logger="nexo.client"):
        await events.delete()
        with pytest.raises(NotFound, match="events"):
            await subscription.wait(10)
    assert isinstance(subscription.failure, NotFound)
    assert not subscription.running
    assert "the subscription to group" in caplog.text
    assert "ended" in repr(subscription)
    await subscription.close()


async def test_a_subscription_can_be_waited_for_and_stopped_by_its_block(
    events: Stream[Any],
) -> None:  # SPEC F5
    async with await events.subscribe("g", lambda record: None) as subscription:
        assert await subscription.wait(0.01) is False
        assert subscription.running
    assert await subscription.wait() is True
    assert subscription.failure is None
    assert (await events.group("g").info()).consumers == []


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_may_stop_its_subscription(
    events: Stream[Any], concurrency: int
) -> None:  # SPEC F5
    async def handle(record: Record[Any]) -> None:
        await subscription.close()

    subscription = await events.subscribe("g", handle, concurrency=concurrency)
    await events.publish("last")
    assert await subscription.wait(10)
    assert await events.group("g").lag() == 0


async def test_closing_the_client_ends_its_subscriptions(
    aclient: nexo.AsyncClient, events: Stream[Any], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC F5
    async with nexo.AsyncClient(str(aclient.address)) as other:
        subscription = await other.stream("events").subscribe("g", lambda record: None)
    assert subscription.failure is None
    assert not caplog.records
    assert (await events.group("g").info()).consumers == []


@pytest.mark.parametrize(
    "bad",
    [
        {"handler": None},
        {"batch": 0},
        {"batch": "a"},
        {"batch": 2**70},
        {"wait": -1},
        {"wait": float("nan")},
        {"concurrency": 0},
        {"concurrency": "a"},
    ],
)
async def test_a_bad_subscription_is_refused_before_it_begins(
    events: Stream[Any], bad: dict[str, Any]
) -> None:  # SPEC F5
    given = {"handler": print, **bad}
    with pytest.raises(InvalidInput):
        await events.subscribe("g", **given)
    assert await events.groups() == []


def test_the_sync_client_keeps_leases_and_counts_failures_alike(
    client: nexo.Client,
) -> None:  # SPEC F1, F2
    stream = client.stream("events").create()
    stream.publish_many(["bad", *range(7)])
    runs: Counter[Any] = Counter()

    def handle(record: Record[Any]) -> None:
        runs[record.value] += 1
        time.sleep(0.2)
        if record.value == "bad":
            sys.exit(1)

    with stream.subscribe("g", handle, ack_wait=1, max_deliveries=2) as subscription:
        wait_until(lambda: not stream.group("g").lag())
        assert subscription.running
    assert runs == Counter(range(7)) + Counter({"bad": 2})
    assert [record.value for record in stream.group("g").parked.peek()] == ["bad"]
