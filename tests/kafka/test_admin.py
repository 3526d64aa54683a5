"""Administration through librdkafka: topics, configurations, what is refused (SPEC L2, L5)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

import nexo
from tests.kafka.ledger import shows

pytestmark = shows(
    "confluent-kafka",
    "administration: topics, configurations, delete records, what is refused",
)
QUIET = {"log_level": 0}


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **QUIET})


def create(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> Any:
    named = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, partitions, replication_factor=3, config=named)
    return admin.create_topics([new])[topic].result(20)


def refused(future: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        future.result(20)
    error: KafkaError = caught.value.args[0]
    return int(error.code())


def configs(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(20)
    return {name: entry.value for name, entry in found.items()}


def test_topics_are_created_described_and_deleted(admin: AdminClient, url: str, topic: str) -> None:
    create(admin, topic, 3, retention_ms="60000", cleanup_policy="compact,delete")
    with nexo.connect(url) as client:
        options = client.stream(topic).info().options
        assert (options["partitions"], options["retention_ms"]) == (3, 60_000)
        assert options["cleanup"] == "delete,compact"
    shown = admin.list_topics(topic, timeout=20).topics[topic]
    assert [list(part.replicas) for part in shown.partitions.values()] == [[0]] * 3
    again = admin.create_topics([NewTopic(topic, 3, 1)])[topic]
    assert refused(again) == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(20)
    missing = admin.delete_topics([topic])[topic]
    assert refused(missing) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_what_cannot_be_is_refused_with_kafkas_own_error(admin: AdminClient, topic: str) -> None:
    bad = NewTopic(topic, 1, 1, config={"retention.ms": "soon"})
    assert refused(admin.create_topics([bad])[topic]) == KafkaError.INVALID_CONFIG
    negative = NewTopic(topic, 1, 1, config={"retention.ms": "-2"})
    assert refused(admin.create_topics([negative])[topic]) == KafkaError.INVALID_CONFIG
    unknown = NewTopic(topic, 1, 1, config={"retention.moons": "3"})
    assert refused(admin.create_topics([unknown])[topic]) == KafkaError.INVALID_CONFIG
    checked = admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic]
    checked.result(20)
    assert topic not in admin.list_topics(timeout=20).topics
    create(admin, topic, 2)
    fewer = admin.create_partitions([NewPartitions(topic, 1)])[topic]
    assert refused(fewer) == KafkaError.INVALID_PARTITIONS


def test_configurations_have_defaults_and_can_be_changed(admin: AdminClient, topic: str) -> None:
    create(admin, topic)
    found = configs(admin, topic)
    assert found["cleanup.policy"] == "delete"
    assert (found["retention.ms"], found["compression.type"]) == ("604800000", "producer")
    entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    assert configs(admin, topic)["retention.ms"] == "-1"
    entry = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    assert configs(admin, topic)["retention.ms"] == "604800000"


def test_records_are_deleted_up_to_an_offset(
    admin: AdminClient, url: str, bootstrap: str, topic: str
) -> None:
    with nexo.connect(url) as client:
        client.stream(topic).create()
        client.stream(topic).publish_many([b"x"] * 10)
    at = TopicPartition(topic, 0, 4)
    assert admin.delete_records([at])[at].result(20).low_watermark == 4
    earliest = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()})
    assert [found.result(20).offset for found in earliest.values()] == [4]


def test_compacted_topics_want_keys_and_topics_bound_their_batches(
    admin: AdminClient, bootstrap: str, topic: str
) -> None:
    create(admin, topic, cleanup_policy="compact", max_message_bytes="2000")
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    errors: list[int] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        errors.append(0 if error is None else int(error.code()))

    for row in ({"value": b"no key"}, {"key": b"k", "value": b"v" * 3_000}, {"key": b"k"}):
        producer.produce(topic, on_delivery=delivered, **row)
        producer.flush(20)
    assert errors == [KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE, 0]


def test_the_cluster_is_one_broker(admin: AdminClient) -> None:
    found = admin.describe_cluster().result(20)
    assert (len(found.cluster_id), len(found.nodes), found.controller.id) == (22, 1, 0)
