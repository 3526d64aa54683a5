"""Topics on a real Kafka by URL, against the cluster that librdkafka brings for tests.

That cluster speaks Kafka's protocol over TCP and knows messages, groups and transactions,
but no administration: topics come into being when they are first asked for, with 4
partitions. Nor does it agree with aiokafka on how a second member joins. So administration
and rebalances are tested with scripted clients.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nexo.errors import AlreadyExists, InvalidOption, NotFound
from nexo.topics import (
    AdminClient,
    AsyncAdminClient,
    AsyncConsumer,
    AsyncExactlyOnceContext,
    AsyncOnceTransaction,
    AsyncProducer,
    AsyncTopic,
    Consumer,
    ExactlyOnceContext,
    Producer,
    TopicMessage,
    TopicPartition,
)
from nexo.topics._async.kafka.backend import KafkaBackend

confluent = pytest.importorskip("confluent_kafka", reason="brings a Kafka cluster for tests")
pytest.importorskip("aiokafka", reason="the extra 'kafka' is not installed")
structs = pytest.importorskip("aiokafka.structs")

pytestmark = pytest.mark.slow  # its groups take seconds to form

WAIT_S = 20.0
PRODUCER = 0
"""Of librdkafka's two kinds of clients the one without a group."""
SESSION_S = 4.0
"""Whoever joins a group that had members before waits for a second less than this."""
PARTITIONS = 4
"""Of a topic that the test cluster makes by itself."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """A cluster of one broker, whose groups form at once.

    Only librdkafka's own interface sets how long a group waits for further members, 3 s otherwise.
    """
    library = ctypes.CDLL(confluent.cimpl.__file__)
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    client = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, None, None, ctypes.c_size_t(0)))
    library.rd_kafka_set_log_level(client, 0)
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 1)
    yield f"kafka://{library.rd_kafka_mock_cluster_bootstraps(cluster).decode()}"
    library.rd_kafka_mock_cluster_destroy(cluster)
    library.rd_kafka_destroy(client)


@pytest.fixture(autouse=True)
def _lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's own marks of a transaction's end carry no checksum."""
    import aiokafka  # noqa: PLC0415 - may be absent

    lenient = functools.partial(aiokafka.AIOKafkaConsumer, check_crcs=False)
    monkeypatch.setattr("aiokafka.AIOKafkaConsumer", lenient)


async def fill(kafka: str, topic: str, count: int) -> None:
    async with AsyncProducer(server=kafka) as producer:
        for number in range(count):
            producer.send(topic, number, key=f"k{number}")


async def values(consumer: AsyncConsumer[Any], count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
    return found


async def test_messages_go_there_and_back(kafka: str) -> None:
    async with AsyncProducer(server=kafka, compression="gzip") as producer:
        place = await producer.send("there", {"a": [1, None]}, key="kéy", headers={"trace": "1"})
        plain = await producer.send("there", "text", partition=place.partition)
        await producer.send("there", b"raw", partition=place.partition)
        assert plain.offset == place.offset + 1
    async with AsyncConsumer("there", "there", server=kafka) as consumer:
        seen: list[TopicMessage[Any]] = []
        async with asyncio.timeout(WAIT_S):
            while len(seen) < 3:
                seen += await consumer.poll_batch()
    assert [m.value for m in seen] == [{"a": [1, None]}, "text", b"raw"]
    assert (seen[0].key, seen[0].headers) == ("kéy", {"trace": "1"})
    assert (seen[1].key, seen[1].headers) == (None, {})


async def test_keys_go_to_the_partitions_they_have_on_nexo(kafka: str) -> None:
    async with AsyncProducer(server=kafka) as producer:
        await producer.send("keys", 1, key="order_123")
        place = await producer.send("keys", 1, key="order_123")
    assert place.partition == 5 % PARTITIONS


async def test_auto_commit_covers_a_message_when_the_next_is_asked_for(kafka: str) -> None:
    await fill(kafka, "auto", 10)
    async with AsyncConsumer("auto", "auto", session_timeout=SESSION_S, server=kafka) as consumer:
        first = await values(consumer, 4)
    async with AsyncConsumer("auto", "auto", session_timeout=SESSION_S, server=kafka) as consumer:
        rest = await values(consumer, 6)
    assert sorted(first + rest) == list(range(10))


async def test_manual_commits_store_the_last_processed(kafka: str) -> None:
    await fill(kafka, "manual", 8)
    async with AsyncConsumer("manual", "manual", auto_commit=False, server=kafka) as consumer:
        message = await consumer.poll(WAIT_S)
        assert message is not None
        assert await consumer.committed(message.partition) is None
        await consumer.commit(message)
        stored = await consumer.committed(message.partition)
        assert stored is not None
        assert stored.offset == message.offset


async def test_seeking_and_pausing(kafka: str) -> None:
    await fill(kafka, "seek", 20)
    async with AsyncConsumer("seek", "seek", session_timeout=SESSION_S, server=kafka) as consumer:
        await values(consumer, 20)
        await consumer.seek_to_beginning()
        assert sorted(await values(consumer, 20)) == list(range(20))
        await consumer.seek_to_end()
        assert await consumer.poll(0.3) is None
        await consumer.seek_to_beginning()
        kept = consumer.assignment[1:]
        await consumer.pause(consumer.assignment[0])
        seen = {m.partition for m in await consumer.poll_batch(timeout=WAIT_S)}
        assert seen <= {at.partition for at in kept}


async def test_a_transaction_moves_messages_and_offsets_together(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster takes offsets of a transaction without keeping them, so they are watched."""
    import aiokafka  # noqa: PLC0415 - may be absent

    offsets: list[Any] = []
    commit = aiokafka.AIOKafkaProducer.send_offsets_to_transaction

    async def watched(producer: Any, given: Any, group_id: str) -> None:
        offsets.extend((group_id, at.partition, stored.offset) for at, stored in given.items())
        await commit(producer, given, group_id)

    monkeypatch.setattr("aiokafka.AIOKafkaProducer.send_offsets_to_transaction", watched)
    await fill(kafka, "in", 3)
    async with (
        AsyncExactlyOnceContext(kafka, name="mover") as context,
        AsyncConsumer("in", "mover", server=kafka) as consumer,
    ):

        async def step(tx: AsyncOnceTransaction) -> None:
            message = await consumer.poll(WAIT_S)
            assert message is not None
            await tx.produce("out", message.value * 10)
            await tx.commit(message)

        for _ in range(3):
            await context.transaction(step)
    async with AsyncConsumer("out", "check", server=kafka) as check:
        assert sorted(await values(check, 3)) == [0, 10, 20]
    assert len(offsets) == 3
    assert {group for group, _, _ in offsets} == {"mover"}
    assert min(offset for _, _, offset in offsets) == 1  # Kafka stores the next one


async def test_after_a_rollback_the_message_comes_again(kafka: str) -> None:
    await fill(kafka, "back", 1)
    async with (
        AsyncExactlyOnceContext(kafka, name="failing") as context,
        AsyncConsumer("back", "failing", server=kafka) as consumer,
    ):

        async def fail(tx: AsyncOnceTransaction) -> None:
            message = await consumer.poll(WAIT_S)
            assert message is not None
            await tx.commit(message)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await context.transaction(fail)
        again = await consumer.poll(WAIT_S)
        assert again is not None
        assert again.value == 0


async def test_state_stays_on_nexo(kafka: str) -> None:
    async with AsyncExactlyOnceContext(kafka) as context:
        with pytest.raises(InvalidOption, match="Nexo server"):
            await context.get("k")
        with pytest.raises(InvalidOption, match="Nexo server"):
            await context.put("k", 1)


async def test_a_batch_is_stored_whole_and_the_newest_value_found(kafka: str) -> None:
    async with AsyncProducer(server=kafka) as producer:
        await producer.send("users", "first", key="u0")
    async with AsyncTopic("users", server=kafka) as users:
        places = await users.produce_batch([{"key": f"u{i % 3}", "value": i} for i in range(9)])
        assert len(places) == 9
        assert await users.get("u1") == 7
        assert await users.read_current_state() == {"u0": 6, "u1": 7, "u2": 8}


async def test_topics_are_listed_and_described(kafka: str) -> None:
    await fill(kafka, "described", 12)
    async with AsyncAdminClient(kafka) as admin:
        assert "described" in await admin.list_topics()
        found = await admin.describe_topic("described")
        assert len(found.partitions) == PARTITIONS
        assert sum(part.next_offset - part.earliest_offset for part in found.partitions) == 12
        with pytest.raises(InvalidOption, match="compacts by itself"):
            await admin.compact_topic("described")


def test_threads_use_the_same_code(kafka: str) -> None:
    with Producer(server=kafka) as producer:
        sent = [producer.send("threads", number, key=f"k{number}") for number in range(20)]
        producer.flush()
        assert sent[0].result(WAIT_S).topic == "threads"
    seen: list[Any] = []
    with Consumer("threads", "threads", server=kafka) as consumer:

        def work() -> None:
            for message in consumer:
                seen.append(message.value)
                if len(seen) == 20:
                    return

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(WAIT_S)
        assert sorted(seen) == list(range(20))
        consumer.seek_to_beginning()
        assert consumer.poll(WAIT_S) is not None
    with AdminClient(kafka) as admin:
        assert "threads" in admin.list_topics()
    with ExactlyOnceContext(kafka, name="threads") as context, context.begin() as tx:
        tx.produce("threads", "from a transaction")


# -- scripted: rebalances and administration


class ScriptedConsumer:
    """Gets partitions and loses them as the test says."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.owned: set[Any] = set()
        self.commits: list[Any] = []
        self.listener: Any = None
        self.records: list[Any] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.listener = listener
        asyncio.get_running_loop().create_task(self.give(0, 1))

    async def give(self, *numbers: int) -> None:
        new = {structs.TopicPartition("t", number) for number in numbers}
        self.owned |= new
        await self.listener.on_partitions_assigned(new)

    async def take(self, *numbers: int) -> None:
        gone = {structs.TopicPartition("t", number) for number in numbers}
        await self.listener.on_partitions_revoked(gone)
        self.owned -= gone

    def assignment(self) -> set[Any]:
        return self.owned

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[Any, list[Any]]:
        found, self.records = self.records[:max_records], self.records[max_records:]
        return {structs.TopicPartition("t", r.partition): [r] for r in found}

    async def commit(self, offsets: dict[Any, Any]) -> None:
        self.commits.append({at.partition: stored.offset for at, stored in offsets.items()})


def kafka_record(partition: int, offset: int) -> Any:
    return SimpleNamespace(
        partition=partition, offset=offset, timestamp=0, key=None, value=b"1", headers=()
    )


async def test_what_is_processed_is_committed_before_a_partition_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted = ScriptedConsumer()
    monkeypatch.setattr("aiokafka.AIOKafkaConsumer", lambda **options: scripted)
    told: list[Any] = []
    consumer = AsyncConsumer("t", "g", server="kafka://nowhere:9092")
    consumer.on("rebalance", lambda event: told.append((event.kind, event.partitions)))
    await consumer.join()
    assert consumer.assignment == (("t", 0), ("t", 1))
    scripted.records = [kafka_record(0, 4), kafka_record(1, 7)]
    await consumer.poll()
    await consumer.poll()
    assert scripted.commits == [{0: 5}]  # Kafka stores the next offset
    await scripted.take(1)
    assert scripted.commits == [{0: 5}]  # 7 is still being processed: another member gets it
    await consumer.close()
    assert told == [
        ("assigned", (TopicPartition("t", 0), TopicPartition("t", 1))),
        ("revoked", (TopicPartition("t", 1),)),
    ]


class ScriptedAdmin:
    """Answers as AIOKafkaAdminClient does."""

    def __init__(self, **options: Any) -> None:
        self.topics: list[str] = []
        self.created: list[Any] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def list_topics(self) -> list[str]:
        return [*self.topics, "__consumer_offsets"]

    async def create_topics(self, new: list[Any]) -> Any:
        (topic,) = new
        code = 36 if topic.name in self.topics else 0
        self.topics.append(topic.name)
        self.created.append(topic)
        return SimpleNamespace(topic_errors=[(topic.name, code, None)])

    async def delete_topics(self, names: list[str]) -> Any:
        code = 0 if names[0] in self.topics else 3
        return SimpleNamespace(topic_error_codes=[(names[0], code)])

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"error_code": 3, "topic": names[0], "partitions": []}]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedAdmin:
    admin = ScriptedAdmin()
    monkeypatch.setattr("aiokafka.admin.AIOKafkaAdminClient", lambda **options: admin)
    return admin


async def test_a_topic_is_created_with_kafkas_settings(scripted: ScriptedAdmin) -> None:
    backend = KafkaBackend("kafka://nowhere:9092")
    config = {"retention.ms": 1000, "cleanup.policy": "compact", "nexo.tiering": True}
    await backend.create_topic("t", 3, 2, config)
    (made,) = scripted.created
    assert (made.name, made.num_partitions, made.replication_factor) == ("t", 3, 2)
    assert made.topic_configs == {"retention.ms": "1000", "cleanup.policy": "compact"}
    assert await backend.list_topics() == ["t"]
    with pytest.raises(AlreadyExists, match="'t'"):
        await backend.create_topic("t", 3, 2, {})


async def test_missing_topics_are_typed_errors(scripted: ScriptedAdmin) -> None:
    backend = KafkaBackend("kafka://nowhere:9092")
    with pytest.raises(NotFound, match="'none'"):
        await backend.delete_topic("none")
    with pytest.raises(NotFound, match="'none'"):
        await backend.describe_topic("none")
