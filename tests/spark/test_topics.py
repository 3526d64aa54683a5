"""Several streams in one query, with the options and columns of Kafka's source and sink (I12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nexo
from nexo.errors import Conflict, InvalidOption, NotFound, OffsetOutOfRange
from pyspark_nexo import lag, topics
from pyspark_nexo.options import kafka_options
from pyspark_nexo.reading.ranges import ReadTask
from pyspark_nexo.topics import TopicReader, TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def orders(client: nexo.Client) -> None:
    """Two streams that a pattern matches, with 30 and 20 records, and one that it does not."""
    for name, partitions, count in (("orders.eu", 2, 30), ("orders.us", 1, 20), ("other", 1, 5)):
        stream = client.stream(name).create(partitions=partitions)
        stream.publish_many(
            [f"{name} {n}" for n in range(count)], headers=[{"n": str(n)} for n in range(count)]
        )


def _options(url: str, **given: str) -> Any:
    return kafka_options({"url": url, **given}, streaming=False)


def _streaming(url: str, **given: str) -> TopicStreamReader:
    return TopicStreamReader(kafka_options({"url": url, **given}, streaming=True))


def _count(tasks: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in tasks:
        assert isinstance(task, ReadTask)
        topic, part = task.origin.stream, task.part
        found[topic] = found.get(topic, 0) + part.end - part.first
    return found


def test_topics_offsets_and_partitions_are_chosen_as_in_kafka(url: str, orders: None) -> None:
    def read(**given: str) -> dict[str, int]:
        return _count(TopicReader(_options(url, **given)).partitions())

    assert read(subscribe="orders.eu, orders.us") == {"orders.eu": 30, "orders.us": 20}
    assert read(subscribePattern="orders.*") == {"orders.eu": 30, "orders.us": 20}
    assert set(read(assign='{"orders.eu": [1]}')) == {"orders.eu"}
    starts = json.dumps({"orders.us": {"0": 5}, "orders.eu": {"0": -1, "1": -2}})
    found = read(subscribe="orders.eu,orders.us", startingOffsets=starts)
    assert found["orders.us"] == 15
    assert read(subscribe="orders.us", endingOffsets='{"orders.us": {"0": 7}}') == {"orders.us": 7}
    parts = TopicReader(_options(url, subscribe="orders.us", minPartitions="4")).partitions()
    assert [task.part.end - task.part.first for task in parts] == [5, 5, 5, 5]


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "a", "stream": "b"},
        {"subscribePattern": "("},
        {"assign": "[0]"},
        {"subscribe": "a", "startingOffsets": '{"0": 1}'},
        {"subscribe": "a", "failOnDataLoss": "perhaps"},
    ],
)
def test_bad_options_are_named(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        kafka_options(given, streaming=False)


def test_what_is_lost_fails_unless_losses_are_allowed(
    url: str, client: nexo.Client, orders: None
) -> None:
    given = {"subscribe": "orders.us", "startingOffsets": '{"orders.us": {"0": 99}}'}
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        TopicReader(_options(url, **given)).partitions()
    allowed = _options(url, **given, failOnDataLoss="false")
    assert TopicReader(allowed).partitions() == []
    strict = _streaming(url, subscribe="orders.us,other")
    lenient = _streaming(url, subscribe="orders.us,other", failOnDataLoss="false")
    start = strict.initialOffset()  # as in Kafka, a stream starts at the latest offset
    client.stream("orders.us").delete()
    with pytest.raises(NotFound):
        strict.latestOffset(start, object())
    assert set(lenient.latestOffset(start, object())) == {"other"}
    client.stream("orders.us").create().publish_many(["new"] * 3)
    with pytest.raises(Conflict, match="created again"):
        strict.latestOffset(start, object())
    assert _count(lenient.partitions(start, lenient.latestOffset(start, object()))) == {
        "orders.us": 3
    }


def test_a_streaming_query_over_a_pattern_reports_its_lag(
    spark: SparkSession, url: str, client: nexo.Client, orders: None, tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format("nexo")
        .options(
            url=url, subscribePattern="orders.*", startingOffsets="earliest",
            maxOffsetsPerTrigger="20", includeHeaders="true",
        )
        .load()
    )  # fmt: skip
    assert frame.columns == [*list(topics._TYPES)]
    client.stream("copies.a").create()
    client.stream("copies.b").create()
    target = "case when topic = 'orders.eu' then 'copies.a' else 'copies.b' end as topic"
    query = (
        frame.selectExpr(target, "key", "value", "headers")
        .writeStream.format("nexo")
        .options(url=url, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [20, 20, 10]
    assert [lag(each) for each in progress] == [30, 10, 0]
    copied = client.stream("copies.a").read()
    assert len(copied) == 30
    assert {record.value for record in copied} == {f"orders.eu {n}".encode() for n in range(30)}
    assert {record.headers["n"] for record in copied} == {str(n) for n in range(30)}
    assert client.stream("copies.b").info().partitions[0].next_offset == 20
