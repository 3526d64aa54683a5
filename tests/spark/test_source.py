"""The data source reads and writes streams, in batch and streaming queries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql import functions as f

import nexo
from nexo import testing
from nexo.errors import Conflict, InvalidInput, InvalidOption, NexoError, NotFound, OffsetOutOfRange
from pyspark_nexo.failures import plain_errors
from pyspark_nexo.options import parse
from pyspark_nexo.reading.origins import BrokerOrigin
from pyspark_nexo.reading.ranges import limited, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BOUNDED = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether this Spark asks a Python source for less than everything."""


@pytest.fixture
def numbers(client: nexo.Client) -> Any:
    """A stream of 100 records in two partitions, 50 each."""
    stream = client.stream("numbers").create(partitions=2)
    for n in range(100):
        stream.publish({"n": n}, key=f"k{n}" if n % 2 else None)
    return stream


def load(spark: SparkSession, at: str, **options: object) -> DataFrame:
    given = {"url": at, "stream": "numbers"} | {key: str(value) for key, value in options.items()}
    return spark.read.format("nexo").options(**given).load()


def test_a_batch_query_reads_every_record(
    spark: SparkSession, url: str, client: nexo.Client, numbers: Any
) -> None:
    rows = load(spark, url, rowsPerTask=7).collect()
    found = {(row.partition, row.offset): (row.key, row.value) for row in rows}
    expected = {
        (p, r.offset): (r.key.encode() if r.key else None, r.payload)
        for p in (0, 1)
        for r in numbers.read(p)
    }
    assert len(rows) == 100
    assert {place: (k and bytes(k), bytes(v)) for place, (k, v) in found.items()} == expected


def test_offsets_partitions_and_columns_narrow_what_is_read(
    spark: SparkSession, url: str, numbers: Any
) -> None:
    ends = [part.next_offset for part in numbers.info().partitions]
    part = load(spark, url, partitions="1", startingOffsets='{"1": 3}', columns="offset,value")
    assert part.columns == ["offset", "value"]
    assert sorted(row.offset for row in part.collect()) == list(range(3, ends[1]))
    between = load(spark, url, startingOffsets=2, endingOffsets=5)
    assert sorted(row.offset for row in between.collect()) == [2, 2, 3, 3, 4, 4]
    assert load(spark, url, startingOffsets="latest").count() == 0
    ended = load(spark, url, endingOffsets='{"0": 5}').collect()  # the other goes to its end
    assert [sum(row.partition == p for row in ended) for p in (0, 1)] == [5, ends[1]]


def test_values_are_taken_apart_as_they_are_read(
    spark: SparkSession, url: str, numbers: Any
) -> None:
    numbers.publish("no object")
    typed = '{"number": ["n", "int"], "other": "json"}'
    frame = load(spark, url, typed=typed)
    assert frame.columns[-3:] == ["number", "other", "rejected"]
    assert frame.where("other is null and rejected is null").count() == 100
    assert frame.where("rejected is not null").count() == 1
    few = load(spark, url, typed=typed, columns="number,offset")
    assert few.columns == ["number", "offset"]
    assert few.agg(f.sum("number")).collect()[0][0] == sum(range(100))


def test_times_become_offsets_before_anything_is_read(
    spark: SparkSession, url: str, numbers: Any
) -> None:
    times = [record.timestamp_ms for p in (0, 1) for record in numbers.read(p)]
    low, high = sorted(times)[20], sorted(times)[80]
    options = {"startingTimestamp": str(low), "endingTimestamp": str(high)}
    frame = load(spark, url, **options).select("timestamp").withColumn("n", f.lit(1))
    assert frame.count() == sum(low <= time < high for time in times)
    given = parse({"stream": "numbers", "url": url} | options)
    for part in plan(given, BrokerOrigin(url, "numbers"), {}):
        between = [r.timestamp_ms for r in numbers.read(part.partition, part.first)]
        assert low <= between[0]
        assert between[part.end - part.first - 1] < high
    iso = datetime.fromtimestamp(low / 1000, UTC).isoformat()
    assert parse({"stream": "s", "startingTimestamp": iso}).from_ms == low
    assert parse({"stream": "s", "startingTimestamp": "2026-01-01T00:00:00.0001"}).from_ms == (
        parse({"stream": "s", "startingTimestamp": "2026-01-01T00:00:00.001"}).from_ms
    )


def test_files_are_read_without_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    with testing.process(tmp_path, dashboard=False) as server, nexo.connect(server.url) as client:
        client.stream("numbers").create(partitions=2).publish_many([b"x"] * 1_000)
    options = {"dataDir": str(tmp_path), "stream": "numbers", "rowsPerTask": "300"}
    rows = spark.read.format("nexo").options(**options).load().collect()
    assert len({(row.partition, row.offset) for row in rows}) == len(rows) == 1_000


def test_a_schema_chooses_columns(spark: SparkSession, url: str, numbers: Any) -> None:
    reader = spark.read.format("nexo").options(url=url, stream="numbers")
    assert reader.schema("value binary, offset bigint").load().columns == ["value", "offset"]
    assert reader.schema("value binary, offset bigint").load().where("offset = 3").count() == 2
    for schema, text in [("price int", "unknown column 'price'"), ("value int", "is binary")]:
        with pytest.raises(InvalidInput, match=text), plain_errors():
            reader.schema(schema).load().count()


def test_queries_on_one_frame_do_not_see_each_others_filters(
    spark: SparkSession, url: str, numbers: Any
) -> None:
    frame = load(spark, url)
    part = frame.where("offset >= 10 and offset < 12 and partition = 0")
    assert [(row.partition, row.offset) for row in part.collect()] == [(0, 10), (0, 11)]
    assert frame.count() == 100
    assert frame.where("partition = 1").count() + frame.where("partition = 0").count() == 100


def test_a_frame_keeps_its_end_and_a_new_one_sees_more(
    spark: SparkSession, url: str, numbers: Any
) -> None:
    frame = load(spark, url)
    assert frame.count() == 100
    numbers.publish(b"later")
    assert frame.where("offset >= 0").count() == 100
    assert load(spark, url).count() == 101


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stream": "nowhere"}, NotFound),
        ({"startingOffsets": "soon"}, InvalidOption),
        ({"startingOffsets": "1000"}, OffsetOutOfRange),
        ({"startingOffsets": '{"7": 0}'}, InvalidOption),
        ({"startingOffsets": '{"0": 1.7}'}, InvalidOption),
        ({"startingOffsets": "true"}, InvalidOption),
        ({"startingOffsets": "10", "endingOffsets": "5"}, InvalidOption),
        ({"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"}, InvalidOption),
        ({"startingTimestamp": "9" * 30}, InvalidOption),
        ({"rowsPerTask": "\u00b2"}, InvalidOption),
        ({"columns": "offset,offset"}, InvalidOption),
        ({"typed": "amount"}, InvalidOption),
        ({"typed": '["amount"]'}, InvalidOption),
        ({"typed": '{"n": "decimal"}'}, InvalidOption),
        ({"typed": '{"n": "int", "m": ["n", "int"]}'}, InvalidOption),
        ({"typed": '{"Offset": "long"}'}, InvalidOption),
        ({"partitions": "9"}, InvalidOption),
        ({"columns": "offset,price"}, InvalidOption),
        ({"maxOffsets": "1"}, InvalidOption),
        ({"pushFilters": "yes"}, InvalidOption),
        ({"startingTimestamp": "noon"}, InvalidOption),
        ({"dataDir": "/nowhere"}, InvalidOption),
        ({"url": "nexo://127.0.0.1:1?while_down=fail&connect_timeout=1"}, NexoError),
    ],
)
def test_bad_options_are_told_without_a_java_stack(
    spark: SparkSession, url: str, numbers: Any, options: dict[str, str], error: type[NexoError]
) -> None:
    with pytest.raises(error) as caught, plain_errors():
        load(spark, url, **options).count()
    assert "at org.apache" not in caught.value.message


def test_unknown_options_are_named() -> None:
    with pytest.raises(InvalidOption, match="startingOffset"):
        parse({"stream": "s", "startingoffset": "0"})
    with pytest.raises(InvalidOption, match="which stream"):
        parse({})


def test_a_small_limit_still_moves_on() -> None:
    assert limited({0: 0, 1: 0}, {0: 10, 1: 10}, 1) == {0: 1, 1: 0}
    assert limited({0: 0, 1: 5}, {0: 10, 1: 10}, 6) == {0: 4, 1: 7}
    assert limited({0: 0}, {0: 10}, None) == {0: 10}


def run_stream(spark: SparkSession, url: str, folder: Path, **options: object) -> list[int]:
    counts: list[int] = []
    reader = spark.readStream.format("nexo").option("url", url).option("stream", "numbers")
    frame = reader.options(**{key: str(value) for key, value in options.items()}).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return counts


def test_a_streaming_query_reads_in_bounded_batches_and_resumes(
    spark: SparkSession, url: str, numbers: Any, tmp_path: Path
) -> None:
    counts = run_stream(spark, url, tmp_path / "c", maxOffsetsPerTrigger=30)
    assert sum(counts) == 100
    assert max(counts) <= 30 or not BOUNDED
    numbers.publish(b"later")
    assert run_stream(spark, url, tmp_path / "c", maxOffsetsPerTrigger=30) == [1]


def test_a_stream_made_anew_is_not_read_by_the_offsets_of_the_old_one(
    spark: SparkSession, url: str, client: nexo.Client, numbers: Any, tmp_path: Path
) -> None:
    """SPEC I3: nothing is skipped; Spark's checkpoint knows only numbers."""
    assert sum(run_stream(spark, url, tmp_path / "c")) == 100
    numbers.delete()
    numbers.create(partitions=2).publish_many([{"n": n} for n in range(200)])
    with pytest.raises(Conflict, match="created again"), plain_errors():
        run_stream(spark, url, tmp_path / "c")
    assert sum(run_stream(spark, url, tmp_path / "new")) == 200


def test_where_a_streaming_query_ends_is_not_an_offset(
    spark: SparkSession, url: str, numbers: Any, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match="endingTimestamp"), plain_errors():
        run_stream(spark, url, tmp_path / "c", endingOffsets=5)


def test_rows_are_published_with_keys_headers_and_partitions(
    spark: SparkSession, url: str, client: nexo.Client
) -> None:
    out = client.stream("out").create(partitions=2)
    frame = spark.range(200).select(
        f.concat(f.lit("k"), "id").alias("key"),
        f.to_json(f.struct("id")).alias("value"),
        f.lit('{"h":1}').alias("headers"),
    )
    frame.write.format("nexo").option("url", url).option("stream", "out").mode("append").save()
    found = [record for p in (0, 1) for record in out.read(p)]
    assert sorted(json.loads(record.value)["id"] for record in found) == list(range(200))
    assert all(record.key == f"k{json.loads(record.value)['id']}" for record in found)
    assert all(record.headers == {"h": 1} for record in found)


def test_a_batch_that_is_written_again_loses_nothing(
    spark: SparkSession, url: str, client: nexo.Client, numbers: Any, tmp_path: Path
) -> None:
    out = client.stream("out").create()
    options = {"url": url, "stream": "numbers", "maxOffsetsPerTrigger": "40"}
    frame = spark.readStream.format("nexo").options(**options).load().select("key", "value")

    def run() -> None:
        query = (
            frame.writeStream.format("nexo")
            .option("url", url)
            .option("stream", "out")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert out.info().partitions[0].next_offset == 100
    for done in sorted((tmp_path / "c" / "commits").glob("*2*")):
        done.unlink()  # as if Spark had died after the write of the last batch
    run()
    found = list(out.read())
    assert {json.loads(record.value)["n"] for record in found} == set(range(100))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"headers": "no json"}, "headers are a JSON object"),
        ({"headers": "[1]"}, "headers are a JSON object"),
        ({"value_type": 7}, "value_type is 0"),
        ({"value_type": -1}, "value_type is 0"),
        ({"value_type": 2}, "says that a value is JSON"),
    ],
)
def test_records_that_no_consumer_could_read_are_not_published(
    spark: SparkSession, url: str, client: nexo.Client, columns: dict[str, Any], text: str
) -> None:
    """SPEC A: bad input is told, and nothing is stored that stops a consumer."""
    out = client.stream("out").create()
    frame = spark.range(1).select(
        f.lit("no json").alias("value"),
        *(f.lit(item).alias(name) for name, item in columns.items()),
    )
    with pytest.raises(InvalidInput, match=text), plain_errors():
        frame.write.format("nexo").options(url=url, stream="out").mode("append").save()
    assert out.info().partitions[0].next_offset == 0


@pytest.mark.parametrize(
    ("select", "text"),
    [(["id"], "need a column 'value'"), (["id", "value"], "'id' has no place")],
)
def test_rows_that_are_no_records_are_refused(
    spark: SparkSession, url: str, client: nexo.Client, select: list[str], text: str
) -> None:
    client.stream("out").create()
    frame = spark.range(1).withColumn("value", f.lit("v")).select(*select)
    with pytest.raises(NexoError, match=text), plain_errors():
        frame.write.format("nexo").options(url=url, stream="out").mode("append").save()
