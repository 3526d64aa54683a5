"""Records of Kafka clients in compaction, the lake, a crash, and when bad (SPEC L1, L4, L5)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from google_crc32c import value as crc32c

import nexo
import nexo.testing
from nexo.batch import decode
from nexo.lake.arrow import to_arrow
from tests.kafka.test_batches import ROWS, kafka_batch, stored
from tests.kafka.test_frames import answer, request

QUIET = {"log_level": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[nexo.testing.Server]:
    running = nexo.testing.Server(data_dir=tmp_path / "nexo")
    running.start()
    yield running
    running.close()


def produce(bootstrap: str, topic: str, *rows: tuple[str | None, str | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", **QUIET})
    for key, value in rows:
        producer.produce(topic, value, key)
    assert producer.flush(20) == 0


def read(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, timeout=20)
    consumer.close()
    return [(message.offset(), message.key(), message.value()) for message in found]


def test_the_lake_takes_what_kafka_clients_wrote() -> None:
    table = to_arrow(decode(stored(kafka_batch(ROWS, 4))))
    found = table.to_pydict()
    assert found["key"] == [b"k", None, b"", b"x" * 300]
    assert found["offset"] == [7, 8, 9, 10]


def test_compaction_keeps_the_newest_of_each_key(server: nexo.testing.Server) -> None:
    bootstrap = server.url.removeprefix("nexo://")
    with nexo.connect(server.url) as client:
        stream = client.stream("state")
        stream.create(cleanup="compact")
        produce(bootstrap, "state", ("a", "1"), ("b", "1"), ("a", "2"))
        stream.publish(b"3", key="b")
        produce(bootstrap, "state", ("c", "1"))
        stream.compact()
        newest = stream.get("a")
        assert newest is not None
        assert newest.value == b"2"
    assert read(bootstrap, "state", 3) == [(2, b"a", b"2"), (3, b"b", b"3"), (4, b"c", b"1")]


def test_records_producers_and_offsets_survive_a_crash(server: nexo.testing.Server) -> None:
    bootstrap = server.url.removeprefix("nexo://")
    options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET}
    producer = Producer({**options, "transactional.id": "tx"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("orders", b"1", b"k")
    producer.commit_transaction(20)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **QUIET})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1, "noted")], asynchronous=False)
    consumer.close()
    producer.begin_transaction()
    producer.produce("orders", b"lost", b"k")
    producer.flush(20)
    server.crash()
    server.start()
    again = Producer({**options, "transactional.id": "tx"})
    again.init_transactions(20)
    again.begin_transaction()
    again.produce("orders", b"2", b"k")
    again.commit_transaction(20)
    assert read(bootstrap, "orders", 2) == [(0, b"k", b"1"), (2, b"k", b"2")]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **QUIET})
    (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=20)
    consumer.close()
    assert (found.offset, found.metadata) == (1, "noted")


def test_a_transaction_that_a_crash_cut_in_two_is_not_committed_in_part(
    server: nexo.testing.Server,
) -> None:
    bootstrap = server.url.removeprefix("nexo://")
    with nexo.connect(server.url) as client:
        client.stream("orders").create(partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", **QUIET})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("orders", b"lost", partition=0)
    assert producer.flush(20) == 0
    server.crash()
    server.start()
    producer.produce("orders", b"alone", partition=1)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(30)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(30)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce("orders", b"whole", partition=partition)
    producer.commit_transaction(30)
    with nexo.connect(server.url) as client:
        found = [client.stream("orders").read(partition, offset=0) for partition in (0, 1)]
    assert [[record.value for record in part] for part in found] == [[b"whole"], [b"whole"]]


def test_a_batch_that_cannot_be_read_stops_no_reader(server: nexo.testing.Server) -> None:
    """Whatever a Kafka client sends, other doors go on (SPEC L5)."""
    bootstrap = server.url.removeprefix("nexo://")
    head = bytearray(kafka_batch(ROWS[:2])[:61])
    junk = head + b"\xff" * 20
    junk[8:12] = (len(junk) - 12).to_bytes(4, "big")
    junk[17:21] = crc32c(bytes(junk[21:])).to_bytes(4, "big")
    produce(bootstrap, "orders", ("k", "before"))
    body = b"\xff\xff" + struct.pack(">hi", 1, 5_000) + struct.pack(">ih", 1, 6) + b"orders"
    body += struct.pack(">iii", 1, 0, len(junk)) + junk
    assert answer(bootstrap, request(0, 3, body))
    produce(bootstrap, "orders", ("k", "after"))
    with nexo.connect(server.url) as client:
        found = client.stream("orders").read(0, offset=0)
    assert [record.value for record in found] == [b"before", b"after"]
