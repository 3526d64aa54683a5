"""The pipeline and Spark SQL with a lake on S3's API, without Hadoop's access to it (SPEC I10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nexo
from nexo.contracts import StreamContract
from nexo.lake.catalog import Lake
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.typed.columns import set_schema
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.views import register_views
from tests.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake whose catalog is a SQLite file and whose files are in a bucket."""
    s3 = S3Server()
    s3.configure_lake(monkeypatch, "store", tmp_path / "catalog.db")
    yield Lake(LakeSettings(tmp_path / "lake", "store"))
    s3.close()


def test_spark_takes_streams_into_a_bucket_and_asks_them(
    spark: SparkSession, pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str
) -> None:
    log = client.stream("log").create(partitions=2, tiering=True)
    set_schema(StreamContract(lake, url, "log").table(), {"n": "long"})
    log.publish_many([{"n": n} for n in range(100)])
    assert pipeline.run_once() == 100
    assert all(each.path.startswith("s3://") for each in file_ranges(lake.get("log")))
    log.publish({"n": 100})  # in the log alone
    register_views(spark, lake, url)
    query = "select count(*) as records, sum(n) as total, count(distinct partition) as p from log"
    assert tuple(spark.sql(query).collect()[0]) == (101, sum(range(101)), 2)
