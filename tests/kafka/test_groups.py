"""Consumer groups of librdkafka: rebalances, commits, offsets shared with topics (SPEC L2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import nexo
from nexo import topics
from nexo.errors import Conflict
from tests.kafka.ledger import shows

pytestmark = shows(
    "confluent-kafka",
    "groups: range, round robin, cooperative; static members; commit, list, describe, delete",
)
QUIET = {"log_level": 0}
PARTITIONS = 4


def fill(url: str, topic: str, count: int = 400) -> None:
    with nexo.connect(url) as client:
        client.stream(topic).create(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": url.removeprefix("nexo://"), **QUIET})
    for number in range(count):
        producer.produce(topic, key=str(number), value=str(number))
    assert producer.flush(20) == 0


def consumer(bootstrap: str, group: str, **options: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 200,
            **QUIET,
            **options,
        }
    )


def poll_until(
    consumers: list[Consumer], holds: Callable[[], bool], seen: list[tuple[int, int]] | None = None
) -> list[tuple[int, int]]:
    """Read with all consumers until something holds; what they read."""
    seen = [] if seen is None else seen
    deadline_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about"
        for one in consumers:
            for message in one.consume(100, timeout=0.02):
                assert message.error() is None, message.error()
                seen.append((int(message.partition() or 0), int(message.offset() or 0)))
    return seen


@contextmanager
def left(*consumers: Consumer) -> Iterator[None]:
    try:
        yield
    finally:
        for one in consumers:
            one.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_and_take_over(
    url: str, bootstrap: str, topic: str, strategy: str
) -> None:
    fill(url, topic)
    options = {"partition.assignment.strategy": strategy}
    first = consumer(bootstrap, f"group of {topic}", **options)
    first.subscribe([topic])
    seen = poll_until([first], lambda: len(first.assignment()) == PARTITIONS)
    second = consumer(bootstrap, f"group of {topic}", **options)
    second.subscribe([topic])
    with left(first):
        both = [first, second]
        seen += poll_until(both, lambda: all(len(one.assignment()) == 2 for one in both))
        owned = {(at.topic, at.partition) for one in both for at in one.assignment()}
        assert len(owned) == PARTITIONS
        second.close()
        seen += poll_until([first], lambda: len(first.assignment()) == PARTITIONS)

        poll_until([first], lambda: len(set(seen)) == 400, seen)


def test_offsets_come_back_with_their_metadata(url: str, bootstrap: str, topic: str) -> None:
    fill(url, topic)
    with left(one := consumer(bootstrap, topic, **{"enable.auto.commit": False})):
        one.commit(offsets=[TopicPartition(topic, 1, 7, "noted")], asynchronous=False)
        (found,) = one.committed([TopicPartition(topic, 1)], timeout=10)
        assert (found.offset, found.metadata) == (7, "noted")
        one.commit(offsets=[TopicPartition(topic, 1, 0)], asynchronous=False)
        none, zero = one.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
        assert (none.offset, zero.offset) == (-1001, 0)


def test_a_group_goes_on_where_native_consumers_stopped(
    url: str, bootstrap: str, topic: str
) -> None:
    fill(url, topic)
    with nexo.connect(url) as client, topics.Consumer(topic, topic, server=client) as native:
        native.commit({"topic": topic, "partition": 2, "offset": 9})
    with left(one := consumer(bootstrap, topic)):
        (found,) = one.committed([TopicPartition(topic, 2)], timeout=10)
        assert found.offset == 10


def test_kafka_and_native_members_do_not_mix(url: str, bootstrap: str, topic: str) -> None:
    fill(url, topic, 1)
    with left(one := consumer(bootstrap, topic)), nexo.connect(url) as client:
        one.subscribe([topic])
        poll_until([one], lambda: bool(one.assignment()))
        group = topics.ConsumerGroup(topic, topics=topic, server=client)
        with group, pytest.raises(Conflict, match="Kafka clients"):
            group.join()


def test_static_members_keep_their_partitions(url: str, bootstrap: str, topic: str) -> None:
    fill(url, topic)
    options = {"group.instance.id": "one", "session.timeout.ms": 6_000}
    first = consumer(bootstrap, topic, **options)
    first.subscribe([topic])
    poll_until([first], lambda: len(first.assignment()) == PARTITIONS)
    first.close()  # a static member does not leave
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    state = admin.describe_consumer_groups([topic])[topic].result(10)
    assert [member.group_instance_id for member in state.members] == ["one"]
    with left(again := consumer(bootstrap, topic, **options)):
        again.subscribe([topic])
        poll_until([again], lambda: len(again.assignment()) == PARTITIONS)


def test_groups_are_listed_described_and_deleted(url: str, bootstrap: str, topic: str) -> None:
    fill(url, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    group = f"{topic} with spaces"
    one = consumer(bootstrap, group)
    with closing(one):
        one.subscribe([topic])
        poll_until([one], lambda: len(one.assignment()) == PARTITIONS)
        found = admin.describe_consumer_groups([group])[group].result(10)
        assert found.state.name == "STABLE"
        assert len(found.members[0].assignment.topic_partitions) == PARTITIONS
        poll_until([one], lambda: sum(p.offset for p in one.position(one.assignment())) == 400)
    assert group in {row.group_id for row in admin.list_consumer_groups().result(10).valid}
    admin.delete_consumer_groups([group])[group].result(10)
    assert group not in {row.group_id for row in admin.list_consumer_groups().result(10).valid}
