"""Partitions added while clients are at work (SPEC E1)."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import nexo
from nexo.batch.partitions import partition_of
from nexo.client._async.stream.stream import Stream
from nexo.errors import AlreadyExists, InvalidOption, NotFound
from nexo.testing import Server
from nexo.topics import AsyncAdminClient, AsyncConsumer, AsyncProducer, AsyncTopic
from tests.integration.classic import Classic
from tests.integration.test_stream_classic import ACK, Streams

KEYS = [f"key-{number}" for number in range(40)]


def in_place(stored: dict[int, list[tuple[str, int]]], before: int, after: int) -> None:
    """Every key's records are in its partition of then or of now, in the order they were sent."""
    by_key = defaultdict[str, list[tuple[int, int]]](list)
    for partition, rows in stored.items():
        for key, number in rows:
            by_key[key].append((number, partition))
    for key, sent in by_key.items():
        homes = {partition_of(key.encode(), count) for count in (before, after)}
        assert {partition for _, partition in sent} <= homes
        for home in homes:
            numbers = [number for number, partition in sent if partition == home]
            assert sorted(numbers) == numbers
        ordered = [partition for _, partition in sorted(sent)]
        changes = sum(one != next_ for one, next_ in itertools.pairwise(ordered))
        assert changes <= 1  # once moved, it stays


async def rows_of(stream: Stream[Any], partitions: int) -> dict[int, list[tuple[str, int]]]:
    found: dict[int, list[tuple[str, int]]] = {}
    for partition in range(partitions):
        found[partition] = []
        while records := await stream.read(partition, len(found[partition])):
            found[partition] += [(str(row.key), row.value) for row in records]
    return found


@pytest.mark.parametrize("many", [False, True])
async def test_publishers_learn_the_new_count_and_lose_nothing(
    aclient: nexo.AsyncClient, nexo_server: Server, many: bool
) -> None:
    stream: Stream[Any] = await aclient.stream("s").create(partitions=2)
    sent = 0
    for count in (2, 2, 5, 5):
        async with nexo.AsyncClient(
            nexo_server.url
        ) as admin:  # another client than the publisher's
            await admin.stream("s").update(partitions=count)
        for _ in range(5):
            numbers = list(range(sent, sent + len(KEYS)))
            sent += len(KEYS)
            if many:
                await stream.publish_many(numbers, keys=KEYS)
            else:
                pairs = zip(KEYS, numbers, strict=True)
                await asyncio.gather(*(stream.publish(n, key=key) for key, n in pairs))
    stored = await rows_of(stream, 5)
    assert sorted(n for rows in stored.values() for _, n in rows) == list(range(sent))
    in_place(stored, 2, 5)
    assert sum(map(bool, stored.values())) == 5


def test_the_sync_publisher_learns_it_too(nexo_server: Server) -> None:
    with nexo.connect(nexo_server.url) as one, nexo.connect(nexo_server.url) as other:
        stream = one.stream("s").create(partitions=2)
        places = [stream.publish(0, key=key) for key in KEYS]
        other.stream("s").update(partitions=5)
        again = [stream.publish(1, key=key) for key in KEYS]
        assert {place.partition for place in places} == {0, 1}
        assert [place.partition for place in again] == [partition_of(k.encode(), 5) for k in KEYS]


async def test_producers_and_members_of_topics_follow(aclient: nexo.AsyncClient) -> None:
    """SPEC G3, G6: one message once, though the count changes while batches are on their way."""
    async with AsyncAdminClient(aclient) as admin:
        await admin.create_topic("s", partitions=2)
        got: list[int] = []
        consumer = AsyncConsumer("s", "g", server=aclient, auto_offset_reset="latest")
        producer = AsyncProducer(server=aclient, batch_size=7, linger_ms=1)
        async with consumer, producer:
            assert await consumer.poll(timeout=0.1) is None
            sent = 0

            async def send(times: int) -> None:
                nonlocal sent
                for _ in range(times):
                    for key in KEYS:
                        await producer.send("s", sent, key=key)
                        sent += 1

            await send(3)
            grown = asyncio.ensure_future(admin.create_partitions("s", 6))
            await send(10)
            assert len((await grown).partitions) == 6
            await send(3)
            await producer.flush()
            async with asyncio.timeout(30):
                while len(got) < sent:
                    message = await consumer.poll(timeout=1)
                    if message is not None:
                        got.append(message.value)
        assert sorted(got) == list(range(sent))
        stored = await rows_of(aclient.stream("s"), 6)
        assert sorted(n for rows in stored.values() for _, n in rows) == list(range(sent))
        in_place(stored, 2, 6)


async def test_the_admin_client_adds_and_never_removes(aclient: nexo.AsyncClient) -> None:
    async with AsyncAdminClient(aclient) as admin:
        await admin.create_topic("s", partitions=2)
        for wrong in (1, 2):
            with pytest.raises(InvalidOption, match="never removed"):
                await admin.create_partitions("s", wrong)
        with pytest.raises(InvalidOption, match="1,024"):
            await admin.create_partitions("s", 2_000)
        with pytest.raises(InvalidOption):
            await admin.create_partitions("s", 0)
        with pytest.raises(NotFound):
            await admin.create_partitions("missing", 4)
        assert len((await admin.create_partitions("s", 3)).partitions) == 3


async def test_the_current_state_has_each_key_once(aclient: nexo.AsyncClient) -> None:  # SPEC G2
    topic: AsyncTopic[Any] = AsyncTopic("s", partitions=2, compaction=True, server=aclient)
    for key in KEYS:
        await topic.produce("old", key=key)
    await aclient.stream("s").update(partitions=5)
    for key in KEYS[:20]:
        await topic.produce("new", key=key)
    await topic.produce(None, key=KEYS[0])
    expected = dict.fromkeys(KEYS[1:20], "new") | dict.fromkeys(KEYS[20:], "old")
    assert await topic.read_current_state() == expected
    assert await topic.get(KEYS[0]) is None
    await aclient.stream("s").compact()
    assert await topic.read_current_state() == expected


async def test_create_with_update_adds_them_and_without_says_so(aclient: nexo.AsyncClient) -> None:
    stream: Stream[Any] = await aclient.stream("s").create(partitions=2)
    with pytest.raises(AlreadyExists, match="update it"):
        await stream.create(partitions=3)
    await stream.create(partitions=3, update=True)
    assert len((await stream.info()).partitions) == 3


@pytest.fixture
def classic(nexo_server: Server) -> Iterator[Streams]:
    with Classic("127.0.0.1", nexo_server.port) as found:
        yield Streams(found)


def test_sequences_that_the_documents_client_holds_keep_their_meaning(
    classic: Streams, nexo_server: Server
) -> None:
    """An ack of a record from before must not finish another one."""
    with nexo.connect(nexo_server.url) as client:
        stream = client.stream("s").create(partitions=2)
        member = classic.join("g", "s")
        for number in range(6):
            stream.publish(number, partition=number % 2)
        held = classic.fetch("s", "g", member)
        assert sorted(sequence for sequence, _ in held) == [1, 2, 3, 4, 5, 6]
        stream.update(partitions=5)
        for number in range(6, 12):
            stream.publish(number, partition=number % 5)
        later = classic.fetch("s", "g", member)
        assert sorted(value for _, value in later if isinstance(value, int)) == list(range(6, 12))
        kept = {sequence: value for sequence, value in [*held, *later] if value in (3, 8)}
        for sequence, _ in [*held, *later]:
            assert sequence < 2**53  # as far as numbers are exact there
            if sequence not in kept:
                classic.settle(ACK, "s", "g", member, sequence)
        info = stream.group("g").info()
        left = [(number, part.floor) for number, part in enumerate(info.partitions) if part.lag]
        assert (info.lag, left) == (2, [(1, 1), (3, 0)])  # 3 and 8
