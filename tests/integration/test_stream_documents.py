"""Every example of the two documents on streams, in Python (seeds 000 and 001; SPEC E, F)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo import testing
from nexo.client.stream_records import Record
from nexo.errors import AlreadyExists, InvalidOption
from tests.timing import eventually

WAIT_S = 20.0


@dataclass
class UserEvent:
    type: str
    user_id: str


@dataclass
class Order:
    id: int


class Seen:
    """What handlers got, and by which of them."""

    def __init__(self, count: int) -> None:
        self.records: list[tuple[str, Record[Any]]] = []
        self._count = count
        self._full = asyncio.Event()

    def handler(self, name: str = "") -> Callable[[Record[Any]], None]:
        def handle(record: Record[Any]) -> None:
            self.records.append((name, record))
            if len(self.records) == self._count:
                self._full.set()

        return handle

    async def all(self) -> list[Record[Any]]:
        async with asyncio.timeout(WAIT_S):
            await self._full.wait()
        return [record for _, record in self.records]

    @property
    def handlers(self) -> set[str]:
        return {name for name, _ in self.records}


# -- 000: one log, acknowledged record by record ---------------------------------------


async def test_basic_usage(aclient: nexo.AsyncClient) -> None:
    stream = await aclient.stream("user-events", UserEvent).create()
    await stream.publish(UserEvent("login", "u1"))
    said: list[str] = []
    done = asyncio.Event()

    def handle(record: Record[UserEvent]) -> None:
        said.append(f"User {record.value.user_id} performed {record.value.type}")
        done.set()

    subscription = await stream.subscribe("analytics", handle)
    async with asyncio.timeout(WAIT_S):
        await done.wait()
    await subscription.close()
    assert said == ["User u1 performed login"]
    await stream.delete()
    assert not await stream.exists()


async def test_dynamic_fan_out_more_consumers_than_partitions_all_work(
    aclient: nexo.AsyncClient,
) -> None:
    """SPEC F1: five consumers of a stream with one partition, which joined at run time."""
    stream = await aclient.stream("orders").create()
    seen = Seen(200)
    subscriptions = [
        await stream.subscribe("workers", seen.handler(f"c{number}"), batch=5)
        for number in range(5)
    ]
    await stream.publish_many(range(200))
    records = await seen.all()
    for subscription in subscriptions:
        await subscription.close()
    assert sorted(record.value for record in records) == list(range(200))
    assert len(seen.handlers) > 1
    assert await stream.group("workers").lag() == 0


async def test_streams_are_as_cheap_as_keys(tmp_path: Path) -> None:
    """SPEC E1: far more streams than open files."""
    async with (
        testing.server_async(tmp_path, max_open_files=16) as url,
        nexo.AsyncClient(url) as client,
    ):
        streams = [client.stream(f"ai_chat_{number}") for number in range(200)]
        for stream in streams:
            await stream.create()
        await asyncio.gather(*(stream.publish(stream.name) for stream in streams))
        found = [(await stream.read())[0].value for stream in streams]
        assert found == [stream.name for stream in streams]


async def test_retention_defaults_to_a_week_and_a_gibibyte(aclient: nexo.AsyncClient) -> None:
    options = (await (await aclient.stream("s").create()).info()).options
    assert options["retention_ms"] == 7 * 86_400_000
    assert options["retention_bytes"] == 1024**3


async def test_ack_moves_on_and_nack_redelivers_at_once(aclient: nexo.AsyncClient) -> None:
    """SPEC F2."""
    stream = await aclient.stream("jobs").create()
    await stream.publish_many(["good", "bad"])
    tries: list[tuple[str, int]] = []
    done = asyncio.Event()

    def handle(record: Record[str]) -> None:
        tries.append((record.value, record.attempt))
        if record.value == "bad" and record.attempt == 1:
            raise ValueError("not now")
        if record.value == "bad":
            done.set()

    subscription = await stream.subscribe("g", handle)
    async with asyncio.timeout(WAIT_S):
        await done.wait()
    await subscription.close()
    assert tries == [("good", 1), ("bad", 1), ("bad", 2)]
    assert await stream.group("g").lag() == 0


async def test_a_worker_that_is_silent_loses_its_record(aclient: nexo.AsyncClient) -> None:
    """SPEC F2: after ``ack_wait``, 30 seconds unless the group says otherwise."""
    stream = await aclient.stream("jobs").create()
    await stream.publish("x")
    async with stream.consume("g", ack_wait=1) as silent, stream.consume("g") as other:
        (first,) = await silent.fetch()
        (again,) = await other.fetch(wait=WAIT_S)
        assert (first.attempt, again.attempt) == (1, 2)
        await again.ack()
    assert (await stream.group("g").info()).options["ack_wait_ms"] == 1_000


async def test_scaling_service_same_group(aclient: nexo.AsyncClient) -> None:
    orders = await aclient.stream("orders", Order).create()
    seen = Seen(30)
    instances = [
        await orders.subscribe("worker-group", seen.handler(f"pod-{number}"), batch=3)
        for number in range(3)
    ]
    await orders.publish_many([Order(number) for number in range(30)])
    processed = [record.value.id for record in await seen.all()]
    for instance in instances:
        await instance.close()
    assert sorted(processed) == list(range(30))


async def test_replay_from_beginning(aclient: nexo.AsyncClient) -> None:
    stream = await aclient.stream("s").create()
    await stream.publish_many(range(5))
    async with stream.consume("analytics-v2") as consumer:
        await (await consumer.fetch()).ack()
    await stream.seek("analytics-v2", "beginning")
    seen = Seen(5)
    subscription = await stream.subscribe("analytics-v2", seen.handler())
    assert [record.value for record in await seen.all()] == list(range(5))
    await subscription.close()


async def test_skip_to_end(aclient: nexo.AsyncClient) -> None:
    stream = await aclient.stream("s").create()
    await stream.publish_many(range(5))
    await stream.seek("live-dashboard", "end")
    seen = Seen(1)
    subscription = await stream.subscribe("live-dashboard", seen.handler())
    await stream.publish("now")
    assert [record.value for record in await seen.all()] == ["now"]
    await subscription.close()


async def test_active_subscribers_follow_a_seek(aclient: nexo.AsyncClient) -> None:
    """SPEC F4."""
    stream = await aclient.stream("s").create()
    await stream.publish_many(range(3))
    seen = Seen(6)
    subscription = await stream.subscribe("g", seen.handler())

    async def finished() -> bool:
        return await stream.group("g").lag() == 0

    await eventually(finished)
    await stream.seek("g", "beginning")
    assert [record.value for record in await seen.all()] == [0, 1, 2, 0, 1, 2]
    await subscription.close()


# -- 001: partitions and keys ---------------------------------------------------------------


async def test_advanced_creation(aclient: nexo.AsyncClient) -> None:
    orders = await aclient.stream("orders", Order).create(
        partitions=4,
        persistence="file_sync",
        retention={"max_age": "1d", "max_bytes": 536_870_912},
    )
    info = await orders.info()
    assert len(info.partitions) == 4
    assert info.options["persistence"] == "file_sync"
    assert (await orders.publish(Order(1))).offset == 0


async def test_partitions_are_fixed_at_creation_unless_more_are_asked_for(
    aclient: nexo.AsyncClient,
) -> None:
    """SPEC E1."""
    orders = await aclient.stream("orders").create(partitions=4)
    with pytest.raises(AlreadyExists):
        await orders.create(partitions=5)
    with pytest.raises(InvalidOption):
        await orders.update(partitions=3)
    assert len((await orders.info()).partitions) == 4
    await orders.update(partitions=5)
    assert len((await orders.info()).partitions) == 5


async def test_records_without_a_key_take_turns(aclient: nexo.AsyncClient) -> None:
    stream = await aclient.stream("s").create(partitions=4)
    places = [await stream.publish({"type": "login", "user": "u1"}) for _ in range(8)]
    assert sorted(place.partition for place in places) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_records_of_a_key_keep_their_order(aclient: nexo.AsyncClient) -> None:
    """SPEC E2, F8: also where several consumers share the work."""
    stream = await aclient.stream("s", UserEvent).create(partitions=4)
    login = await stream.publish(UserEvent("login", "u1"), key="u1")
    purchase = await stream.publish(UserEvent("purchase", "u1"), key="u1")
    assert (login.partition, login.offset + 1) == (purchase.partition, purchase.offset)
    seen = Seen(2)
    subscriptions = [
        await stream.subscribe("g", seen.handler(), ordered_by="key") for _ in range(3)
    ]
    assert [record.value.type for record in await seen.all()] == ["login", "purchase"]
    for subscription in subscriptions:
        await subscription.close()


@pytest.mark.parametrize("persistence", ["file_async", "file_sync"])
async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, persistence: str) -> None:
    """SPEC E3."""
    server = testing.Server(data_dir=tmp_path)
    server.start()
    try:
        async with nexo.AsyncClient(server.url) as client:
            stream = await client.stream("s").create(persistence=persistence)
            await stream.publish_many(range(100))
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
            assert [record.value for record in await stream.read()] == list(range(100))
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_each_of_several_groups_gets_every_record(
    aclient: nexo.AsyncClient, partitions: int
) -> None:
    orders = await aclient.stream("orders", Order).create(partitions=partitions)
    analytics, audit_log = Seen(20), Seen(20)
    subscriptions = [
        await orders.subscribe("analytics", analytics.handler()),
        await orders.subscribe("audit-log", audit_log.handler()),
    ]
    await orders.publish_many([Order(n) for n in range(20)], keys=[f"c{n % 5}" for n in range(20)])
    for service in (analytics, audit_log):
        assert sorted(record.value.id for record in await service.all()) == list(range(20))
    for subscription in subscriptions:
        await subscription.close()
