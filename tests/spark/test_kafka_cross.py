"""Whatever wrote a record, everyone reads the same (SPEC L1): each writer with each reader."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import nexo
from nexo import topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nexo.lake.catalog import Lake
    from pyspark_nexo.pipeline import Pipeline

PARTITIONS = 2
QUIET = {"log_level": 0}


class Row(NamedTuple):
    """A record as its writer means it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | None], ...] = ()


ROWS = [
    Row(b"text", b"plain", (("trace", "abc"), ("none", None))),
    Row(None, b'{"id": 1}'),
    Row(b"gone", None, (("why", "deleted"),)),
    Row(b"\xff\x00raw", b"\x00\xff"),
    Row(b"", b""),
    *(Row(b"k%d" % (number % 7), b"v%d" % number) for number in range(300)),
]


def rows_of(writer: str) -> list[Row]:
    """What a writer writes; a client's tombstones have no headers."""
    if writer != "client":
        return ROWS
    return [row._replace(headers=()) if row.value is None else row for row in ROWS]


class Seen(NamedTuple):
    """A record as a reader gives it."""

    partition: int
    offset: int
    row: Row
    time_ms: int


def seen(
    partition: Any, offset: Any, key: Any, value: Any, headers: Mapping[str, Any] | None,
    time_ms: Any,
) -> Seen:  # fmt: skip
    key = key.encode() if isinstance(key, str) else key
    row = Row(
        None if key is None else bytes(key), None if value is None else bytes(value),
        tuple((headers or {}).items()),
    )  # fmt: skip
    return Seen(int(partition), int(offset), row, int(time_ms))


# -- writers -----------------------------------------------------------------------------


def with_kafka(url: str, stream: str, _: SparkSession) -> None:
    options = {"bootstrap.servers": url.removeprefix("nexo://"), "compression.type": "zstd"}
    producer = Producer({**options, "enable.idempotence": True, **QUIET})
    for number, row in enumerate(ROWS):
        headers = [(name, text and text.encode()) for name, text in row.headers]
        time_ms = 1_700_000_000_000 + number
        producer.produce(stream, row.value, row.key, headers=headers or None, timestamp=time_ms)
    assert producer.flush(30) == 0


def with_client(url: str, stream: str, _: SparkSession) -> None:
    with nexo.connect(url) as client:
        target = client.stream(stream)
        for row in rows_of("client"):
            if row.value is None:
                assert row.key is not None
                target.tombstone(row.key)
            else:
                target.publish(row.value, key=row.key, headers=dict(row.headers) or None)


def with_topics(url: str, stream: str, _: SparkSession) -> None:
    with topics.Producer(server=url, compression="gzip") as producer:
        for row in ROWS:
            producer.send(stream, row.value, key=row.key, headers=dict(row.headers) or None)
        producer.flush()


def with_spark(url: str, stream: str, spark: SparkSession) -> None:
    rows = [
        (row.key, row.value, json.dumps(dict(row.headers)) if row.headers else None) for row in ROWS
    ]
    frame = spark.createDataFrame(rows, "key binary, value binary, headers string").coalesce(1)
    frame.write.format("nexo").option("url", url).option("stream", stream).mode("append").save()


WRITERS: dict[str, Callable[[str, str, SparkSession], None]] = {
    "kafka": with_kafka, "client": with_client, "topics": with_topics, "spark": with_spark,
}  # fmt: skip


# -- readers -----------------------------------------------------------------------------


def by_kafka(url: str, stream: str) -> list[Seen]:
    options = {"bootstrap.servers": url.removeprefix("nexo://"), "group.id": "unused", **QUIET}
    consumer = Consumer({**options, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(stream, index, 0) for index in range(PARTITIONS)])
    found, ends = [], 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "nothing came"
        if message.error():
            ends += 1
            continue
        headers = {name: text and text.decode() for name, text in message.headers() or ()}
        found.append(
            seen(message.partition(), message.offset(), message.key(), message.value(), headers,
                 message.timestamp()[1])
        )  # fmt: skip
    consumer.close()
    return found


def by_client(url: str, stream: str) -> list[Seen]:
    with nexo.connect(url) as client:
        return [
            seen(index, record.offset, record.key, record.payload, record.headers,
                 record.timestamp_ms)
            for index in range(PARTITIONS) for record in client.stream(stream).read(index)
        ]  # fmt: skip


def by_topics(url: str, stream: str) -> list[Seen]:
    found: list[Seen] = []
    with topics.Consumer(stream, group_id=f"reads-{stream}", server=url) as consumer:
        while len(found) < len(ROWS):
            batch = consumer.poll_batch(500, timeout=30)
            assert batch, "nothing came"
            found += [
                seen(each.partition, each.offset, each.key, each.payload, each.headers,
                     each.timestamp_ms)
                for each in batch
            ]  # fmt: skip
        assert not consumer.poll_batch(500, timeout=0)
    return found


def from_table(rows: list[dict[str, Any]]) -> list[Seen]:
    """Of Spark's source, the lake and SQL, whose columns are the same."""
    return [
        seen(row["partition"], row["offset"], row["key"], row["value"],
             json.loads(row["headers"]) if row["headers"] else None,
             round(row["timestamp"].timestamp() * 1_000))
        for row in rows
    ]  # fmt: skip


# -- each with each ----------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_gives_every_record_once(
    writer: str, url: str, client: nexo.Client, spark: SparkSession, lake: Lake, pipeline: Pipeline
) -> None:
    client.stream(writer).create(partitions=PARTITIONS, tiering=True)
    WRITERS[writer](url, writer, spark)

    expected = sorted(by_client(url, writer))
    assert Counter(each.row for each in expected) == Counter(rows_of(writer))
    ends = [part.next_offset for part in client.stream(writer).info().partitions]
    places = [(index, offset) for index in range(PARTITIONS) for offset in range(ends[index])]
    assert [each[:2] for each in expected] == places

    source = spark.read.format("nexo").option("url", url).option("stream", writer).load()
    wanted = f'select partition, "offset", "timestamp", key, value, headers from "{writer}"'
    readers = {
        "kafka": by_kafka(url, writer),
        "topics": by_topics(url, writer),
        "spark": from_table([row.asDict() for row in source.collect()]),
        "sql, from the log": from_table(
            client.sql(wanted, streams=[writer], lake=str(lake.settings.folder)).dicts()
        ),
    }
    assert pipeline.run_once() == len(ROWS)
    readers["lake"] = from_table(lake.get(writer).scan().to_arrow().to_pylist())
    readers["sql, from the lake"] = from_table(
        client.sql(wanted, streams=[writer], lake=str(lake.settings.folder)).dicts()
    )
    for reader, found in readers.items():
        assert sorted(found) == expected, f"written with {writer}, read with {reader}"
