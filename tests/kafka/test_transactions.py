"""Kafka's transactions are the engine's own (SPEC H1, L4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import nexo
from tests.kafka.ledger import shows

pytestmark = shows("confluent-kafka", "transactions: commit, abort, offsets, fencing")
QUIET = {"log_level": 0}


@pytest.fixture
def producer(bootstrap: str, topic: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, **QUIET})
    made.init_transactions(20)
    return made


@pytest.fixture(params=["read_committed", "read_uncommitted"])
def reader(bootstrap: str, topic: str, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": request.param,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    yield made
    made.close()


def to_end(reader: Consumer, topic: str, offset: int = 0) -> list[bytes | None]:
    """Everything from an offset of the partition to its end."""
    reader.assign([TopicPartition(topic, 0, offset)])
    found: list[bytes | None] = []
    while True:
        message: Message | None = reader.poll(20)
        assert message is not None, "the end was not reached"
        if message.error():
            return found
        found.append(message.value())


def send(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(20)


def test_what_was_rolled_back_is_never_read(
    producer: Producer, reader: Consumer, topic: str
) -> None:
    send(producer, topic, b"lost", b"too")
    producer.abort_transaction(20)
    assert to_end(reader, topic) == []
    send(producer, topic, b"kept")
    producer.commit_transaction(20)
    assert to_end(reader, topic) == [b"kept"]
    assert reader.position([TopicPartition(topic, 0)])[0].offset == 3


def test_what_was_rolled_back_is_not_read_from_the_middle_either(
    producer: Producer, reader: Consumer, bootstrap: str, url: str, topic: str
) -> None:
    """Records of one batch are deleted up to its middle."""
    send(producer, topic, b"lost", b"too", b"also")
    producer.abort_transaction(20)
    at = TopicPartition(topic, 0, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    assert admin.delete_records([at])[at].result(20).low_watermark == 1
    send(producer, topic, b"kept")
    producer.commit_transaction(20)
    assert to_end(reader, topic, 1) == [b"kept"]
    with nexo.connect(url) as client:
        values = [record.value for record in client.stream(topic).read(0, offset=1)]
    assert values == [b"kept"]


def test_outputs_and_offsets_become_visible_together(
    producer: Producer, bootstrap: str, url: str, topic: str
) -> None:
    with nexo.connect(url) as client:
        client.stream(f"{topic}-in").create()
        client.stream(f"{topic}-in").publish_many([b"1", b"2", b"3"])
        client.stream(topic).create()
    options = {"bootstrap.servers": bootstrap, "group.id": topic, **QUIET}
    consumer = Consumer({**options, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    careless = Consumer({**options, "isolation.level": "read_uncommitted"})
    consumer.subscribe([f"{topic}-in"])
    found = consumer.consume(3, timeout=20)
    assert len(found) == 3
    for commits in (False, True):
        send(producer, topic, *[(message.value() or b"") + b"!" for message in found])
        at = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), 20)
        stored = careless.committed(consumer.assignment(), timeout=20)[0].offset
        assert stored == -1001
        with pytest.raises(KafkaException):  # who reads what is committed waits for the decision
            consumer.committed(consumer.assignment(), timeout=0.3)
        (producer.commit_transaction if commits else producer.abort_transaction)(20)
    assert consumer.committed(consumer.assignment(), timeout=20)[0].offset == 3
    consumer.close()
    careless.close()
    with nexo.connect(url) as client:
        values = [record.value for record in client.stream(topic).read(0, offset=0)]
    assert values == [b"1!", b"2!", b"3!"]


def test_a_later_producer_fences_an_earlier_one(
    producer: Producer, reader: Consumer, bootstrap: str, topic: str
) -> None:
    send(producer, topic, b"left open")
    later = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, **QUIET})
    later.init_transactions(20)
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(20)
    send(later, topic, b"kept")
    later.commit_transaction(20)
    assert to_end(reader, topic) == [b"kept"]
