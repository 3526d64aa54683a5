"""Kafka's protocol: confluent-kafka on Nexo and on librdkafka's mock cluster, which has no disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.peers import Server

VALUE = b"x" * 100
PRODUCED = 400_000
CONSUMED = 120_000
"""The mock cluster keeps 5 MB of a partition, and makes topics of four partitions."""
PARTITIONS = 4
TOPIC = "log"
_MEMORY = "ours synced in background, the mock cluster's in memory"
_BACKGROUND = "synced in background"
PATIENCE_S = 60
_QUIET = {"log_level": 0}
_LINGER = {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000, "acks": "all"}

Work: TypeAlias = Callable[[Bench, str], Measure]
"""Prepares itself on the server at an address."""

# ruff: noqa: PLC0415 - each contender imports its own client


def rows() -> list[Row]:
    return [
        Row(
            "Kafka client, produce", "msg/s", ours=Contender("nexo", _nexo(produce)),
            peers=[Contender("mock cluster", _mock(produce))], bar=0.5, durability=_MEMORY,
        ),
        Row(
            "Kafka client, consume", "msg/s", ours=Contender("nexo", _nexo(consume)),
            peers=[Contender("mock cluster", _mock(consume))], bar=0.5, durability=_MEMORY,
        ),
        Row(
            "Kafka client, produce, CPU of the server for a million", "s",
            ours=Contender("nexo", partial(_cpu, produce, PRODUCED)), limit=2.0,
            lower_is_better=True, durability=_BACKGROUND,
        ),
        Row(
            "Kafka client, consume, CPU of the server for a million", "s",
            ours=Contender("nexo", partial(_cpu, consume, CONSUMED)), limit=2.0,
            lower_is_better=True, durability=_BACKGROUND,
        ),
        Row(
            "native client reads what a Kafka client wrote", "msg/s",
            ours=Contender("from Kafka", partial(_native_read, fill)),
            peers=[Contender("from a native client", partial(_native_read, _fill_native))],
            durability=_BACKGROUND,
        ),
        Row(
            "Kafka client reads what a native client wrote", "msg/s",
            ours=Contender("from a native client", _nexo(partial(consume, filled=_fill_native))),
            peers=[Contender("from Kafka", _nexo(consume))], durability=_BACKGROUND,
        ),
        *_beside_kafka(),
    ]  # fmt: skip


def _beside_kafka() -> list[Row]:
    from benchmarks import kafka_peer  # it takes its work from here

    return kafka_peer.rows()


# -- where ---------------------------------------------------------------------------------


def _cpu(work: Work, count: int, bench: Bench) -> Measure:
    _served(bench)
    return cpu_per_million(work, count, bench, bench.servers[0])


def _nexo(work: Work) -> Callable[[Bench], Measure]:
    def prepare(bench: Bench) -> Measure:
        return work(bench, _served(bench))

    return prepare


def _served(bench: Bench) -> str:
    port = bench.nexo(dashboard=False, kafka_partitions=PARTITIONS).port
    return f"127.0.0.1:{port}"


def _mock(work: Work) -> Callable[[Bench], Measure]:
    """A cluster inside of librdkafka: its threads are the client's CPU time."""

    def prepare(bench: Bench) -> Measure:
        from confluent_kafka import Producer

        cluster = Producer({"test.mock.num.brokers": 1, **_QUIET})
        (broker,) = cluster.list_topics(timeout=PATIENCE_S).brokers.values()
        measure = work(bench, f"{broker.host}:{broker.port}")
        return lambda: measure() if cluster is not None else 0.0  # keeps the cluster

    return prepare


# -- work ----------------------------------------------------------------------------------


def produce(bench: Bench, bootstrap: str) -> Measure:
    count = bench.scaled(PRODUCED)
    producer = _producer(bootstrap)

    def measure() -> float:
        start_s = time.perf_counter()
        _send(producer, count)
        return count / (time.perf_counter() - start_s)

    return measure


def _producer(bootstrap: str) -> Any:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **_LINGER, **_QUIET})
    producer.list_topics(TOPIC, timeout=PATIENCE_S)
    return producer


def _send(producer: Any, count: int) -> None:
    for number in range(count):
        producer.produce(TOPIC, VALUE, partition=number % PARTITIONS)
        if not number % 5_000:
            producer.poll(0)
    if producer.flush(PATIENCE_S):
        raise TimeoutError("not all messages were acknowledged")


def fill(bootstrap: str, count: int) -> None:
    _send(_producer(bootstrap), count)


def _fill_native(bootstrap: str, count: int) -> None:
    import nexo

    with nexo.Client(f"nexo://{bootstrap}") as client:
        stream = client.stream(TOPIC, bytes).create(partitions=PARTITIONS)
        for _ in range(count // 1_000):
            stream.publish_many([VALUE] * 1_000)


def consume(
    bench: Bench, bootstrap: str, filled: Callable[[str, int], None] | None = None
) -> Measure:
    """Read all partitions from their beginning, from the first message to the last."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    count = bench.scaled(CONSUMED)
    (filled or fill)(bootstrap, count)
    options = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    places = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]

    def measure() -> float:
        consumer = Consumer(options | _QUIET)
        consumer.assign(places)
        got = len(consumer.consume(1, PATIENCE_S))
        start_s = time.perf_counter()
        while got < count:
            found = consumer.consume(min(10_000, count - got), 1.0)
            got += len(found)
            if time.perf_counter() - start_s > PATIENCE_S:
                raise TimeoutError(f"{got} of {count} messages came")
        took_s = time.perf_counter() - start_s
        consumer.close()
        return count / took_s

    return measure


def cpu_per_million(work: Work, count: int, bench: Bench, server: Server) -> Measure:
    """What the server spends on so many messages."""
    measure = work(bench, f"127.0.0.1:{server.port}")

    def measured() -> float:
        before_s = server.cpu_s()
        measure()
        return (server.cpu_s() - before_s) * 1e6 / bench.scaled(count)

    return measured


def _native_read(fill: Callable[[str, int], None], bench: Bench) -> Measure:
    """A new group takes all records each time, from a server that has just started to read."""
    import nexo

    bootstrap, count = _served(bench), bench.scaled(CONSUMED)
    fill(bootstrap, count)
    client = bench.enter(nexo.Client(f"nexo://{bootstrap}"))
    stream, number = client.stream(TOPIC, bytes), 0

    def measure() -> float:
        nonlocal number
        number += 1
        start_s, got = time.perf_counter(), 0
        with stream.consume(f"group{number}", batch=1_000) as consumer:
            while got < count:
                records = consumer.fetch()
                assert len(records.payloads()) == len(records)
                got += len(records)
                records.ack()
        return count / (time.perf_counter() - start_s)

    return measure
