"""Beside a real Kafka: the same Python client on both, and each one's best client."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from benchmarks import kafka
from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.peers import Server
from benchmarks.queue_peers import in_tasks, side_by_side

PARTITIONS = kafka.PARTITIONS
RECORDS = 1_000_000
TASKS, SINGLES, WINDOW = 500, 50_000, 32
_ASYNC = "both synced in background"
_SYNC = "fsync before every reply on both"
_GROUP = "committed or acked after each batch"

# ruff: noqa: PLC0415 - each contender imports its own client


def rows() -> list[Row]:
    """Rows whose only peer is Kafka; without Java or Maven the peer is missing."""
    same = "the same confluent-kafka program"
    best = "publish_many of {} against confluent-kafka's best"
    return [
        _row(f"{same}, produce", _same(kafka.produce), _same(kafka.produce), 1.0),
        _row(f"{same}, produce, fsync", _same(kafka.produce), _same(kafka.produce), 1.0, sync=True),
        _row(f"{same}, consume", _same(kafka.consume), _same(kafka.consume), 1.0),
        _row(best.format(100), partial(_native, 100), _same(kafka.produce), 2.5),
        _row(best.format("1,000"), partial(_native, 1_000), _same(kafka.produce), 5.0),
        _row(
            best.format("1,000") + ", fsync", partial(_native, 1_000), _same(kafka.produce), 5.0,
            sync=True,
        ),
        _row(
            f"group consume against confluent-kafka's, {_GROUP}", _native_group, _group, 4.0
        ),
        _row(f"{TASKS} tasks publishing singly against aiokafka", _native_tasks, _aiokafka, 6.0),
        _cpu_row("produce", kafka.produce, kafka.PRODUCED),
        _cpu_row("consume", kafka.consume, kafka.CONSUMED),
    ]  # fmt: skip


Work: TypeAlias = Callable[[Bench, Server], Measure]


def _row(what: str, ours: Work, theirs: Work, bar: float, *, sync: bool = False) -> Row:
    return Row(
        f"beside Kafka: {what}", "msg/s",
        ours=Contender("nexo", partial(_on_nexo, ours, sync)),
        peers=[Contender("kafka", partial(_on_kafka, theirs, sync))],
        bar=bar, durability=_SYNC if sync else _ASYNC,
    )  # fmt: skip


def _cpu_row(what: str, work: kafka.Work, count: int) -> Row:
    counted = partial(kafka.cpu_per_million, work, count)
    return Row(
        f"beside Kafka: CPU of the server, {what} a million", "s",
        ours=Contender("nexo", partial(_on_nexo, counted, False)),
        peers=[Contender("kafka", partial(_on_kafka, counted, False))],
        bar=1.0, lower_is_better=True, durability=_ASYNC,
    )  # fmt: skip


def _on_nexo(work: Work, sync: bool, bench: Bench) -> Measure:
    mode = "file_sync" if sync else "file_async"
    served = bench.nexo(dashboard=False, kafka_partitions=PARTITIONS, stream_persistence=mode)
    return work(bench, served)


def _on_kafka(work: Work, sync: bool, bench: Bench) -> Measure:
    return work(bench, bench.kafka(PARTITIONS, sync=sync))


def _same(work: kafka.Work) -> Work:
    return lambda bench, server: work(bench, f"127.0.0.1:{server.port}")


# -- each one's own client -----------------------------------------------------------------


def _client(bench: Bench, server: Server) -> Any:
    import nexo

    return bench.enter_async(nexo.AsyncClient(server.url))


def _native(batch: int, bench: Bench, server: Server) -> Measure:
    """Batches, `WINDOW` in flight."""
    stream = bench.run(_client(bench, server).stream(kafka.TOPIC, bytes).create(partitions=4))
    values = [kafka.VALUE] * batch

    async def one_batch(_: int) -> None:
        await stream.publish_many(values)

    return side_by_side(bench, batch, RECORDS, one_batch, WINDOW)


def _native_group(bench: Bench, server: Server) -> Measure:
    kafka.fill(f"127.0.0.1:{server.port}", count := bench.scaled(RECORDS))
    stream, number = _client(bench, server).stream(kafka.TOPIC, bytes), 0

    async def drain() -> float:
        nonlocal number
        number += 1
        got, start_s = 0, 0.0
        async with stream.consume(f"group{number}", batch=10_000) as consumer:
            async for records in consumer.batches():
                start_s = start_s or time.perf_counter()
                got += len(records.payloads())
                await records.ack()
                if got >= count:
                    break
        return count / (time.perf_counter() - start_s)

    return lambda: bench.run(drain())


def _group(bench: Bench, server: Server) -> Measure:
    from confluent_kafka import Consumer

    bootstrap, number = f"127.0.0.1:{server.port}", 0
    kafka.fill(bootstrap, count := bench.scaled(RECORDS))

    def measure() -> float:
        nonlocal number
        number += 1
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": f"group{number}",
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
            }
        )  # fmt: skip
        consumer.subscribe([kafka.TOPIC])
        got = len(consumer.consume(1, kafka.PATIENCE_S))
        start_s = time.perf_counter()
        while got < count and time.perf_counter() - start_s < kafka.PATIENCE_S:
            got += len(consumer.consume(min(10_000, count - got), 1.0))
            consumer.commit(asynchronous=False)
        took_s = time.perf_counter() - start_s
        consumer.close()
        if got < count:
            raise TimeoutError(f"{got} of {count} messages came")
        return count / took_s

    return measure


def _native_tasks(bench: Bench, server: Server) -> Measure:
    stream = bench.run(_client(bench, server).stream(kafka.TOPIC, bytes).create(partitions=4))
    return in_tasks(bench, TASKS, bench.scaled(SINGLES), lambda: stream.publish(kafka.VALUE))


def _aiokafka(bench: Bench, server: Server) -> Measure:
    from aiokafka import AIOKafkaProducer

    async def make() -> Any:  # within its loop
        return AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{server.port}", acks="all")

    producer = bench.enter_async(bench.run(make()))

    async def publish() -> None:
        await producer.send_and_wait(kafka.TOPIC, kafka.VALUE)

    return in_tasks(bench, TASKS, bench.scaled(SINGLES), publish)
