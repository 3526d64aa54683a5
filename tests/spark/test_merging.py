"""Files of the lake are merged by Spark's tasks, beside a query that reads a table as a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, target
from nexo.lake.maintenance.planning import Care
from nexo.lake.once import commit_anyway
from nexo.lake.progress import TableDebt
from nexo.lake.snapshot import TableChange
from nexo.lake.user_tables import ensure_user_table
from pyspark_nexo.merging import Merging
from pyspark_nexo.tables.catalog import SparkCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = pa.schema([("n", pa.int64())])


def grown(lake: Lake, name: str, *numbers: int) -> Any:
    """A table with a file for each number."""
    table = ensure_user_table(lake, name, COLUMNS)
    for n in numbers:
        files = FileWriter(target(table), "w-1").save([pa.table({"n": [n]}, schema=COLUMNS)])
        table = commit_anyway(table, TableChange(added=files))
    return table


def purposes(spark: SparkSession) -> set[str]:
    """What Spark's UI says of its jobs."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    said = [jobs.apply(number).description() for number in range(jobs.size())]
    return {str(each.get()) for each in said if each.isDefined()}


def test_spark_merges_while_a_query_reads_the_table_as_a_stream(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    grown(lake, "t", *range(6))
    ensure_user_table(lake, "copy", COLUMNS)
    catalog = SparkCatalog(spark, lake, url)
    catalog.open()
    for name in ("t", "copy"):
        catalog.add(name)

    def copied() -> list[int]:
        rows = spark.readStream.table("nexo.t").writeStream.trigger(availableNow=True)
        rows.option("checkpointLocation", str(tmp_path / "at")).toTable(
            "nexo.copy"
        ).awaitTermination()
        return sorted(row.n for row in spark.table("nexo.copy").collect())

    assert copied() == list(range(6))
    grown(lake, "t", 6, 7)
    owed = list[TableDebt]()
    merging = Merging(spark, lake, print, owed.append, Care(min_files=3))
    assert merging.round() == 8
    assert "Nexo: merging nexo.t" in purposes(spark)
    assert [(each.table, each.small_files) for each in owed if each.table == "nexo.t"] == [
        ("nexo.t", 0)
    ]
    assert copied() == list(range(8))
    grown(lake, "t", 8)
    assert copied() == list(range(9))
    spark.catalog.setCurrentDatabase("default")  # what other tests expect
    spark.sql("drop database nexo cascade")


def test_a_table_that_cannot_be_merged_stops_no_other(spark: SparkSession, lake: Lake) -> None:
    broken = grown(lake, "broken", *range(4))
    (first, *_) = broken.scan().plan_files()
    Path(first.file.file_path.removeprefix("file://")).unlink()
    table = grown(lake, "well", *range(4))
    notes, owed = list[str](), list[TableDebt]()
    merging = Merging(spark, lake, notes.append, owed.append, Care(min_files=2))
    assert merging.round() == 4
    assert any("nexo.broken cannot be merged" in each for each in notes)
    assert {each.table: each.small_files for each in owed} == {"nexo.broken": 4, "nexo.well": 0}
    assert len(list(table.refresh().scan().plan_files())) == 1
