"""kafka-python against the stream broker (SPEC L2)."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.kafka.ledger import shows


def consumer(bootstrap: str, *topics: str, **options: Any) -> Any:
    options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 20_000, **options}
    return closing(KafkaConsumer(*topics, bootstrap_servers=bootstrap, **options))


def take(of: Any, count: int) -> list[Any]:
    return list(islice(of, count))


@shows("kafka-python", "produce and read: keys, headers, null, gzip, lz4, zstd")
@pytest.mark.parametrize("compression", [None, "gzip", "lz4", "zstd"])
def test_messages_come_back(bootstrap: str, topic: str, compression: str | None) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression)) as to:
        for key, value in ((b"k", b"v" * 1_000), (None, b"v"), (b"k", None)):
            to.send(topic, value, key, headers=[("a", b"1")], timestamp_ms=5_000).get(20)
    with consumer(bootstrap, topic) as of:
        found = take(of, 3)
    assert [(one.key, one.value, one.offset) for one in found] == [
        (b"k", b"v" * 1_000, 0),
        (None, b"v", 1),
        (b"k", None, 2),
    ]
    assert {(one.timestamp, one.headers[0]) for one in found} == {(5_000, ("a", b"1"))}


@shows("kafka-python", "groups: commit, resume; offsets by time")
def test_a_group_resumes(bootstrap: str, topic: str) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as to:
        for time_ms in (1_000, 2_000, 3_000):
            to.send(topic, b"%d" % time_ms, timestamp_ms=time_ms).get(20)
    at = TopicPartition(topic, 0)
    with consumer(bootstrap, topic, group_id=topic, enable_auto_commit=False) as of:
        assert [one.value for one in take(of, 2)] == [b"1000", b"2000"]
        of.commit()
        assert of.committed(at) == 2
        assert of.offsets_for_times({at: 2_500})[at].offset == 2
        assert (of.beginning_offsets([at]), of.end_offsets([at])) == ({at: 0}, {at: 3})
    with consumer(bootstrap, topic, group_id=topic) as of:
        assert [one.value for one in take(of, 1)] == [b"3000"]


@shows("kafka-python", "administration")
def test_topics_are_administered(bootstrap: str, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
        assert topic in admin.list_topics()
        found = admin.describe_topics([topic])
        assert len(found[0]["partitions"]) == 3
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
