"""Every example of the topics document, in Python, in its order (SPEC G, H).

Tables over the lake and their SQL are tested with the pipeline.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

import nexo
from nexo import testing
from nexo.topics import (
    AsyncAdminClient,
    AsyncConsumer,
    AsyncConsumerGroup,
    AsyncExactlyOnceContext,
    AsyncOnceTransaction,
    AsyncProducer,
    AsyncTopic,
    Rebalance,
)
from tests.timing import eventually

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _local_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document names no server: there is one, and it is meant."""
    monkeypatch.setenv("NEXO_URL", url)


@dataclass
class OrderEvent:
    customer_id: str
    total: float


@dataclass
class UserProfile:
    name: str


async def test_topic() -> None:
    async with AsyncTopic(
        "orders", partitions=8, retention="7d", compaction=False, type_=OrderEvent
    ) as orders:
        place = await orders.produce(
            OrderEvent("cust_1", 99.99),
            key="order_123",  # determines the partition
            headers={"source": "checkout"},
        )
        assert place.partition == 5
        places = await orders.produce_batch(
            [
                {"key": "order_124", "value": OrderEvent("cust_2", 1.0)},
                {"key": "order_125", "value": OrderEvent("cust_3", 2.0)},
            ]
        )
        assert len(places) == 2
        with pytest.raises(nexo.NexoError):
            await orders.produce_batch([{"key": "order_126"}])


async def test_consumer_with_auto_commit_and_manual_commit() -> None:
    async with AsyncTopic("orders", partitions=1) as orders:
        await orders.produce_batch([{"key": f"order_{i}", "value": i} for i in range(6)])

    processed = []
    async with AsyncConsumer(
        "orders", group_id="order-processor", auto_commit=True, auto_commit_interval=5.0
    ) as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            processed.append(message.value)
            if len(processed) == 3:
                break
            # committed when the next one is asked for

    async with AsyncConsumer("orders", group_id="order-processor", auto_commit=False) as consumer:
        async for message in consumer:
            processed.append(message.value)
            await consumer.commit(message.offset)
            if len(processed) == 6:
                break
    assert processed == list(range(6))


async def test_consumer_group() -> None:
    async with AsyncTopic("orders", partitions=8) as orders:
        await orders.create()
    async with AsyncConsumerGroup(
        "order-processor",
        topics=["orders"],
        rebalance_strategy="range",  # or "roundRobin"
    ) as group:
        told: list[Rebalance] = []
        group.on("rebalance", told.append)
        first = await group.join()
        second = await group.join()
        await eventually(lambda: len(told) == 3)
        assert [at.partition for at in first.assignment] == [0, 1, 2, 3]
        assert [at.partition for at in second.assignment] == [4, 5, 6, 7]
        assert [event.kind for event in told] == ["assigned", "revoked", "assigned"]


async def test_admin_producer_and_seek() -> None:
    async with AsyncAdminClient() as admin:
        await admin.create_topic(
            "events",
            partitions=4,
            replication_factor=1,
            config={"retention.ms": 7 * 24 * 60 * 60 * 1000, "cleanup.policy": "delete"},
        )
        assert await admin.list_topics() == ["events"]
        assert len((await admin.describe_topic("events")).partitions) == 4

        async with AsyncProducer(
            partitioner="murmur2", compression="gzip", batch_size=100, linger_ms=10
        ) as producer:
            sent = await producer.send(
                "events",
                {"action": "login", "timestamp": int(time.time() * 1000)},
                key="user_123",
            )
            for number in range(1_100):
                producer.send("events", number, partition=0)

        async with AsyncConsumer("events", group_id="analytics") as consumer:
            await consumer.seek_to_beginning()  # replay from the start
            assert len(await consumer.poll_batch(2_000, timeout=WAIT_S)) > 0
            await consumer.seek_to_end()  # skip to the latest
            assert await consumer.poll(0.05) is None
            await consumer.seek({"partition": 0, "offset": 1_000})  # a specific offset
            message = await consumer.poll(WAIT_S)
            assert message is not None
            assert (message.partition, message.offset) == (0, 1_000)
        assert sent.topic == "events"
        await admin.delete_topic("events")
        assert await admin.list_topics() == []


async def test_exactly_once_transaction() -> None:
    async with AsyncAdminClient() as admin:
        await admin.create_topic("input")
        await admin.create_topic("output")
    async with AsyncTopic("input") as source:
        await source.produce(20, key="k")

    async with (
        AsyncExactlyOnceContext(name="doubler") as context,
        AsyncConsumer("input", group_id="doubler") as input_consumer,
        AsyncConsumer("output", group_id="check") as output,
    ):

        async def step(tx: AsyncOnceTransaction) -> None:
            # read from the input topic
            message = await input_consumer.poll(WAIT_S)
            assert message is not None
            # process
            result = message.value * 2
            # write to the output topic (part of the transaction)
            await tx.produce("output", result, key=message.key)
            # commit the input offset (part of the transaction)
            await tx.commit(message.offset)

        await context.transaction(step)
        found = await output.poll(WAIT_S)
        assert found is not None
        assert (found.key, found.value) == ("k", 40)


async def test_compacted_topic() -> None:
    async with AsyncTopic(
        "user-profiles", compaction=True, min_cleanable_dirty_ratio=0.5, type_=UserProfile
    ) as profiles:
        await profiles.produce(UserProfile("Alice"), key="user_1")
        await profiles.produce(UserProfile("Alice Smith"), key="user_1")
        async with AsyncAdminClient() as admin:
            await admin.compact_topic("user-profiles")
        assert await profiles.get("user_1") == UserProfile("Alice Smith")
        assert await profiles.read_current_state() == {"user_1": UserProfile("Alice Smith")}
    async with AsyncConsumer("user-profiles", group_id="g", type_=UserProfile) as consumer:
        kept = await consumer.poll_batch(timeout=WAIT_S)
        assert [(m.offset, m.value) for m in kept] == [(1, UserProfile("Alice Smith"))]


async def test_the_tables_of_the_schema_can_be_filled() -> None:
    """``stream_messages``, ``stream_offsets`` and ``stream_groups``, from what the API shows."""
    async with AsyncTopic("orders", partitions=2) as orders:
        await orders.produce({"total": 1}, key="order_1", headers={"source": "x"})
    async with AsyncConsumerGroup("g", topics="orders") as group:
        member = await group.join()
        message = await member.poll(WAIT_S)
        assert message is not None
        row = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "key": message.key,
            "value": json.dumps(message.value),
            "headers": json.dumps(message.headers),
            "timestamp": message.timestamp_ms,
        }
        assert None not in row.values()
        await member.commit(message, metadata="note")
        described = await group.describe()
    (stored,) = described.committed.values()
    assert (stored.offset, stored.metadata) == (0, "note")
    assert stored.committed_at is not None
    assert (datetime.now(UTC) - stored.committed_at).total_seconds() < 60
    assert described.leader in described.members
    assert set(described.assignment.values()) == set(described.members)


async def test_change_events() -> None:  # SPEC I6
    async with testing.server_async(stream_cdc=True) as url, nexo.AsyncClient(url) as client:
        orders: AsyncTopic[int] = AsyncTopic("orders", partitions=8, server=client)
        await orders.produce(1, key="order_123")
        async with AsyncConsumer("orders", "order-processor", server=client) as consumer:
            await consumer.poll(WAIT_S)
            await consumer.commit()  # closing does not repeat it
        events = [record.value for record in await client.stream("$cdc").read(wait=WAIT_S)]
    produced, committed = events
    assert produced.pop("timestamp") > 0
    assert produced == {
        "type": "stream.produce",
        "topic": "orders",
        "partition": 5,
        "offset": 0,
        "key": "order_123",
    }
    assert committed == {
        "type": "stream.commit",
        "group_id": "order-processor",
        "topic": "orders",
        "partition": 5,
        "offset": 0,
    }
