"""Groups whose partitions the broker assigns (KIP-848), with librdkafka (SPEC L2)."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.errors import GroupSubscribedToTopicError

import nexo
from kafka import TopicPartition as At
from nexo import topics
from tests.kafka.ledger import shows
from tests.kafka.test_groups import PARTITIONS, QUIET, fill, left, poll_until

pytestmark = shows(
    "confluent-kafka", "groups of KIP-848: rebalances, commits, static members, describe"
)


def member(bootstrap: str, group: str, name: str, **options: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "client.id": name,
            **QUIET,
            **options,
        }
    )


def share(one: Consumer) -> int:
    return len(one.assignment())


def test_partitions_move_and_each_record_is_read_once(url: str, bootstrap: str, topic: str) -> None:
    """What moves is committed when it is revoked, so that its next owner goes on there."""
    fill(url, topic)
    first, second = (member(bootstrap, topic, name) for name in ("a", "b"))
    with left(second):
        with left(first):
            first.subscribe([topic])
            seen = poll_until([first], lambda: share(first) == PARTITIONS)
            second.subscribe([topic])
            both = [first, second]
            poll_until(both, lambda: (share(first), share(second)) == (2, 2), seen)
            poll_until(both, lambda: len(seen) >= 400, seen)
            admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
            found = admin.describe_consumer_groups([topic])[topic].result(20)
            assert (found.state.name, found.type.name) == ("STABLE", "CONSUMER")
            shares = {one.client_id: len(one.assignment.topic_partitions) for one in found.members}
            assert shares == {"a": 2, "b": 2}
        poll_until([second], lambda: share(second) == PARTITIONS, seen)
        stored = second.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], 20)
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == 400
    assert sum(one.offset for one in stored) == 400


def test_a_static_member_comes_back_to_its_partitions(url: str, bootstrap: str, topic: str) -> None:
    fill(url, topic)
    fixed = {"group.instance.id": "one"}
    other = member(bootstrap, topic, "other")
    first = member(bootstrap, topic, "first", **fixed)
    with left(other):
        other.subscribe([topic])
        first.subscribe([topic])
        poll_until([first, other], lambda: (share(first), share(other)) == (2, 2))
        had = {at.partition for at in first.assignment()}
        first.close()  # for a while
        again = member(bootstrap, topic, "again", **fixed)
        with left(again):
            again.subscribe([topic])
            poll_until([again, other], lambda: share(again) == 2)
            assert {at.partition for at in again.assignment()} == had
            assert share(other) == 2


def test_native_consumers_may_be_members_of_the_same_group(
    url: str, bootstrap: str, topic: str
) -> None:
    fill(url, topic)
    with nexo.connect(url) as client, left(one := member(bootstrap, topic, "one")):
        one.subscribe([topic])
        poll_until([one], lambda: share(one) == PARTITIONS)
        with topics.ConsumerGroup(topic, topics=topic, server=client) as native:
            native.join()
            poll_until([one], lambda: share(one) == 2)
        poll_until([one], lambda: share(one) == PARTITIONS)


def test_a_topic_may_be_created_after_its_reader(url: str, bootstrap: str, topic: str) -> None:
    with left(one := member(bootstrap, topic, "one")):
        one.subscribe([topic])
        one.poll(0.5)
        fill(url, topic, 10)
        poll_until([one], lambda: share(one) == PARTITIONS)


def test_classic_members_keep_others_out(url: str, bootstrap: str, topic: str) -> None:
    fill(url, topic, 1)
    classic = member(bootstrap, topic, "classic", **{"group.protocol": "classic"})
    with left(classic):
        classic.subscribe([topic])
        poll_until([classic], lambda: share(classic) == PARTITIONS)
        with left(other := member(bootstrap, topic, "other")):
            other.subscribe([topic])
            found = other.poll(20)
            assert found is not None
            assert "Inconsistent group protocol" in found.error().str()


def test_offsets_of_topics_that_nobody_reads_are_deleted(
    url: str, bootstrap: str, topic: str
) -> None:
    fill(url, topic)
    places = [TopicPartition(topic, number, 5) for number in (0, 1)]
    with (
        closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin,
        left(one := member(bootstrap, topic, "one", **{"group.protocol": "classic"})),
    ):
        one.subscribe([topic])
        poll_until([one], lambda: share(one) == PARTITIONS)
        one.commit(offsets=places, asynchronous=False)
        refused = admin.delete_group_offsets(topic, [At(topic, 0)])
        assert refused[At(topic, 0)] is GroupSubscribedToTopicError
        one.unsubscribe()
        one.poll(0.5)
        admin.delete_group_offsets(topic, [At(topic, 0)])
        stored = one.committed([TopicPartition(topic, number) for number in (0, 1)], 20)
        assert [at.offset for at in stored] == [-1001, 5]
