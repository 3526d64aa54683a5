"""SQL sees every record once, wherever it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import nexo
from nexo.lake.catalog import Lake
from pyspark_nexo.lake_frames import lake_frame
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.views import register_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def one(spark: SparkSession, query: str) -> object:
    return spark.sql(query).collect()[0][0]


def test_records_are_counted_once_in_the_lake_in_both_tiers_and_in_the_log(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:  # SPEC I5
    orders = client.stream("orders").create(partitions=2, tiering=True)
    orders.publish_many([{"id": n, "amount": 2 * n} for n in range(50)])
    register_views(spark, lake, url)
    assert one(spark, "select count(*) from orders") == 50
    pipeline.run_once()
    orders.publish_many([{"id": n, "amount": 2 * n} for n in range(50, 60)])
    client.stream("fresh").create().publish("hello", key="k")
    register_views(spark, lake, url)
    orders.publish({"id": 60, "amount": 120})  # seen too: the log is read when the query runs
    total = "select sum(cast(get_json_object(value, '$.amount') as int)) from stream_messages"
    assert one(spark, f"{total} where topic = 'orders'") == sum(2 * n for n in range(61))
    assert one(spark, "select count(distinct topic, partition, offset) from stream_messages") == 62
    assert one(spark, "select value from stream_messages where topic = 'fresh'") == "hello"


def test_streams_join(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:
    client.stream("orders").create(tiering=True).publish_many(
        [b"x"] * 10, keys=[f"k{n}" for n in range(10)]
    )
    pipeline.run_once()
    client.stream("payments").create().publish_many([b"y"] * 5, keys=[f"k{n}" for n in range(5)])
    register_views(spark, lake, url)
    assert one(spark, "select count(*) from orders o join payments p on o.key = p.key") == 5


def test_time_travel_by_moment_and_by_snapshot(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:
    log = client.stream("log").create(tiering=True)
    log.publish_many([b"x"] * 5)
    pipeline.run_once()
    first = lake.get("log").current_snapshot()
    last_ms = max(record.timestamp_ms for record in log.read())
    while log.publish(b"later").offset < 7 or log.read(0, 7)[0].timestamp_ms == last_ms:
        pass  # until the clock has moved on
    pipeline.run_once()
    assert first is not None
    assert lake_frame(spark, lake.get("log"), first.snapshot_id).count() == 5
    moment = datetime.fromtimestamp(last_ms / 1000, UTC)
    register_views(spark, lake, url, as_of=moment)
    expected = sum(record.timestamp_ms <= last_ms for record in log.read())
    assert one(spark, "select count(*) from log") == expected


def test_groups_and_their_offsets_are_rows(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str
) -> None:
    log = client.stream("log").create()
    log.publish_many([b"x"] * 5)
    with log.consume("readers", wait=0.1) as consumer:
        for record in consumer:
            record.ack()
            if record.offset == 2:
                break
    register_views(spark, lake, url)
    rows = spark.sql("select group_id, topic, partition, offset from stream_offsets").collect()
    assert [tuple(row) for row in rows] == [("readers", "log", 0, 2)]
    assert one(spark, "select kind from stream_groups where group_id = 'readers'") == "shared"


def test_a_server_without_streams_has_empty_views(
    spark: SparkSession, lake: Lake, url: str
) -> None:
    assert register_views(spark, lake, url)
    assert one(spark, "select count(*) from stream_messages") == 0
