"""librdkafka, through confluent-kafka: producing and reading (SPEC L1, L2)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

import nexo
from tests.kafka.ledger import shows

pytestmark = shows(
    "confluent-kafka",
    "produce and read: idempotent, each compression, keys, headers, null, by time, large batches",
)
QUIET = {"log_level": 0}
UNGROUPED = {"group.id": "unused", "enable.auto.commit": False, **QUIET}


def produced(bootstrap: str, topic: str, rows: list[dict[str, Any]], **options: Any) -> list[int]:
    """The offsets that the rows got, once all are acknowledged."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(int(message.offset() or 0))

    producer = Producer({"bootstrap.servers": bootstrap, **QUIET, **options})
    for row in rows:
        producer.produce(topic, on_delivery=delivered, **row)
    assert producer.flush(20) == 0
    return offsets


def read(bootstrap: str, topic: str, count: int, offset: int = 0, **options: Any) -> list[Message]:
    """So many messages of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **UNGROUPED, **options})
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[Message] = []
    try:
        while len(found) < count:
            found += consumer.consume(count - len(found), timeout=20)
            assert found, "nothing came"
    finally:
        consumer.close()
    return found


ROWS: list[dict[str, Any]] = [
    {"key": b"k1", "value": b"v1", "headers": [("h", b"1"), ("n", None)], "timestamp": 1_000},
    {"key": None, "value": b"v2", "timestamp": 2_000},
    {"key": b"k3", "value": None, "timestamp": 3_000},
    {"key": b"", "value": b"", "timestamp": 4_000},
]


def row_of(message: Message) -> dict[str, Any]:
    row = {"key": message.key(), "value": message.value(), "timestamp": message.timestamp()[1]}
    return row | ({"headers": message.headers()} if message.headers() else {})


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_messages_come_back_as_they_were_sent(
    bootstrap: str, topic: str, compression: str, idempotent: bool
) -> None:
    options = {"compression.type": compression, "enable.idempotence": idempotent}
    assert produced(bootstrap, topic, ROWS, **options) == [0, 1, 2, 3]
    assert [row_of(message) for message in read(bootstrap, topic, 4)] == ROWS
    assert [m.offset() for m in read(bootstrap, topic, 2, offset=2)] == [2, 3]


def test_native_readers_see_the_same_records(bootstrap: str, topic: str, url: str) -> None:
    produced(bootstrap, topic, ROWS, **{"compression.type": "zstd"})
    with nexo.connect(url) as client:
        found = client.stream(topic).read(0, offset=0)
        rows = [(r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in found]
    assert rows == [
        (0, "k1", b"v1", {"h": "1", "n": None}, 1_000),
        (1, None, b"v2", {}, 2_000),
        (2, "k3", None, {}, 3_000),
        (3, "", b"", {}, 4_000),
    ]


def test_kafka_clients_read_what_native_writers_wrote(bootstrap: str, topic: str, url: str) -> None:
    with nexo.connect(url) as client:
        stream = client.stream(topic)
        stream.create()
        stream.publish(b"raw", key="a", headers={"h": "x"})
        stream.publish_many(["text", {"id": 1}])
    found = read(bootstrap, topic, 3)
    assert [(m.key(), m.value()) for m in found] == [
        (b"a", b"raw"),
        (None, b"text"),
        (None, b'{"id":1}'),
    ]
    assert found[0].headers() == [("h", b"x")]


def test_offsets_by_time_and_bounds(bootstrap: str, topic: str) -> None:
    produced(bootstrap, topic, ROWS)
    consumer = Consumer({"bootstrap.servers": bootstrap, **UNGROUPED})
    asked = [TopicPartition(topic, 0, time_ms) for time_ms in (2_500,)]
    assert [found.offset for found in consumer.offsets_for_times(asked, timeout=10)] == [2]
    late = consumer.offsets_for_times([TopicPartition(topic, 0, 9_000)], timeout=10)
    assert late[0].offset == -1
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 4)
    consumer.close()


def test_times_are_those_of_the_records(bootstrap: str, topic: str) -> None:
    """Also where times go back; the greatest has the offset of the first record that has it."""
    times = [1_000, 5_000, 3_000, 5_000, 4_000]
    produced(bootstrap, topic, [{"value": b"v", "timestamp": time_ms} for time_ms in times])
    at = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def found(spec: OffsetSpec) -> tuple[int, int]:
        (future,) = admin.list_offsets({at: spec}).values()
        result = future.result(20)
        return result.offset, result.timestamp

    assert found(OffsetSpec.for_timestamp(900)) == (0, 1_000)
    assert found(OffsetSpec.for_timestamp(1_001)) == (1, 5_000)
    assert found(OffsetSpec.for_timestamp(5_001)) == (-1, -1)
    assert found(OffsetSpec.max_timestamp()) == (1, 5_000)
    assert found(OffsetSpec.earliest())[0] == 0
    assert found(OffsetSpec.latest())[0] == 5


@pytest.mark.parametrize(("reset", "seen"), [("earliest", [b"2"]), ("latest", []), ("error", None)])
def test_a_reader_of_dropped_records_goes_where_it_is_told(
    bootstrap: str, url: str, reset: str, seen: list[bytes] | None
) -> None:
    topic = f"dropped-{reset}"
    produced(bootstrap, topic, [{"value": b"%d" % number} for number in range(3)])
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    (dropped,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    assert dropped.result(20).low_watermark == 2
    options = {"auto.offset.reset": reset, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **UNGROUPED, **options})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        found.append(message.value() or b"")
    consumer.close()
    assert message is not None
    code = message.error().code()
    if seen is None:
        assert code == KafkaError._AUTO_OFFSET_RESET
    else:
        assert (code, found) == (KafkaError._PARTITION_EOF, seen)


def test_without_acknowledgement_messages_are_stored_too(bootstrap: str, topic: str) -> None:
    produced(bootstrap, topic, ROWS[:1], acks=0)
    assert [m.value() for m in read(bootstrap, topic, 1)] == [b"v1"]


def test_a_megabyte_batch_is_read_whole(bootstrap: str, topic: str) -> None:
    rows = [{"value": bytes([i]) * 900_000} for i in range(5)]
    produced(bootstrap, topic, rows, **{"message.max.bytes": 2_000_000})
    assert [(m.value() or b"?")[0] for m in read(bootstrap, topic, 5)] == [0, 1, 2, 3, 4]
