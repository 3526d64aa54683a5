"""Consumers read across the tiers without seeing a border (SPEC I3)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nexo
from nexo import testing
from nexo.config.keywords import ServerSettings
from nexo.errors import OffsetOutOfRange
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.settings import LakeSettings
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.views import register_views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


SETTINGS: ServerSettings = {"segment_bytes": 4096, "hot_ms": 0, "hot_messages": 0}
"""Of a server whose log keeps nothing that the lake has."""


def cool(spark: SparkSession, url: str, lake: Lake) -> None:
    """Have 90 % of the 1,000 records of a stream ``log`` in the lake only."""
    with nexo.connect(url) as client:
        log = client.stream("log").create(tiering=True, retention={"max_bytes": 20_000})
        for n in range(100):
            log.publish_many([f"{10 * n + i:0100}" for i in range(10)])
        Pipeline(spark, lake, url).run_once()
        log.apply_retention()
        (part,) = log.info().partitions
        assert part.start_offset == 0
        assert part.hot_offset >= 800
        assert part.tiered_offset == 1_000


@pytest.fixture
def cooled(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[str, Lake]]:
    """A server with such a stream."""
    with testing.server(data_dir=tmp_path / "nexo", **SETTINGS) as url:
        lake = Lake(LakeSettings(tmp_path / "nexo" / "lake"))
        cool(spark, url, lake)
        yield url, lake


def read_all(url: str, offset: int = 0) -> list[int]:
    found: list[int] = []
    with nexo.connect(url) as client:
        log = client.stream("log")
        while records := log.read(0, offset):
            found += [record.offset for record in records]
            assert all(int(record.value) == record.offset for record in records)
            offset = found[-1] + 1
    return found


def test_a_reader_at_offset_0_gets_every_record_once_and_in_order(
    cooled: tuple[str, Lake],
) -> None:
    url, lake = cooled
    assert read_all(url) == list(range(1_000))
    assert read_all(url, 555) == list(range(555, 1_000))
    maintain(lake.get("log"), Care(min_files=2, max_snapshots=1, grace_s=0))
    assert read_all(url) == list(range(1_000))


def test_a_topic_consumer_goes_through_all_tiers(cooled: tuple[str, Lake]) -> None:
    topics = pytest.importorskip("nexo.topics", exc_type=ImportError)
    url, _ = cooled
    with topics.Consumer("log", group_id="replay", server=url) as consumer:
        consumer.seek_to_beginning()
        found: list[int] = []
        while len(found) < 1_000:
            found += [message.offset for message in consumer.poll_batch(timeout=5)]
    assert found == list(range(1_000))


def test_a_data_folder_moved_while_stopped_has_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new place"
    with testing.server(data_dir=old, **SETTINGS) as url:
        cool(spark, url, Lake(LakeSettings(old / "lake")))
    shutil.move(old, new)
    lake = Lake(LakeSettings(new / "lake"))
    with testing.server(data_dir=new, **SETTINGS) as url, nexo.connect(url) as client:
        assert read_all(url) == list(range(1_000))
        client.stream("log").publish(f"{1_000:0100}")
        assert Pipeline(spark, lake, url).run_once() == 1
        assert read_all(url) == list(range(1_001))
        register_views(spark, lake, url)
        assert spark.sql("select count(distinct offset) from log").collect()[0][0] == 1_001
    assert not old.exists()


def test_spark_reads_from_the_earliest_offset(
    cooled: tuple[str, Lake], spark: SparkSession
) -> None:
    url, _ = cooled
    frame = spark.read.format("nexo").options(url=url, stream="log").load()
    assert frame.selectExpr("count(distinct offset)").collect()[0][0] == 1_000


def test_without_a_lake_the_log_is_all_there_is(tmp_path: Path) -> None:
    with testing.server(segment_bytes=4096) as url, nexo.connect(url) as client:
        log = client.stream("log").create(retention={"max_bytes": 5_000})
        for _ in range(50):
            log.publish_many([b"x" * 100] * 10)
        log.apply_retention()
        assert log.info().partitions[0].start_offset > 0
        with pytest.raises(OffsetOutOfRange):
            log.read(0, 0)
