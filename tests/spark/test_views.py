"""SQL sees every record once, wherever it is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nexo
from nexo.contracts import StreamContract
from nexo.errors import InvalidInput
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.lake.typed.columns import rename, set_schema
from pyspark_nexo.lake_frames import lake_frame
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.status import status
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


def test_a_stream_made_anew_is_not_mixed_with_the_old_one(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:  # SPEC I5
    log = client.stream("log").create(partitions=2, tiering=True)
    log.publish_many([b"old"] * 10)
    pipeline.run_once()
    log.delete()
    log.create(tiering=True)
    log.publish_many([b"new"] * 3)
    for _ in range(2):  # before the pipeline has noticed, and after
        register_views(spark, lake, url)
        rows = spark.sql("select cast(value as string), count(*) from log group by 1").collect()
        assert [tuple(row) for row in rows] == [("new", 3)]
        (told,) = status(lake, url)
        assert (told["hot_end"], told["partition"]) == (3, 0)
        pipeline.run_once()


def test_typed_columns_are_there_for_what_is_not_in_the_lake_yet(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:  # SPEC I5
    orders = client.stream("orders").create(tiering=True)
    wanted = {"amount": "int", "a.t": "timestamp"}
    rename(set_schema(StreamContract(lake, url, "orders").table(), wanted), "amount", "euros")
    orders.publish_many([{"amount": 1, "a.t": "2026-01-01T00:00:00+01:00"}] * 2)
    pipeline.run_once()
    orders.publish_many([{"amount": 20, "a.t": "2026-01-01T00:00:00+01:00"}] * 3)
    orders.publish({"amount": "many"})
    register_views(spark, lake, url)
    query = "select sum(euros), count(distinct `a.t`), count(rejected), count(*) from orders"
    assert tuple(spark.sql(query).collect()[0]) == (62, 1, 1, 6)


def test_what_sql_calls_a_stream_belongs_to_no_other(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:
    """SPEC I5: streams may have any name, also those of views and derived tables."""
    for name in ("users", "users_latest", "users_dead_letters", "stream_messages"):
        client.stream(name).create(tiering=True).publish(name)
    pipeline.run_once()
    made = register_views(spark, lake, url)
    assert len(set(made)) == len(made) == 3 + 4
    assert one(spark, "select count(*) from stream_messages") == 4
    assert one(spark, "select cast(value as string) from users_latest") == "users_latest"
    assert [row["dead_letters"] for row in status(lake, url)] == [0] * 4


def test_as_of_shows_the_newest_records_and_dead_letters_of_then(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str, pipeline: Pipeline
) -> None:  # SPEC I5
    users = client.stream("users").create(tiering=True, cleanup="compact")
    set_schema(StreamContract(lake, url, "users").table(), {"n": "int"})
    for key, value in (("a", 1), ("b", 2), (None, 3), ("c", "three")):
        users.publish({"n": value}, key=key)
    users.tombstone("b")
    then_ms = users.read()[-1].timestamp_ms
    while (
        users.publish({"n": "no"}, key="a").offset < 6 or users.read()[-1].timestamp_ms == then_ms
    ):
        pass  # until the clock has moved on
    pipeline.run_once()
    pipeline.compact(["users"])
    expected = [record for record in users.read() if record.timestamp_ms <= then_ms]
    moment = datetime.fromtimestamp(then_ms / 1000, UTC)
    register_views(spark, lake, url, as_of=moment)
    newest = {record.key: record.offset for record in expected if record.key and record.value}
    newest = {key: offset for key, offset in newest.items() if key != "b"}
    offsets = sorted([*newest.values(), 2])
    rows = spark.sql("select offset from users_latest order by offset").collect()
    assert [row.offset for row in rows] == offsets
    refused = sum(
        record.value is not None and record.value["n"] in ("three", "no") for record in expected
    )
    assert one(spark, "select count(*) from users_dead_letters") == refused
    with pytest.raises(InvalidInput, match="time zone"):
        register_views(spark, lake, url, as_of=moment.replace(tzinfo=None))


def test_keys_that_are_no_text_stay_apart(
    spark: SparkSession, client: nexo.Client, lake: Lake, url: str
) -> None:
    client.stream("log").create()
    frame = spark.sql("select 'v' as value, unhex(x) as key from values ('FF'), ('FE') as t(x)")
    frame.write.format("nexo").options(url=url, stream="log").mode("append").save()
    register_views(spark, lake, url)
    assert one(spark, "select count(distinct key) from stream_messages") == 2


def test_a_folder_may_have_a_name_that_looks_like_a_pattern(
    spark: SparkSession, client: nexo.Client, url: str, tmp_path: Path
) -> None:
    client.stream("log").create(tiering=True).publish_many([b"x"] * 4)
    for name in ("lake [1]{a}", "lake ab", "lake *"):  # the last also matches the others
        lake = Lake(LakeSettings(tmp_path / name))
        Pipeline(spark, lake, url).run_once()
        register_views(spark, lake, url)
        assert one(spark, "select count(*) from log") == 4
