"""CreatePartitions: what Kafka answers, and what clients see of it (SPEC E1, L2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import nexo
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from nexo.topics import AdminClient as TopicsAdmin
from tests.kafka.asker import Asker
from tests.kafka.ledger import shows

QUIET = {"log_level": 0}
SOON = {"metadata.max.age.ms": 500, "topic.metadata.refresh.interval.ms": 200}


@pytest.fixture
def asker(bootstrap: str) -> Iterator[Asker]:
    asker = Asker(bootstrap)
    yield asker
    asker.close()


@pytest.fixture
def made(url: str, topic: str) -> str:
    """A topic with two partitions."""
    with nexo.connect(url) as client:
        client.stream(topic).create(partitions=2)
    return topic


def asked(
    asker: Asker, version: int, *rows: KafkaMessage, only_check: bool = False
) -> list[KafkaMessage]:
    message = {"topics": list(rows), "timeout_ms": 10_000, "validate_only": only_check}
    return [dict(row) for row in asker.ask(ApiKey.CREATE_PARTITIONS, version, message)["results"]]


def row(topic: str, count: int, *brokers: list[int]) -> KafkaMessage:
    given = [{"brokers": each} for each in brokers] if brokers else None
    return {"name": topic, "count": count, "assignments": given}


def count_of(url: str, topic: str) -> int:
    with nexo.connect(url) as client:
        return len(client.stream(topic).info().partitions)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_version(
    asker: Asker, url: str, made: str, version: int
) -> None:
    (only_checked,) = asked(asker, version, row(made, 4), only_check=True)
    assert (only_checked["error"], count_of(url, made)) == (Error.NONE, 2)
    (found,) = asked(asker, version, row(made, 4))
    assert found == {"name": made, "error": Error.NONE, "message": None}
    metadata = asker.ask(ApiKey.METADATA, 8, {"topics": [{"name": made}], "auto_create": False})
    assert len(metadata["topics"][0]["partitions"]) == count_of(url, made) == 4


REFUSED: dict[str, tuple[Callable[[str], KafkaMessage], Error]] = {
    "fewer": (lambda name: row(name, 1), Error.INVALID_PARTITIONS),
    "the same": (lambda name: row(name, 2), Error.INVALID_PARTITIONS),
    "none": (lambda name: row(name, 0), Error.INVALID_PARTITIONS),
    "negative": (lambda name: row(name, -1), Error.INVALID_PARTITIONS),
    "too many": (lambda name: row(name, 2_000), Error.INVALID_PARTITIONS),
    "no such topic": (lambda _: row("missing", 4), Error.UNKNOWN_TOPIC_OR_PARTITION),
    "too few assigned": (lambda name: row(name, 4, [0]), Error.INVALID_REPLICA_ASSIGNMENT),
    "another broker": (lambda name: row(name, 3, [7]), Error.INVALID_REPLICA_ASSIGNMENT),
    "two copies": (lambda name: row(name, 3, [0, 1]), Error.INVALID_REPLICA_ASSIGNMENT),
    "no broker": (lambda name: row(name, 3, []), Error.INVALID_REPLICA_ASSIGNMENT),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("only_check", [True, False])
def test_what_cannot_be_is_refused_as_kafka_does(
    asker: Asker, url: str, made: str, case: str, only_check: bool
) -> None:
    make, error = REFUSED[case]
    (found,) = asked(asker, 3, make(made), only_check=only_check)
    assert found["error"] == error
    assert found["message"]
    assert count_of(url, made) == 2


def test_a_topic_named_twice_is_refused_and_others_grow(asker: Asker, url: str, made: str) -> None:
    other = f"{made}-other"
    with nexo.connect(url) as client:
        client.stream(other).create()
    found = asked(asker, 3, row(made, 4), row(other, 2), row(made, 4))
    assert {one["name"]: one["error"] for one in found} == {
        made: Error.INVALID_REQUEST, other: Error.NONE,
    }  # fmt: skip
    assert (count_of(url, made), count_of(url, other)) == (2, 2)


@shows("confluent-kafka", "partitions added while producers and groups of each kind are at work")
@pytest.mark.parametrize("protocol", ["classic", "cooperative", "consumer"])
def test_running_producers_and_groups_use_the_new_partitions(
    request: pytest.FixtureRequest, bootstrap: str, made: str, protocol: str
) -> None:
    conf: dict[str, Any] = {"bootstrap.servers": bootstrap, **QUIET}
    group: dict[str, Any] = conf | {"group.id": made, "auto.offset.reset": "earliest", **SOON}
    if protocol == "consumer":
        group["group.protocol"] = "consumer"
    elif protocol == "cooperative":
        group["partition.assignment.strategy"] = "cooperative-sticky"
    members = [Consumer(group), Consumer(group)]
    for member in members:
        request.addfinalizer(member.close)  # one that is collected open never ends
        member.subscribe([made])
    producer = Producer(conf | {"enable.idempotence": True, **SOON})
    sent, got = 0, set[bytes]()

    def read_all() -> None:
        for _ in range(300):
            for member in members:
                for message in member.consume(500, 0.1):
                    assert message.error() is None
                    assert message.value() not in got
                    got.add(message.value() or b"")
            if len(got) == sent:
                return
        raise AssertionError(f"{len(got)} of {sent}")

    for number in range(40):
        producer.produce(made, f"{sent}", key=f"k{number}")
        sent += 1
    producer.flush(20)
    read_all()
    admin = AdminClient(conf)
    admin.create_partitions([NewPartitions(made, 6)])[made].result(20)
    places = set[int]()
    for turn in range(200):
        for number in range(10):
            producer.produce(
                made, f"{sent}", key=f"k{number + turn}",
                on_delivery=lambda _, message: places.add(message.partition()),
            )  # fmt: skip
            sent += 1
        producer.flush(20)
        producer.poll(0.1)  # it looks for partitions from time to time
        if len(places) == 6:
            break
    assert places == set(range(6))
    read_all()
    for _ in range(100):  # one partition may still be on its way from one member to the other
        owned = sorted(at.partition for member in members for at in member.assignment())
        if owned == list(range(6)):
            break
        for member in members:
            assert member.consume(1, 0.1) == []
    assert owned == list(range(6))


async def test_a_transaction_goes_on_across_the_change(bootstrap: str, url: str, made: str) -> None:
    """SPEC H1."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=made)
    async with producer, producer.transaction():
        await producer.send_and_wait(made, b"a", partition=0)
        with nexo.connect(url) as client:
            await asyncio.to_thread(client.stream(made).update, partitions=4)
        await producer.client.force_metadata_update()
        await producer.send_and_wait(made, b"b", partition=3)
    consumer = AIOKafkaConsumer(
        made, bootstrap_servers=bootstrap, auto_offset_reset="earliest",
        isolation_level="read_committed", group_id=None,
    )  # fmt: skip
    async with consumer, asyncio.timeout(20):
        assert {(await consumer.getone()).value for _ in range(2)} == {b"a", b"b"}


def test_a_group_that_starts_at_the_end_skips_nothing_of_new_partitions(
    bootstrap: str, url: str, made: str
) -> None:
    """Kafka's own groups do, if ``auto.offset.reset`` is ``latest``."""
    conf: dict[str, Any] = {"bootstrap.servers": bootstrap, **QUIET}
    group = Consumer(conf | {"group.id": made, "auto.offset.reset": "latest"})
    group.commit(
        offsets=[TopicPartition(made, 0, 0), TopicPartition(made, 1, 0)], asynchronous=False
    )
    with nexo.connect(url) as client:
        client.stream(made).update(partitions=3)
        client.stream(made).publish(b"early", partition=2)
    found = group.committed([TopicPartition(made, number) for number in range(3)], timeout=20)
    assert [at.offset for at in found] == [0, 0, 0]
    group.subscribe([made])
    message = next(filter(None, (group.poll(1) for _ in range(30))))
    assert message.value() == b"early"
    group.close()


def test_the_topics_api_adds_them_on_a_kafka_cluster_too(
    bootstrap: str, url: str, made: str
) -> None:
    with TopicsAdmin(f"kafka://{bootstrap}") as admin:
        with pytest.raises(nexo.errors.InvalidOption, match="never removed"):
            admin.create_partitions(made, 2)
        assert len(admin.create_partitions(made, 3).partitions) == 3
    assert count_of(url, made) == 3
