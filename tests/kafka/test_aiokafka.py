"""aiokafka against the stream broker (SPEC L2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import ProducerFenced

from tests.kafka.ledger import shows
from tests.timing import eventually


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def producer(bootstrap: str, **options: Any) -> Any:
    return started(AIOKafkaProducer(bootstrap_servers=bootstrap, **options))


def consumer(bootstrap: str, *topics: str, **options: Any) -> Any:
    options = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, **options}
    return started(AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **options))


async def create(bootstrap: str, topic: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1)])
    await admin.close()


@shows("aiokafka", "produce and read: keys, headers, null, each compression")
@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_messages_come_back(bootstrap: str, topic: str, compression: str | None) -> None:
    await create(bootstrap, topic)
    headers = [("a", b"1"), ("a", b"2")]
    async with producer(bootstrap, compression_type=compression, enable_idempotence=True) as to:
        for key, value in ((b"k", b"v" * 1_000), (None, b"v"), (b"k", None)):
            await to.send_and_wait(topic, value, key, headers=headers, timestamp_ms=5_000)
    async with consumer(bootstrap, topic) as of:
        found = [await of.getone() for _ in range(3)]
    assert [(one.key, one.value) for one in found] == [
        (b"k", b"v" * 1_000),
        (None, b"v"),
        (b"k", None),
    ]
    assert [(one.offset, one.timestamp, list(one.headers)) for one in found] == [
        (offset, 5_000, headers) for offset in range(3)
    ]


@shows("aiokafka", "groups: rebalance, commit, resume")
async def test_members_share_partitions(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, 4)
    async with producer(bootstrap) as to:
        for number in range(40):
            await to.send_and_wait(topic, b"%d" % number, partition=number % 4)
    async with consumer(bootstrap, topic, group_id=topic, enable_auto_commit=False) as first:
        await eventually(lambda: len(first.assignment()) == 4)
        async with consumer(bootstrap, topic, group_id=topic) as second:
            await eventually(lambda: len(first.assignment()) == len(second.assignment()) == 2)
        await eventually(lambda: len(first.assignment()) == 4)
        seen = {(one.partition, one.offset) for one in [await first.getone() for _ in range(40)]}
        assert len(seen) == 40
        await first.commit()
        assert await first.committed(TopicPartition(topic, 3)) == 10
    async with consumer(bootstrap, topic, group_id=topic) as again:
        assert await again.getmany(timeout_ms=300) == {}


@shows("aiokafka", "seek, offsets by time, bounds")
async def test_places_are_found(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic)
    async with producer(bootstrap) as to:
        for time_ms in (1_000, 2_000, 3_000):
            await to.send_and_wait(topic, b"%d" % time_ms, timestamp_ms=time_ms)
    at = TopicPartition(topic, 0)
    async with consumer(bootstrap) as of:
        of.assign([at])
        assert (await of.offsets_for_times({at: 1_500}))[at].offset == 1
        assert (await of.beginning_offsets([at]), await of.end_offsets([at])) == ({at: 0}, {at: 3})
        of.seek(at, 2)
        assert (await of.getone()).value == b"3000"


@shows("aiokafka", "transactions")
async def test_transactions_are_whole_or_absent(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic)
    at = TopicPartition(topic, 0)
    async with producer(bootstrap, transactional_id=topic) as to:
        await to.begin_transaction()
        await to.send_and_wait(topic, b"lost")
        await to.abort_transaction()
        async with to.transaction():
            await to.send_and_wait(topic, b"kept")
            await to.send_offsets_to_transaction({at: 1}, f"{topic}-group")
        async with producer(bootstrap, transactional_id=topic):
            await to.begin_transaction()
            with pytest.raises(ProducerFenced):
                await to.send_and_wait(topic, b"fenced")
    options = {"isolation_level": "read_committed", "group_id": f"{topic}-group"}
    async with consumer(bootstrap, **options) as of:
        assert await of.committed(at) == 1
        of.assign([at])
        of.seek(at, 0)
        assert (await of.getone()).value == b"kept"
