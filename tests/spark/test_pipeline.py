"""Streams reach the lake once, whole, and readable by any tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

import nexo
from nexo import testing
from nexo.errors import Conflict, ConnectionLost, Corrupt, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.commit import LostRace
from nexo.lake.once import WrittenRange, commit
from nexo.lake.paths import local_path
from nexo.lake.plan import BatchLimits
from nexo.lake.tables import NEWEST, offsets_of
from pyspark_nexo.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def places(lake: Lake, stream: str) -> list[tuple[int, int]]:
    rows = lake.get(stream).scan(selected_fields=("partition", "offset")).to_arrow()
    return sorted(zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True))


def published(client: nexo.Client, stream: str) -> list[tuple[int, int]]:
    parts = client.stream(stream).info().partitions
    return [(p, o) for p, part in enumerate(parts) for o in range(part.next_offset)]


def test_every_record_is_in_the_table_once_with_its_offsets(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:  # SPEC I2, I4
    orders = client.stream("orders").create(partitions=2, tiering=True)
    orders.publish_many(
        [{"n": n} for n in range(500)],
        keys=[f"k{n % 7}" for n in range(500)],
        headers=[{"h": n} for n in range(500)],
    )
    assert pipeline.run_once() == 500
    orders.publish(b"\x00raw")
    orders.tombstone("k1")
    assert pipeline.run_once() == 2
    assert pipeline.run_once() == 0

    table = lake.get("orders")
    assert places(lake, "orders") == published(client, "orders")
    ends = [part.next_offset for part in orders.info().partitions]
    assert [offsets_of(table.properties)[p] for p in (0, 1)] == ends
    assert [part.tiered_offset for part in orders.info().partitions] == ends
    assert len(table.metadata.snapshots) == 2


def test_a_table_that_is_rolled_back_is_filled_again_though_nothing_new_comes(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:  # SPEC I4
    orders = client.stream("orders").create(tiering=True)
    for text in ("first", "second"):
        orders.publish(text)
        assert pipeline.run_once() == 1
    table = lake.get("orders")
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert places(lake, "orders") == [(0, 0)]
    assert pipeline.run_once() == 1
    assert places(lake, "orders") == published(client, "orders")
    assert pipeline.run_once() == 0


def test_values_keys_headers_and_times_arrive_unchanged(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:
    mixed = client.stream("mixed").create(tiering=True)
    mixed.publish({"a": [1, None]}, key="k", headers={"x": "ü"})
    mixed.publish(b"\x00\xff")
    mixed.publish("")
    mixed.tombstone("k")
    pipeline.run_once()
    rows = lake.get("mixed").scan().to_arrow().sort_by("offset").to_pylist()
    records = mixed.read()
    assert [row["value"] for row in rows] == [b'{"a":[1,null]}', b"\x00\xff", b"", None]
    assert [row["key"] for row in rows] == [b"k", None, None, b"k"]
    assert [row["headers"] for row in rows] == ['{"x":"ü"}', None, None, None]
    assert [row["value_type"] for row in rows] == [2, 0, 1, 0]
    assert [row["timestamp"] for row in rows] == [record.timestamp for record in records]


def test_other_tools_count_the_same(
    client: nexo.Client, pipeline: Pipeline, lake: Lake, spark: SparkSession
) -> None:
    client.stream("a/b:c").create(tiering=True).publish_many([b"x"] * 3_000)
    pipeline.limits = BatchLimits(task_rows=1_000)
    pipeline.run_once()
    table = lake.get("a/b:c")
    folder = local_path(table.location())
    assert table.scan().to_arrow().num_rows == 3_000
    assert ds.dataset(f"{folder}/data", format="parquet").count_rows() == 3_000
    assert spark.read.parquet(f"{folder}/data").count() == 3_000
    assert len(list(table.scan().plan_files())) == 3


def test_small_ranges_take_no_spark_job_and_streams_without_records_no_table(
    client: nexo.Client, pipeline: Pipeline, lake: Lake, spark: SparkSession
) -> None:  # SPEC I8
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    names = [f"s{number}" for number in range(6)]
    for name in names:
        client.stream(name).create(tiering=True)
    client.stream("s0").publish("first")
    before = len(jobs())
    assert pipeline.run_once() == 1
    assert [lake.find(name) is not None for name in names] == [True, *[False] * 5]
    for name in names:
        client.stream(name).publish_many([name] * 3)
    assert pipeline.run_once() == 18
    assert len(jobs()) == before
    client.stream("s3").publish_many([b"x" * 10_000] * 300)
    client.stream("s4").publish("beside it")
    assert pipeline.run_once() == 301
    assert len(jobs()) == before + 1
    assert all(places(lake, name) == published(client, name) for name in names)


def test_a_large_backlog_is_taken_in_several_commits(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:
    client.stream("log").create(tiering=True).publish_many([b"x"] * 2_500)
    pipeline.limits = BatchLimits(batch_rows=1_000)
    assert pipeline.run_once() == 2_500
    assert len(lake.get("log").metadata.snapshots) == 3


def test_streams_without_tiering_stay_out_unless_named(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:
    client.stream("plain").create().publish(b"x")
    assert pipeline.run_once() == 0
    pipeline.streams = ["plain"]
    assert pipeline.run_once() == 1


def test_a_batch_planned_twice_is_committed_once(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:  # SPEC I4
    client.stream("log").create(tiering=True).publish_many([b"x"] * 10)
    pipeline.run_once()
    stale = WrittenRange(0, None, 10, [])
    with pytest.raises(LostRace):
        commit(lake.get("log"), [stale])
    assert places(lake, "log") == published(client, "log")


def test_a_stream_made_anew_gets_a_new_table_and_the_old_one_is_kept(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:
    log = client.stream("log").create(tiering=True)
    log.publish_many([b"old"] * 5)
    pipeline.run_once()
    log.delete()
    log.create(tiering=True)
    log.publish_many([b"new"] * 3)
    pipeline.run_once()
    assert lake.get("log").scan().to_arrow().column("value").to_pylist() == [b"new"] * 3
    assert sum(table.scan().to_arrow().num_rows for table in lake.tables()) == 8


def test_a_lake_ahead_of_its_broker_is_refused(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:
    client.stream("log").create(tiering=True).publish(b"x")
    pipeline.run_once()
    commit(lake.get("log"), [WrittenRange(0, 1, 5, [])])
    with pytest.raises(Conflict, match="lost records"):
        Pipeline(pipeline.spark, lake, pipeline.url).run_once()


def test_a_stream_that_cannot_be_taken_stops_only_itself(
    pipeline: Pipeline, lake: Lake, nexo_server: testing.Server
) -> None:
    pipeline.url = nexo_server.url
    with nexo.connect(nexo_server.url) as client:
        for name in ("ahead", "damaged", "fine"):
            client.stream(name).create(tiering=True).publish(b"x")
        pipeline.run_once()
        commit(lake.get("ahead"), [WrittenRange(0, 1, 5, [])])
        for name in ("damaged", "fine"):
            client.stream(name).publish_many([b"to be damaged" if name == "damaged" else b"y"] * 9)
            client.stream(name).publish(b"the end")
    nexo_server.stop()
    flip(nexo_server.data_dir, b"to be damaged")
    nexo_server.start()
    pipeline = Pipeline(pipeline.spark, lake, nexo_server.url)
    done = pipeline.run_batch(["ahead", "damaged", "fine"])
    assert [(progress.stream, progress.rows) for progress in done] == [("fine", 10)]
    assert {name: type(error) for name, error in pipeline.refused.items()} == {
        "ahead": Conflict, "damaged": Corrupt,
    }  # fmt: skip
    assert "lost records" in pipeline.tracker.of("ahead").error
    assert pipeline.tracker.of("damaged").error
    assert pipeline.tracker.of("fine").error == ""
    with pytest.raises(Conflict, match="lost records"):
        pipeline.run_once()


def flip(folder: Path, text: bytes) -> None:
    """Change two bytes, more than is put right, of the first file that holds ``text``."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (at := path.read_bytes().find(text)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"T" + text[1:-1] + b"D")
            return
    raise AssertionError("it is in no file")


def test_unknown_streams_and_brokers_that_do_not_answer_are_told_plainly(
    pipeline: Pipeline,
) -> None:
    pipeline.streams = ["nowhere"]
    with pytest.raises(NotFound, match="nowhere"):
        pipeline.run_once()
    pipeline.url = "nexo://127.0.0.1:1?while_down=fail&connect_timeout=1"
    with pytest.raises(ConnectionLost):
        pipeline.run_once()


def test_new_fields_become_columns_in_the_record_that_brings_them(
    client: nexo.Client, pipeline: Pipeline, lake: Lake
) -> None:
    """SPEC I11: automatic additions, with types that fit all partitions of a micro-batch."""
    orders = client.stream("orders").create(partitions=2, tiering=True)
    plain = client.stream("plain").create(tiering=True)
    client.contract("orders", lake=str(lake.settings.folder)).additions()
    orders.publish_many(
        [{"id": n, "amount": n if n < 3 else n / 2} for n in range(6)], keys=list("abcdef")
    )
    plain.publish({"id": 1})
    assert pipeline.run_once() == 7
    orders.publish({"id": 6, "to": {"zip": 1, "tags": ["x"]}}, key="a")
    orders.publish_many([b"no JSON", {"id": "x", "other": 1}])
    assert pipeline.run_once() == 3
    found = lake.get("orders").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["amount"]) for row in found if row["id"] in range(6)) == [
        (n, n if n < 3 else n / 2) for n in range(6)
    ]
    assert [row["to"] for row in found if row["id"] == 6] == [{"zip": 1, "tags": ["x"]}]
    assert sum(row["rejected"] is not None for row in found) == 2
    assert "other" not in lake.get("orders").schema().column_names
    assert "id" not in lake.get("plain").schema().column_names
    files = {
        Path(local_path(file.file.file_path) or "")
        for file in lake.get("orders").scan().plan_files()
    }
    assert set((lake.settings.folder / "warehouse").rglob("orders/data/**/*.parquet")) == files


def test_partitions_that_are_added_are_taken_and_each_key_is_newest_once(
    spark: SparkSession, client: nexo.Client, pipeline: Pipeline, lake: Lake, url: str
) -> None:  # SPEC E1, I4
    keys = [f"k{n}" for n in range(40)]
    log = client.stream("log").create(partitions=2, tiering=True, cleanup="compact")
    log.publish_many([f"old {key}" for key in keys], keys=keys)
    assert pipeline.run_once() == 40
    query = spark.readStream.format("nexo").options(url=url, stream="log").load()
    there = str(lake.settings.folder.parent / "query")
    written = query.writeStream.format("memory").queryName("grown").trigger(availableNow=True)
    written.option("checkpointLocation", there).start().awaitTermination()
    log.update(partitions=5)
    log.publish_many([f"new {key}" for key in keys[:20]], keys=keys[:20])
    log.tombstone(keys[30])
    assert pipeline.run_once() == 21
    assert places(lake, "log") == published(client, "log")
    assert len(offsets_of(lake.get("log").properties)) == 5
    pipeline.compact(["log"])
    rows = lake.get("log", NEWEST).scan().to_arrow().to_pylist()
    newest = {row["key"].decode(): row["value"].decode() for row in rows}
    new, old = keys[:20], [key for key in keys[20:] if key != keys[30]]
    assert newest == {key: f"new {key}" for key in new} | {key: f"old {key}" for key in old}
    assert len(rows) == len(newest)
    again = query.writeStream.format("noop").trigger(availableNow=True)
    run = again.option("checkpointLocation", there).start()
    run.awaitTermination()
    assert sum(progress["numInputRows"] for progress in run.recentProgress) == 21
    ends = json.loads(run.recentProgress[-1]["sources"][0]["endOffset"])
    assert sum(end for key, end in ends.items() if key != "created_ms") == 61
