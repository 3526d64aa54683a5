"""The pipeline and Spark SQL with a lake on S3's API, without Hadoop's access to it (SPEC I10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from msgspec import structs

import nexo
from nexo.contracts import StreamContract
from nexo.errors import Conflict
from nexo.lake.catalog import Lake
from nexo.lake.folder.swapping import drop_expired
from nexo.lake.maintenance.sweep import stored_files
from nexo.lake.progress import now_ms
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.typed.columns import set_schema
from nexo.lake.user_tables import get_user_table
from nexo.lake.writing.staging import staging_of
from nexo.protocol.values import ValueType
from pyspark_nexo.code.child import CodePlan, graph_of
from pyspark_nexo.code.child import refresh as made_anew
from pyspark_nexo.code.refreshing import KEPT_MS
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.options import LEDGER, parse
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.publishing.staged import staged_batches
from pyspark_nexo.reading import files
from pyspark_nexo.reading.files import FileTask
from pyspark_nexo.sink import BatchSink
from pyspark_nexo.source import BatchReader
from pyspark_nexo.views import register_views
from tests.integration.tiering import take
from tests.s3_server import S3Server
from tests.spark.test_refreshing import append, refresh, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake whose catalog is a SQLite file and whose files are in a bucket."""
    s3 = S3Server()
    s3.configure_lake(monkeypatch, "store", tmp_path / "catalog.db")
    yield Lake(LakeSettings(tmp_path / "lake", "store"))
    s3.close()


def test_what_spark_writes_into_a_stream_is_staged_in_the_bucket(
    lake: Lake, client: nexo.Client, url: str
) -> None:
    log = client.stream("log").create(partitions=2)
    place = staging_of(lake.settings)
    assert place.location.startswith("s3://")
    sink = BatchSink("log", url, 2, ValueType.TEXT, place, LEDGER)
    rows = [f"r{n}" for n in range(50)]
    batch = pa.RecordBatch.from_pydict({"value": rows})
    lost = sink.write(iter([batch]))  # of an attempt that Spark does not count
    assert len(place.files()) == 1
    sink.commit([sink.write(iter([batch.slice(0, 20)])), sink.write(iter([batch.slice(20)]))])
    assert sorted(record.value for p in range(2) for record in log.read(p)) == sorted(rows)
    assert place.files() == []
    assert lost.file is not None
    with pytest.raises(Conflict, match="is not there"):
        list(staged_batches(place, lost.file.name, lost.file.bytes))
    sink.write(iter([batch]))
    assert place.sweep() == 0
    assert place.sweep(grace_s=-60) == 1


def test_history_is_read_from_the_bucket(
    lake: Lake, client: nexo.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEAST_ROWS", 1)
    monkeypatch.setattr(files, "lake_of", lambda *_: lake.settings)
    client.stream("log").create(tiering=True).publish_many([f"r{n}" for n in range(100)])
    take(url, lake, "log")
    reading = BatchReader(parse({"stream": "log", "url": url, "columns": "value"}))
    tasks = list(reading.partitions())
    assert all(isinstance(task, FileTask) for task in tasks)
    found = [row for task in tasks for batch in reading.read(task) for row in batch.to_pylist()]
    assert [row["value"] for row in found] == [b"r%d" % n for n in range(100)]


def test_a_table_that_was_made_anew_takes_its_place_in_the_bucket(lake: Lake) -> None:
    append(lake, "Gold.t", "old", 7)
    aside = refresh(lake, "new")
    assert aside is not None
    assert values(lake) == ["new", "new"]
    assert values(lake, aside) == ["old"]
    where = get_user_table(lake, aside)
    assert drop_expired(lake, now_ms() + KEPT_MS + 1) == [aside]
    assert list(stored_files(where)) == []
    assert values(lake) == ["new", "new"]


def test_users_tables_are_filled_and_made_anew_in_a_bucket(
    spark: SparkSession, lake: Lake, client: nexo.Client, url: str, tmp_path: Path
) -> None:  # SPEC P1, P7
    client.stream("bucket_orders").create(partitions=2).publish_many([{"n": n} for n in range(20)])
    (tmp_path / "code").mkdir()
    text = "CREATE STREAMING TABLE {} AS SELECT {} v FROM STREAM bucket_orders"
    (tmp_path / "code" / "t.sql").write_text(text.format("kept", "offset"))
    settings = lake.settings
    plan = CodePlan(str(tmp_path / "code"), str(settings.folder), settings.catalog, url=url)
    assert FlowsRunner(graph_of(spark, plan), print).once() == 20
    (tmp_path / "code" / "t.sql").write_text(text.format("kept", "offset * 2"))
    assert made_anew(spark, structs.replace(plan, full=("kept",)), lambda _: None) == 20
    client.stream("bucket_orders").publish({"n": 20})
    assert FlowsRunner(graph_of(spark, plan), print).once() == 1
    found = get_user_table(lake, "kept").scan().to_arrow().column("v").to_pylist()
    assert sorted(found)[:4] == [0, 0, 2, 2]
    assert len(found) == 21
    assert get_user_table(lake, "kept").location().startswith("s3://")
    spark.sql("use default")


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
