"""Transactional producers and members of groups over a stop of the server (SPEC O3, H1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from nexo import Client
from nexo.testing import Server

WAIT_S = 60.0


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as running:
        running.start()
        with Client(running.url) as client:
            for name in ("left", "right"):
                client.stream(name).create()
        yield running


def started(server: Server) -> Producer:
    producer = Producer({
        "bootstrap.servers": f"127.0.0.1:{server.port}", "transactional.id": "tx", "log_level": 0,
    })  # fmt: skip
    producer.init_transactions(WAIT_S)
    return producer


def commit(producer: Producer, value: str) -> None:
    producer.begin_transaction()
    for topic in ("left", "right"):
        producer.produce(topic, value)
    producer.commit_transaction(WAIT_S)


def values(server: Server) -> list[list[bytes]]:
    with Client(server.url) as client:
        return [[each.value for each in client.stream(name).read()] for name in ("left", "right")]


def test_a_producer_with_nothing_open_goes_on_after_a_stop(server: Server) -> None:
    producer = started(server)
    for number in range(3):
        commit(producer, f"{number}")
        server.stop()
        server.start()
    commit(producer, "3")
    assert values(server) == [[b"0", b"1", b"2", b"3"]] * 2


def test_what_was_open_at_a_stop_is_rolled_back_and_its_producer_told(server: Server) -> None:
    """Half a transaction is never committed, though the other half comes after the stop."""
    producer = started(server)
    commit(producer, "first")
    producer.begin_transaction()
    producer.produce("left", "half")
    producer.flush(WAIT_S)
    server.stop()
    server.start()
    producer.produce("right", "half")
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(WAIT_S)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    commit(producer, "last")
    assert values(server) == [[b"first", b"last"]] * 2


def test_after_a_kill_a_producer_begins_again(server: Server) -> None:
    """Nobody knows then what it had open, also if there was a stop before."""
    producer = started(server)
    commit(producer, "first")
    server.stop()
    server.start()
    server.crash()
    server.start()
    with pytest.raises(KafkaException) as caught:
        commit(producer, "unknown")
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    commit(producer, "last")
    assert values(server) == [[b"first", b"last"]] * 2


# -- members of groups ------------------------------------------------------------------------


@pytest.fixture
def consumer(server: Server) -> Iterator[Consumer]:
    """A member of a group, with its partition."""
    found = Consumer({
        "bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": "g", "log_level": 0,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    found.subscribe(["left"])
    with Client(server.url) as client:
        client.stream("left").publish("first")
    message = found.poll(WAIT_S)
    assert message is not None
    assert message.error() is None
    yield found
    found.close()


def committed(consumer: Consumer) -> int:
    (found,) = consumer.committed([TopicPartition("left", 0)], WAIT_S)
    return int(found.offset)


def test_a_member_commits_and_reads_on_after_a_stop(server: Server, consumer: Consumer) -> None:
    for number in range(1, 3):
        server.stop()
        server.start()
        consumer.commit(asynchronous=False)
        assert committed(consumer) == number
        with Client(server.url) as client:
            client.stream("left").publish(f"{number}")
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.value() == str(number).encode()


def test_after_a_kill_its_first_commit_is_refused_and_it_joins_again(
    server: Server, consumer: Consumer
) -> None:
    server.stop()
    server.start()
    server.crash()
    server.start()
    with pytest.raises(KafkaException):
        consumer.commit(asynchronous=False)
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.value() == b"first"
    consumer.commit(asynchronous=False)
    assert committed(consumer) == 1
