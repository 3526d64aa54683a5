"""Topics, producers and consumers over TCP (SPEC G1-G5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import nexo
from nexo.batch import BatchProducer as ProducerId
from nexo.batch import encode
from nexo.batch.partitions import partition_of
from nexo.errors import (
    AlreadyExists,
    ClientClosed,
    Conflict,
    Fenced,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotFound,
    NotOwner,
    OutOfOrderSequence,
    PayloadTooLarge,
    RequestTimeout,
)
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import ProducerStart, publish_head, read_places
from nexo.topics import (
    AsyncAdminClient,
    AsyncConsumer,
    AsyncExactlyOnceContext,
    AsyncProducer,
    AsyncTopic,
    Position,
    ProducerRecord,
    RecordMetadata,
    TopicMessage,
    TopicPartition,
)
from nexo.topics._async.nexo_backend import backend_for
from nexo.topics.model import ReaderOptions

QUICK_S = 0.05


@pytest.fixture
def admin(aclient: nexo.AsyncClient) -> AsyncAdminClient:
    return AsyncAdminClient(aclient)


async def fill(client: nexo.AsyncClient, topic: str, count: int, partitions: int = 1) -> None:
    """A topic with messages 0, 1, 2, …, in turn over its partitions."""
    await AsyncAdminClient(client).create_topic(topic, partitions)
    async with AsyncProducer(server=client) as producer:
        for number in range(count):
            producer.send(topic, number, partition=number % partitions)


async def values(consumer: AsyncConsumer[Any], count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(10):
        async for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
    return found


# -- administration (G1)


async def test_a_topic_is_created_listed_described_and_deleted(admin: AsyncAdminClient) -> None:
    made = await admin.create_topic(
        "events", 4, config={"retention.ms": 60_000, "cleanup.policy": "compact"}
    )
    assert [part.partition for part in made.partitions] == [0, 1, 2, 3]
    assert made.config["retention.ms"] == 60_000
    assert made.config["cleanup.policy"] == "compact"
    assert await admin.list_topics() == ["events"]
    await admin.delete_topic("events")
    assert await admin.list_topics() == []


async def test_a_description_shows_the_earliest_and_next_offset(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await fill(aclient, "t", 5, partitions=2)
    parts = (await admin.describe_topic("t")).partitions
    assert [(part.earliest_offset, part.next_offset) for part in parts] == [(0, 3), (0, 2)]


@pytest.mark.parametrize("partitions", [0, -1, 1.5, "2", True, None, 100_000, 10**30])
async def test_a_count_of_partitions_that_makes_no_sense_is_refused(
    admin: AsyncAdminClient, partitions: Any
) -> None:
    with pytest.raises(InvalidOption, match="partitions"):
        await admin.create_topic("t", partitions)
    assert await admin.list_topics() == []


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"retention.hours": 1}, "retention.hours"),
        ({"cleanup.policy": "shred"}, "shred"),
        ({"retention.ms": "soon"}, "soon"),
        ({"retention.ms": -2}, "-2"),
        ({"min.cleanable.dirty.ratio": 2}, "min.cleanable.dirty.ratio"),
        ({"retention.ms": 2**63}, "retention.ms"),
        ({"max.message.bytes": -1}, "max.message.bytes"),
        ({"cleanup.policy": ["compact"]}, "cleanup.policy"),
        ({"cleanup.policy": {}}, "cleanup.policy"),
        ({"nexo.persistence": "paper"}, "nexo.persistence"),
        ({"nexo.persistence": []}, "nexo.persistence"),
        ({"nexo.tiering": "yes"}, "nexo.tiering"),
        ({7: 1}, "7"),
        (7, "mapping"),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_by_name(
    admin: AsyncAdminClient, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidOption, match=named):
        await admin.create_topic("t", config=config)
    assert await admin.list_topics() == []


async def test_duplicate_and_missing_topics_are_typed_errors(admin: AsyncAdminClient) -> None:
    await admin.create_topic("t")
    with pytest.raises(AlreadyExists, match="'t'"):
        await admin.create_topic("t")
    for missing in (admin.describe_topic, admin.delete_topic, admin.compact_topic):
        with pytest.raises(NotFound, match="'none'"):
            await missing("none")
    with pytest.raises(InvalidName):
        await admin.create_topic("no spaces")
    with pytest.raises(InvalidOption, match="one copy"):
        await admin.create_topic("u", replication_factor=3)


async def test_deleting_a_topic_forgets_what_groups_committed(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await fill(aclient, "t", 3)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await values(consumer, 3) == [0, 1, 2]
    await admin.delete_topic("t")
    await fill(aclient, "t", 3)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await values(consumer, 3) == [0, 1, 2]


# -- topics (G2)


async def test_a_topic_is_created_on_first_use(aclient: nexo.AsyncClient) -> None:
    orders: AsyncTopic[Any] = AsyncTopic("orders", partitions=8, retention="7d", server=aclient)
    place = await orders.produce({"total": 99.99}, key="order_123", headers={"source": "checkout"})
    assert place == ("orders", 5, 0)  # SPEC E2
    found = await orders.describe()
    assert found.config["retention.ms"] == 7 * 86_400_000
    assert len(found.partitions) == 8


async def test_a_topic_that_exists_otherwise_is_a_conflict(aclient: nexo.AsyncClient) -> None:
    await AsyncTopic("t", partitions=2, server=aclient).create()
    await AsyncTopic("t", server=aclient).produce("whatever it is like")
    with pytest.raises(AlreadyExists, match="2 partitions, not 3"):
        await AsyncTopic("t", partitions=3, server=aclient).produce("x")
    with pytest.raises(AlreadyExists, match=r"cleanup\.policy"):
        await AsyncTopic("t", compaction=True, server=aclient).produce("x")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"retention": "fortnight"}, "fortnight"),
        ({"retention": -7}, "retention -7"),
        ({"partitions": 0}, "partitions"),
        ({"compaction": "yes"}, "compaction"),
        ({"name": 7}, "name"),
        ({"name": "\ud800"}, "UTF-8"),
        ({"server": 7}, "server must be a client or a URL"),
    ]
    for options, named in bad:
        with pytest.raises(InvalidInput, match=named):
            AsyncTopic(**{"name": "t", "server": aclient, **options})
    async with AsyncTopic("hour", retention=timedelta(hours=1), server=aclient) as topic:
        assert (await topic.create()).config["retention.ms"] == 3_600_000


async def test_a_batch_is_stored_whole_or_not_at_all(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t", 8, config={"max.message.bytes": 100})
    topic: AsyncTopic[Any] = AsyncTopic("t", server=aclient)
    good = [{"key": f"k{i}", "value": i} for i in range(50)]
    places = await topic.produce_batch(good)
    assert len({place.partition for place in places}) > 1
    with pytest.raises(PayloadTooLarge):
        await topic.produce_batch([*good, {"key": "last", "value": "x" * 200}])
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert sorted(await values(consumer, 50)) == list(range(50))
        assert await consumer.poll(QUICK_S) is None


async def test_a_record_can_be_sent_whole(aclient: nexo.AsyncClient) -> None:
    """SPEC G2, G3: a `ProducerRecord` is never taken for a value."""
    topic: AsyncTopic[Any] = AsyncTopic("t", partitions=3, server=aclient)
    record = ProducerRecord("whole", key="order_123", headers={"source": "checkout"})
    assert (await topic.produce(record)).partition == 2
    async with AsyncProducer(server=aclient) as producer:
        assert (await producer.send("t", record)).partition == 2
        with pytest.raises(InvalidInput, match="within"):
            producer.send("t", record, key="k")
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        found = await consumer.poll_batch(timeout=5)
    assert [(m.value, m.key, m.headers) for m in found] == [
        ("whole", "order_123", {"source": "checkout"})
    ] * 2


async def test_a_batch_says_where_each_message_went(aclient: nexo.AsyncClient) -> None:
    topic: AsyncTopic[Any] = AsyncTopic("t", partitions=4, server=aclient)
    records = [ProducerRecord(i, key=f"k{i % 7}") for i in range(30)]
    places = await topic.produce_batch(records)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        async with asyncio.timeout(10):
            for _ in range(30):
                message = await consumer.poll(5)
                assert message is not None
                assert message.position == places[message.value]
    bad: list[Any] = [[{"key": "k"}], [1], [None], 7, {"value": 1}, ProducerRecord(1), "ab"]
    bad += [[{"value": 1, "partition": 9}], [{"value": 1, "partition": "x"}]]
    bad += [[{"value": 1, "key": 5}], [{"value": 1, "headers": 5}], [{"value": 1, "headers": "x"}]]
    bad += [[{"value": "\ud800"}], [{"value": 1, "key": "\ud800"}]]
    for batch in bad:
        with pytest.raises(InvalidInput):
            await topic.produce_batch(batch)
    ends = [part.next_offset for part in (await topic.describe()).partitions]
    assert sum(ends) == 30


async def test_the_newest_value_of_each_key_can_be_read(aclient: nexo.AsyncClient) -> None:
    @dataclass
    class Profile:
        name: str

    users = AsyncTopic("users", partitions=3, compaction=True, server=aclient, type_=Profile)
    for number in range(20):
        await users.produce(Profile(f"name {number}"), key=f"u{number % 4}")
    await users.produce(None, key="u0")
    assert await users.get("u1") == Profile("name 17")
    assert await users.get("u0") is None
    assert await users.get("never") is None
    for key in (None, 5):
        with pytest.raises(InvalidInput, match="key"):
            await users.get(key)  # type: ignore[arg-type]
    state = await users.read_current_state()
    assert state == {"u1": Profile("name 17"), "u2": Profile("name 18"), "u3": Profile("name 19")}
    freed = await AsyncAdminClient(aclient).compact_topic("users")
    assert freed > 0
    assert await users.read_current_state() == state


async def test_a_key_that_is_no_text_stays_bytes(aclient: nexo.AsyncClient) -> None:
    """SPEC G1-G4."""
    raw = b"\xff\xfe"
    topic: AsyncTopic[Any] = AsyncTopic("t", server=aclient)
    await topic.produce("raw", key=raw)
    await topic.produce("text", key=b"text")
    assert await topic.get(raw) == "raw"
    assert await topic.read_current_state() == {raw: "raw", "text": "text"}
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert [message.key for message in await consumer.poll_batch(timeout=5)] == [raw, "text"]


# -- producers (G3)


async def test_a_batch_leaves_when_it_is_full_or_after_the_linger(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t")
    async with AsyncProducer(server=aclient, batch_size=10, linger_ms=60_000) as producer:
        full = [producer.send("t", i) for i in range(10)]
        assert [(await each).offset for each in full] == list(range(10))
        waiting = producer.send("t", "alone")
        await asyncio.sleep(QUICK_S)
        assert not waiting.done()
        await producer.flush()
        assert (await waiting).offset == 10
    async with AsyncProducer(server=aclient, batch_size=1000, linger_ms=1) as producer:
        assert (await producer.send("t", "soon").result(5)).offset == 11


async def test_closing_a_producer_loses_nothing(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 1_000, partitions=3)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert sorted(await values(consumer, 1_000)) == list(range(1_000))
    producer = AsyncProducer(server=aclient)
    await producer.close()
    with pytest.raises(Conflict, match="closed"):
        producer.send("t", 1)


def test_a_producer_whose_event_loop_has_ended_says_so(nexo_url: str) -> None:  # SPEC G3
    producer = AsyncProducer(server=nexo_url, linger_ms=0)

    async def send() -> RecordMetadata:
        return await producer.send("t", 1)

    with nexo.connect(nexo_url) as client:
        client.stream("t").create()
    assert asyncio.run(send()).offset == 0
    with pytest.raises(Conflict, match="has ended with the event loop"):
        asyncio.run(asyncio.wait_for(send(), 10))
    asyncio.run(producer.close())


async def test_a_producer_closed_after_its_client_fails_at_once(nexo_url: str) -> None:
    """SPEC G3: it says so, and does not try until the delivery timeout."""
    client = nexo.AsyncClient(nexo_url)
    await client.stream("t").create()
    producer = AsyncProducer(server=client, linger_ms=60_000, delivery_timeout=3_600)
    sent = producer.send("t", 1)
    await client.close()
    with pytest.raises(ClientClosed, match="close the producer first"):
        await asyncio.wait_for(producer.close(), 10)
    with pytest.raises(ClientClosed, match="close the producer first"):
        await sent


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd", None])
async def test_compression_shrinks_and_is_invisible(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient, compression: str | None
) -> None:
    await admin.create_topic("t")
    text = "the same words again and again " * 20
    async with AsyncProducer(server=aclient, compression=compression) as producer:
        for number in range(100):
            producer.send("t", text, key=f"k{number}", headers={"n": number})
    size = (await admin.describe_topic("t")).partitions[0].size_bytes
    assert size is not None
    assert (size < 20_000) == (compression is not None)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        message = await consumer.poll(5)
        assert message is not None
        assert (message.value, message.key, message.headers) == (text, "k0", {"n": 0})


async def test_options_that_make_no_sense_are_refused(aclient: nexo.AsyncClient) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"compression": "brotli"}, "brotli"),
        ({"partitioner": "random"}, "random"),
        ({"batch_size": 0}, "batch_size"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"linger_ms": float("nan")}, "linger_ms"),
        ({"batch_size": "many"}, "batch_size"),
        ({"delivery_timeout": float("inf")}, "delivery_timeout"),
    ]
    for options, named in bad:
        with pytest.raises(InvalidOption, match=named):
            AsyncProducer(server=aclient, **options)


async def test_messages_that_cannot_be_sent_fail_alone(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t", 2)
    async with AsyncProducer(server=aclient) as producer:
        lost = producer.send("none", 1)
        far = producer.send("t", 1, partition=2)
        kept = producer.send("t", 1, partition=1)
        with pytest.raises(NotFound):
            await lost
        with pytest.raises(InvalidInput, match="partition 2"):
            await far
        assert (await kept).partition == 1
        with pytest.raises(InvalidInput, match="deletes its key"):
            producer.send("t", None)


def _broken(key: bytes, count: int) -> int:
    if key == b"bad":
        raise ZeroDivisionError
    return {b"far": 99, b"half": 0.5}.get(key, 0)  # type: ignore[return-value]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"topic": "t", "key": "bad"}, ZeroDivisionError),
        ({"topic": "t", "key": "far"}, InvalidInput),
        ({"topic": "t", "key": "half"}, InvalidInput),
        ({"topic": "t", "partition": 0.5}, InvalidInput),
        ({"topic": "t", "partition": True}, InvalidInput),
        ({"topic": "\ud800"}, InvalidInput),
        ({"topic": 7}, InvalidInput),
        ({"topic": ["t"]}, InvalidInput),
        ({"topic": "t", "key": 5}, InvalidInput),
        ({"topic": "t", "key": "\ud800"}, InvalidInput),
        ({"topic": "t", "headers": 5}, InvalidInput),
        ({"topic": "t", "headers": {"a": "\ud800"}}, InvalidInput),
    ],
)
async def test_a_bad_send_fails_alone(
    aclient: nexo.AsyncClient, bad: dict[str, Any], error: type[Exception], known: bool
) -> None:
    """SPEC G3: what cannot be sent takes nothing along, however early it comes."""
    await fill(aclient, "t", 0, partitions=2)
    async with asyncio.timeout(10), AsyncProducer(server=aclient, partitioner=_broken) as producer:
        if known:
            await producer.send("t", "first")
        with pytest.raises(error):
            await producer.send(value="bad", **bad)
        await producer.flush()
        assert (await producer.send("t", "good", key="k")).partition == 0
        assert (await producer.send("t", "better", partition=1)).partition == 1


async def test_only_the_message_that_is_too_large_fails(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t", config={"max.message.bytes": 100})
    async with AsyncProducer(server=aclient) as producer:
        small, large = producer.send("t", "small"), producer.send("t", "x" * 200)
        after = producer.send("t", "after")
        with pytest.raises(PayloadTooLarge):
            await large
        assert [(await each).offset for each in (small, after)] == [0, 1]


async def test_large_messages_fit_into_several_batches(aclient: nexo.AsyncClient) -> None:
    topic: AsyncTopic[Any] = AsyncTopic("t", server=aclient)
    await topic.produce_batch([{"value": bytes(900_000)} for _ in range(14)])
    async with AsyncProducer(server=aclient) as producer:
        sent = [producer.send("t", bytes(900_000)) for _ in range(14)]
        await producer.send("t", bytes(5_000_000))  # SPEC E7
        assert [(await each).offset for each in sent] == list(range(14, 28))
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        sizes = [len(value) for value in await values(consumer, 29)]
    assert sizes == [900_000] * 28 + [5_000_000]


async def test_messages_without_a_key_take_turns(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t", 3)
    async with AsyncProducer(server=aclient) as producer:
        sent = [producer.send("t", i) for i in range(9)]
        assert Counter([(await each).partition for each in sent]) == {0: 3, 1: 3, 2: 3}


async def test_a_partitioner_can_be_a_function(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t", 4)
    async with AsyncProducer(server=aclient, partitioner=lambda key, n: len(key) % n) as producer:
        assert (await producer.send("t", 1, key="abc")).partition == 3


async def test_keys_follow_a_topic_that_is_created_anew(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    """SPEC E2, G3: a key goes where the partitions there are now put it, and keeps its order."""
    await admin.create_topic("t", 3)
    topic: AsyncTopic[Any] = AsyncTopic("t", server=aclient)
    async with AsyncProducer(server=aclient, batch_size=2) as producer:
        assert (await producer.send("t", "old", key="order_123")).partition == 2
        assert (await topic.produce_batch([{"key": "order_123", "value": 1}]))[0].partition == 2
        await admin.delete_topic("t")
        await admin.create_topic("t", 8)
        sent = [producer.send("t", n, key=f"k{n % 7}") for n in range(100)]
        assert (await producer.send("t", "new", key="order_123")).partition == 5
        assert [(await each).partition for each in sent] == [
            partition_of(b"k%d" % (n % 7), 8) for n in range(100)
        ]
        one = [{"key": "order_123", "value": 1}]
        assert (await topic.produce_batch(one))[0].partition == 5
        await admin.delete_topic("t")
        await admin.create_topic("t", 3)
        many = [{"key": f"k{n}", "value": n} for n in range(20)]
        assert {place.partition for place in await topic.produce_batch(many)} == {0, 1, 2}
        for n in range(100):
            producer.send("t", n, key=f"k{n % 7}")
        await producer.flush()
        await admin.delete_topic("t")
        with pytest.raises(NotFound):
            await producer.send("t", "gone", key="order_123")
        await admin.create_topic("t", 8)
        for n in range(100):
            producer.send("t", n, key=f"k{n % 7}")
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        found = await values(consumer, 100)
    assert [[n for n in found if n % 7 == k] for k in range(7)] == [
        list(range(k, 100, 7)) for k in range(7)
    ]


async def test_a_batch_sent_twice_is_stored_once(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 0)
    link = aclient.link(Broker.STREAM)
    start = wire.unpack(ProducerStart, await link.call(Op.S_PRODUCER, pack_str("")) or b"")

    async def send(sequence: int) -> int:
        me = ProducerId(start.producer, start.epoch, sequence)
        head, body = encode([b"a", b"b"], [0, 0], 0, producer=me)
        reply = await link.call(Op.S_PUBLISH, publish_head("t", 0), head, *body)
        return next(read_places(reply or b""))[1]

    assert [await send(0), await send(2), await send(0), await send(2)] == [0, 2, 0, 2]
    with pytest.raises(OutOfOrderSequence):
        await send(6)


async def test_a_producer_is_fenced_by_a_later_one_of_its_name(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t")
    old = AsyncProducer(server=aclient, name="p")
    await old.send("t", 1)
    async with AsyncProducer(server=aclient, name="p") as new:
        await new.send("t", 2)
    with pytest.raises(Fenced):
        await old.send("t", 3)
    with pytest.raises(Fenced):
        old.send("t", 4)


async def test_a_delivery_that_takes_long_can_be_awaited_again(aclient: nexo.AsyncClient) -> None:
    """SPEC G3: as with threads."""
    await aclient.stream("t").create()
    async with AsyncProducer(server=aclient, linger_ms=60_000) as producer:
        delivery = producer.send("t", 1)
        with pytest.raises(RequestTimeout, match=r"the message was not stored within 0.01 s"):
            await delivery.result("10ms")
        await producer.flush()
        assert (await delivery.result(0)).offset == 0


async def test_a_failure_that_nobody_awaits_is_logged_and_raised_by_close(
    aclient: nexo.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC G3: a message that was not stored is never lost in silence."""
    producer = AsyncProducer(server=aclient, linger_ms=0)
    producer.send("none", 1)
    await producer.flush()
    assert "messages not stored, their result not asked for (1)" in caplog.text
    with pytest.raises(NotFound, match="'none'"):
        await producer.close()
    async with AsyncProducer(server=aclient, linger_ms=0) as heard:
        with pytest.raises(NotFound):
            await heard.send("none", 1)

    async def fail() -> None:
        async with AsyncProducer(server=aclient, linger_ms=0) as producer:
            producer.send("none", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_producer_sends_again_after_a_cut_and_keeps_order(
    nexo_server: Any,
) -> None:
    async with nexo.AsyncClient(nexo_server.url) as client:
        await AsyncAdminClient(client).create_topic("t")
        async with AsyncProducer(server=client, linger_ms=0, batch_size=5) as producer:
            sent = []
            for number in range(60):
                sent.append(producer.send("t", number))
                if number in (20, 40):
                    await sent[-1]
                    await asyncio.to_thread(nexo_server.crash)
                    await asyncio.to_thread(nexo_server.start)
            await producer.flush()
            assert [(await each).offset for each in sent] == list(range(60))
        async with AsyncConsumer("t", "g", server=client) as consumer:
            assert await values(consumer, 60) == list(range(60))


async def test_a_producer_waits_for_a_server_it_has_not_asked_yet(nexo_server: Any) -> None:
    """SPEC G3: nothing is known of the topic, and nothing is lost."""
    async with nexo.AsyncClient(nexo_server.url, while_down="fail") as client:
        await AsyncAdminClient(client).create_topic("t")
        async with AsyncProducer(server=client, linger_ms=0) as producer:
            await asyncio.to_thread(nexo_server.stop)
            sent = producer.send("t", "x")
            await asyncio.to_thread(nexo_server.start)
            assert await sent.result(10) == ("t", 0, 0)


# -- consumers (G4, G5)


async def test_messages_come_with_everything(aclient: nexo.AsyncClient) -> None:
    before = datetime.now(UTC)
    topic: AsyncTopic[Any] = AsyncTopic("t", server=aclient)
    await topic.produce({"a": [1, None]}, key="kéy", headers={"trace": "1"})
    await topic.produce(b"raw")
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        first, second = await consumer.poll_batch(timeout=5), await consumer.poll(QUICK_S)
    assert second is None
    keyed, keyless = first
    assert (keyed.topic, keyed.partition, keyed.offset) == ("t", 0, 0)
    assert (keyed.key, keyed.value, keyed.headers) == ("kéy", {"a": [1, None]}, {"trace": "1"})
    assert abs((keyed.timestamp - before).total_seconds()) < 60
    assert (keyless.key, keyless.value) == (None, b"raw")


async def test_polling_waits_for_the_next_message(aclient: nexo.AsyncClient) -> None:
    topic: AsyncTopic[Any] = AsyncTopic("t", server=aclient)
    await topic.create()
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await consumer.poll(0) is None
        polling = asyncio.ensure_future(consumer.poll(10))
        await asyncio.sleep(QUICK_S)
        await topic.produce("late")
        message = await polling
        assert message is not None
        assert message.value == "late"


async def test_partitions_take_turns(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 40, partitions=4)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        seen = [message.partition for message in await consumer.poll_batch(8, timeout=5)]
        assert Counter(seen) == {0: 2, 1: 2, 2: 2, 3: 2}


async def test_a_busy_partition_does_not_keep_a_quiet_one_waiting(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("t", 2)
    async with AsyncProducer(server=aclient) as producer:
        for number in range(1_000):
            producer.send("t", number, partition=0)
        await producer.flush()
        async with AsyncConsumer("t", "g", server=aclient) as consumer:
            await consumer.poll_batch(10, timeout=5)
            await producer.send("t", "quiet", partition=1)
            seen = [m.value for _ in range(5) for m in await consumer.poll_batch(10, timeout=5)]
            assert "quiet" in seen


async def test_one_consumer_reads_several_topics(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "a", 3)
    await fill(aclient, "b", 3)
    async with AsyncConsumer(group_id="g", server=aclient) as consumer:
        await consumer.subscribe(["a", "b"])
        assert sorted(await values(consumer, 6)) == [0, 0, 1, 1, 2, 2]
        with pytest.raises(InvalidInput, match="name the topic"):
            await consumer.seek(0, 1)
        await consumer.seek(0, 2, topic="b")
        message = await consumer.poll(5)
        assert message is not None
        assert message.position == ("b", 0, 2)
        await consumer.subscribe("a")
        assert consumer.assignment == (("a", 0),)


async def test_a_subscription_that_fails_changes_nothing(aclient: nexo.AsyncClient) -> None:
    """SPEC G4."""
    await fill(aclient, "t", 3)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await values(consumer, 1) == [0]
        with pytest.raises(NotFound, match="'none'"):
            await consumer.subscribe(["t", "none"])
        assert consumer.topics == ("t",)
        assert await values(consumer, 2) == [1, 2]
        with pytest.raises(InvalidInput, match="no partition 9"):
            await consumer.committed(9)


async def test_a_consumer_needs_a_group_and_topics_that_exist(aclient: nexo.AsyncClient) -> None:
    with pytest.raises(InvalidOption, match="group_id"):
        AsyncConsumer("t", server=aclient)
    with pytest.raises(NotFound, match="'none'"):
        await AsyncConsumer("none", "g", server=aclient).poll()
    with pytest.raises(Conflict, match="subscribe"):
        await AsyncConsumer(group_id="g", server=aclient).poll()


async def test_manual_commits_cover_what_they_name(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 20, partitions=2)
    async with AsyncConsumer("t", "g", auto_commit=False, server=aclient) as consumer:
        assert await consumer.committed(0) is None
        batch = await consumer.poll_batch(6, timeout=5)
        await consumer.commit(batch[0], metadata="one")
        stored = await consumer.committed(batch[0].partition)
        assert stored is not None
        assert (stored.offset, stored.metadata) == (0, "one")
        assert stored.committed_at is not None
        await consumer.commit({"topic": "t", "partition": 1, "offset": 2})
        await consumer.commit([Position("t", 0, 1), Position("t", 0, 2)])
        assert [(await consumer.committed(p)).offset for p in (0, 1)] == [2, 2]  # type: ignore[union-attr]
        one = await consumer.poll(5)
        assert one is not None
        await consumer.commit(one.offset)  # that message's partition only
        found = await consumer.committed(one.partition)
        assert found is not None
        assert found.offset == one.offset
        other = await consumer.committed(1 - one.partition)
        assert other is not None
        assert other.offset == 2


@pytest.mark.parametrize(
    "what",
    [
        {"topic": "t", "partition": 0, "offset": "x"},
        {"topic": "t", "partition": 0, "offset": -1},
        {"topic": "t", "partition": 0, "offset": 2**63},
        {"topic": 7, "partition": 0, "offset": 0},
        {"topic": "t", "partition": None, "offset": 0},
        {"partition": 0},
        Position("t", 0, -1),
        "0",
        0.5,
        True,
        [None],
        -1,
    ],
)
async def test_what_cannot_be_committed_is_refused(aclient: nexo.AsyncClient, what: Any) -> None:
    """SPEC G4."""
    await fill(aclient, "t", 3)
    async with AsyncConsumer("t", "g", auto_commit=False, server=aclient) as consumer:
        await consumer.poll(5)
        with pytest.raises(InvalidInput):
            await consumer.commit(what)
        assert await consumer.committed() is None


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), None, -1, "soon", True])
async def test_a_wait_that_makes_no_sense_is_refused(
    aclient: nexo.AsyncClient, timeout: Any
) -> None:
    """SPEC G4."""
    await fill(aclient, "t", 3)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        await consumer.poll(5)
        with pytest.raises(InvalidInput):
            await consumer.poll(timeout)
        with pytest.raises(InvalidInput):
            await consumer.poll_batch(timeout=timeout)
        for count in (0, -1, 1.5, "2"):
            with pytest.raises(InvalidInput, match="max_records"):
                await consumer.poll_batch(count)  # type: ignore[arg-type]
        assert await consumer.committed() is None  # nothing more was asked for
        assert len(await consumer.poll_batch(timeout=1e6)) == 2


async def test_an_offset_alone_must_be_clear(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 8, partitions=2)
    async with AsyncConsumer("t", "g", auto_commit=False, server=aclient) as consumer:
        batch = await consumer.poll_batch(timeout=5)
        with pytest.raises(InvalidInput, match="several"):
            await consumer.commit(batch[0].offset)
        with pytest.raises(InvalidInput, match="no delivered message"):
            await consumer.commit(77)
        with pytest.raises(InvalidInput, match="'partition'"):
            await consumer.commit({"offset": 1})
        assert await consumer.committed(0) is None


async def test_without_auto_commit_only_commits_count(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 10)
    async with AsyncConsumer("t", "g", auto_commit=False, server=aclient) as consumer:
        await values(consumer, 5)
        await consumer.commit()
        await values(consumer, 3)
    async with AsyncConsumer("t", "g", auto_commit=False, server=aclient) as consumer:
        assert await values(consumer, 5) == [5, 6, 7, 8, 9]


async def test_a_commit_never_moves_back_but_by_seeking(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 10)
    async with AsyncConsumer("t", "g", auto_commit=False, server=aclient) as consumer:
        batch = await consumer.poll_batch(timeout=5)
        await consumer.commit(batch[7])
        await consumer.commit(batch[3])
        assert (await consumer.committed(0)).offset == 7  # type: ignore[union-attr]
        await consumer.seek(0, 2)
        again = await consumer.poll(5)
        assert again is not None
        assert again.value == 2
        await consumer.commit(again)
        assert (await consumer.committed(0)).offset == 2  # type: ignore[union-attr]


async def test_seeking_goes_anywhere(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 10)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        await consumer.seek_to_end()
        assert await consumer.poll(QUICK_S) is None
        await consumer.seek_to_beginning()
        assert await values(consumer, 10) == list(range(10))
        await consumer.seek(0, 7)
        assert await values(consumer, 3) == [7, 8, 9]
        await consumer.seek_to_timestamp(datetime.now(UTC) - timedelta(hours=1))
        assert await values(consumer, 1) == [0]
        await consumer.seek_to_timestamp(datetime.now(UTC) + timedelta(hours=1))
        assert await consumer.poll(QUICK_S) is None
        with pytest.raises(InvalidInput, match="offset 99"):
            await consumer.seek(0, 99)
        with pytest.raises(NotOwner):
            await consumer.seek(5, 0)
        with pytest.raises(InvalidInput, match="no partition 5"):
            await consumer.seek_to_end(TopicPartition("t", 5))


async def test_seeking_takes_the_documents_mapping(aclient: nexo.AsyncClient) -> None:
    """SPEC G4."""
    await fill(aclient, "t", 10, partitions=2)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        await consumer.seek_to_end()
        await consumer.seek({"partition": 0, "offset": 4})
        assert await values(consumer, 1) == [8]
        await consumer.seek({"topic": "t", "partition": 1, "offset": 4})
        assert await values(consumer, 1) == [9]
        await consumer.seek_to_beginning(1)
        assert await values(consumer, 1) == [1]
        bad: list[Any] = [{"partition": 0}, {"offset": 0}, {"partition": 0, "offset": "x"}, "0"]
        bad += [{"partition": 0, "offset": 0, "at": 1}, {"partition": 0.5, "offset": 0}, 2**70]
        for place in bad:
            with pytest.raises(InvalidInput):
                await consumer.seek(place)
        for time in ("now", None, -1, 2**63, True):
            with pytest.raises(InvalidInput):
                await consumer.seek_to_timestamp(time)  # type: ignore[arg-type]
        assert await values(consumer, 4) == [3, 5, 7, 9]


async def test_a_refused_seek_or_pause_changes_nothing(aclient: nexo.AsyncClient) -> None:
    """SPEC G4."""
    await fill(aclient, "t", 10, partitions=2)
    mine, none = TopicPartition("t", 0), TopicPartition("t", 99)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert sorted(await values(consumer, 10)) == list(range(10))
        refused = [consumer.seek_to_beginning, consumer.seek_to_end, consumer.pause]
        for move in refused:
            with pytest.raises((InvalidInput, NotOwner)):
                await move(mine, none)
        with pytest.raises(InvalidInput, match="no partition 99"):
            await consumer.seek_to_timestamp(0, mine, none)
        await AsyncTopic("t", server=aclient).produce("next", partition=0)
        assert await values(consumer, 1) == ["next"]  # neither moved nor paused


class Untold:
    """Does nothing about rebalances."""

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions go."""

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions come."""


async def test_a_seek_moves_all_partitions_or_none(aclient: nexo.AsyncClient) -> None:
    """SPEC G4."""
    await fill(aclient, "t", 10, partitions=2)
    reader = backend_for(aclient).reader(ReaderOptions(("t",), "g"), Untold(), None)
    await reader.join()
    found = await reader.fetch(10, 5)
    while len(found) < 10:
        found += await reader.fetch(10, 5)
    with pytest.raises(InvalidInput, match=r"0\.\.5"):
        await reader.seek({TopicPartition("t", 0): 0, TopicPartition("t", 1): 99})
    assert await reader.fetch(10, QUICK_S) == []
    await reader.close()


async def test_a_paused_partition_gives_nothing_until_it_is_resumed(
    aclient: nexo.AsyncClient,
) -> None:
    await fill(aclient, "t", 20, partitions=2)
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        await consumer.pause(TopicPartition("t", 0))
        assert {m.partition for m in await consumer.poll_batch(timeout=5)} == {1}
        assert await consumer.poll(QUICK_S) is None
        await consumer.resume()
        assert {m.partition for m in await consumer.poll_batch(timeout=5)} == {0}
        with pytest.raises(NotOwner):
            await consumer.pause(TopicPartition("t", 9))


async def test_a_new_group_can_start_at_the_end_and_skips_nothing_after(
    aclient: nexo.AsyncClient,
) -> None:
    await fill(aclient, "t", 5)
    late: dict[str, Any] = {"auto_offset_reset": "latest", "server": aclient}
    async with AsyncConsumer("t", "g", **late) as consumer:
        assert await consumer.poll(QUICK_S) is None
    await AsyncTopic("t", server=aclient).produce("meanwhile")
    async with AsyncConsumer("t", "g", **late) as consumer:
        assert await values(consumer, 1) == ["meanwhile"]


async def test_a_group_that_starts_at_the_end_of_empty_partitions_skips_nothing(
    aclient: nexo.AsyncClient,
) -> None:
    """SPEC G4, G6: whoever owns them next reads what came since the group began."""
    await fill(aclient, "t", 0, partitions=2)
    late: dict[str, Any] = {"auto_offset_reset": "latest", "server": aclient}
    async with AsyncConsumer("t", "left", **late):
        pass
    async with AsyncConsumer("t", "g", **late) as first:
        async with AsyncProducer(server=aclient) as producer:
            for number in range(10):
                producer.send("t", number, partition=number % 2)
        async with AsyncConsumer("t", "g", **late) as second:
            both = await asyncio.gather(values(first, 5), values(second, 5))
            assert sorted(both[0] + both[1]) == list(range(10))
    async with AsyncConsumer("t", "left", **late) as again:
        assert sorted(await values(again, 10)) == list(range(10))


async def test_gaps_are_stepped_over(aclient: nexo.AsyncClient) -> None:
    topic: AsyncTopic[Any] = AsyncTopic("t", compaction=True, server=aclient)
    for number in range(20):
        await topic.produce(number, key=f"k{number % 3}")
    async with aclient.transaction() as tx:
        await tx.publish("t", "never seen")
        await tx.abort()
    await topic.produce("after")
    await AsyncAdminClient(aclient).compact_topic("t")
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await values(consumer, 4) == [17, 18, 19, "after"]


async def test_a_consumer_goes_on_after_the_server_came_back(nexo_server: Any) -> None:
    async with nexo.AsyncClient(nexo_server.url) as client:
        await fill(client, "t", 10)
        async with AsyncConsumer("t", "g", server=client) as consumer:
            assert await values(consumer, 4) == [0, 1, 2, 3]
            await asyncio.to_thread(nexo_server.crash)
            await asyncio.to_thread(nexo_server.start)
            # 3 was being processed when the membership was lost: so it comes again.
            assert await values(consumer, 7) == [3, 4, 5, 6, 7, 8, 9]


async def test_polling_takes_no_longer_than_told_while_the_server_is_down(
    nexo_server: Any,
) -> None:
    """SPEC A5, G4."""
    async with nexo.AsyncClient(nexo_server.url) as client:
        await fill(client, "t", 2)
        async with AsyncConsumer("t", "g", server=client) as consumer:
            assert await values(consumer, 1) == [0]
            await asyncio.to_thread(nexo_server.stop)
            async with asyncio.timeout(15):
                assert await consumer.poll(0.3) is None
                assert await consumer.poll(0.3) is None
            await asyncio.to_thread(nexo_server.start)
            assert (await values(consumer, 2))[-1] == 1


# -- auto-commit (G5)


async def test_a_consumer_that_dies_at_any_message_resumes_there(
    aclient: nexo.AsyncClient, url: str
) -> None:
    await fill(aclient, "t", 200)
    for k in range(200):
        async with nexo.AsyncClient(url) as doomed:
            consumer: AsyncConsumer[Any] = AsyncConsumer("t", "g", server=doomed)
            message = await consumer.poll(5)
            assert message is not None
            assert message.value == k  # died while processing k: it comes again
        async with AsyncConsumer("t", "g", server=aclient) as again:
            message = await again.poll(5)
            assert message is not None
            assert message.value == k  # closed cleanly: done with it


async def test_a_death_in_the_middle_repeats_and_skips_nothing(
    aclient: nexo.AsyncClient, url: str
) -> None:
    await fill(aclient, "t", 200)
    done: list[int] = []
    for k in range(0, 200, 20):
        async with nexo.AsyncClient(url) as doomed:
            consumer: AsyncConsumer[Any] = AsyncConsumer("t", "g", server=doomed)
            async for message in consumer:
                if message.value == k + 19:
                    break  # the process dies here
                done.append(message.value)
        async with AsyncConsumer("t", "g", server=aclient) as again:
            last: TopicMessage[Any] | None = await again.poll(5)
            assert last is not None
            done.append(last.value)
    assert done == list(range(200))


async def test_an_exception_is_no_success(aclient: nexo.AsyncClient) -> None:
    await fill(aclient, "t", 3)

    async def fail_within() -> None:
        async with AsyncConsumer("t", "g", server=aclient) as consumer:
            await consumer.poll(5)
            raise ZeroDivisionError

    async def fail_and_close() -> None:
        consumer = AsyncConsumer("t", "g", server=aclient)
        try:
            await consumer.poll(5)
            raise ZeroDivisionError
        finally:
            await consumer.close()

    for failing in (fail_within, fail_and_close):
        with pytest.raises(ZeroDivisionError):
            await failing()
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await values(consumer, 3) == [0, 1, 2]


async def test_an_exception_from_before_is_none(aclient: nexo.AsyncClient) -> None:
    """SPEC G5: a consumer used while another error is handled is one like any other."""
    await fill(aclient, "t", 4)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        async with AsyncConsumer("t", "g", server=aclient) as consumer:
            assert await values(consumer, 1) == [0]
        consumer = AsyncConsumer("t", "g", server=aclient)
        assert await values(consumer, 1) == [1]
        await consumer.close()
    consumer = AsyncConsumer("t", "g", server=aclient)
    assert await values(consumer, 1) == [2]
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        await consumer.commit()  # processed, whatever failed
        await consumer.close()
    async with AsyncConsumer("t", "g", server=aclient) as consumer:
        assert await values(consumer, 1) == [3]


async def test_a_batch_is_done_when_the_next_is_asked_for(
    aclient: nexo.AsyncClient, url: str
) -> None:
    await fill(aclient, "t", 30)
    async with nexo.AsyncClient(url) as doomed:
        consumer: AsyncConsumer[Any] = AsyncConsumer("t", "g", max_poll_records=10, server=doomed)
        await consumer.poll_batch(timeout=5)
        await consumer.poll_batch(timeout=5)
    async with AsyncConsumer("t", "g", server=aclient) as again:
        assert await values(again, 20) == list(range(10, 30))


async def test_an_envelope_keeps_its_key_in_everything_that_produces(
    aclient: nexo.AsyncClient, admin: AsyncAdminClient
) -> None:
    await admin.create_topic("events", 1)
    message = {"key": "user_123", "value": {"action": "login"}, "headers": {"source": "web"}}
    topic: AsyncTopic[Any] = AsyncTopic("events", server=aclient)
    await topic.produce(message)
    async with AsyncProducer(server=aclient) as producer:
        await producer.send("events", message)
    async with AsyncExactlyOnceContext(aclient, name="app").begin() as tx:
        await tx.produce("events", message)
    async with AsyncConsumer("events", group_id="g", server=aclient) as consumer:
        seen = [await consumer.poll(5) for _ in range(3)]
    assert [(each.key, each.value, each.headers) for each in seen if each is not None] == [
        ("user_123", {"action": "login"}, {"source": "web"})
    ] * 3
