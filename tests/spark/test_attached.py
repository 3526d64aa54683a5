"""Engines that attach the lake by its REST catalog's URL alone count the same (SPEC I12).

DuckDB reads through PyIceberg's scan: its own extension for Iceberg is a download.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("polars")
pytest.importorskip("duckdb")

import polars as pl
from pyiceberg.catalog.rest import RestCatalog

import nexo
from nexo import testing
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.lake.typed import columns as typed
from pyspark_nexo.lake_frames import lake_frame
from tests.integration.tiering import take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_four_engines_count_the_same_by_the_url_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own is another package
    with testing.process(tmp_path / "nexo") as server:
        lake = Lake(LakeSettings(tmp_path / "nexo" / "lake"))
        with nexo.connect(server.url) as client:
            orders = client.stream("orders").create(partitions=2, tiering=True)
            orders.publish_many([{"n": n} for n in range(500)])
            take(server.url, lake, "orders")
            typed.set_schema(lake.get("orders"), {"n": "long"})
            orders.publish_many([{"n": n} for n in range(500, 700)])
            take(server.url, lake, "orders")
        catalog = RestCatalog("nexo", uri=f"{server.http_url}/iceberg")
        table = catalog.load_table("nexo.orders")
        expected = (700, 200, sum(range(500, 700)))
        arrow = table.scan().to_arrow()
        numbers = [n for n in arrow.column("n").to_pylist() if n is not None]
        assert (arrow.num_rows, len(numbers), sum(numbers)) == expected
        lazy = pl.scan_iceberg(table)
        assert lazy.select(pl.len(), pl.col("n").count().alias("c"), pl.col("n").sum()).collect(
        ).row(0) == expected  # fmt: skip
        query = "select count(*), count(n), sum(n) from orders"
        assert table.scan().to_duckdb("orders").execute(query).fetchone() == expected
        lake_frame(spark, table).createOrReplaceTempView("orders")
        assert tuple(spark.sql(query).collect()[0]) == expected
