"""Users' pipelines: standard declarative code, in Python and SQL, into tables of the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nexo
from nexo.contracts import StreamContract
from nexo.lake.catalog import Lake
from nexo.lake.typed.columns import set_schema
from nexo.lake.user_tables import get_user_table
from pyspark_nexo.code.graph import FlowGraph
from pyspark_nexo.code.loading import code_folder, load
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.tables.catalog import SparkCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILVER = """
CREATE STREAMING TABLE clean_orders PARTITIONED BY (day) COMMENT 'orders that can be charged' AS
  SELECT id, amount, region, date(timestamp) AS day FROM STREAM orders WHERE amount > 0;
CREATE MATERIALIZED VIEW revenue AS
  SELECT day, region, sum(amount) AS euros FROM clean_orders GROUP BY ALL;
"""
GOLD = """
from pyspark import pipelines as dp
from nexo import pipelines as nx

@dp.table(partition_cols=["day"], table_properties={"nexo.sort": "id"})
@nx.expect_or_drop("charged", "amount < 900")
@nx.expect("even", "id % 2 = 0")
def big_orders():
    return spark.readStream.table("clean_orders").where("amount > 100")

dp.create_streaming_table("everything")

@dp.append_flow(target="everything")
def first():
    return spark.readStream.table("nexo.orders").select("id", "region")

@dp.append_flow(target="everything")
def second():
    return spark.readStream.table("orders").selectExpr("id", "upper(region) as region")

dp.create_sink("alerts", "nexo", {"stream": "alerts", "url": URL})

@dp.append_flow(target="alerts")
def to_alerts():
    return spark.readStream.table("big_orders").selectExpr("cast(id as string) key", "region value")
"""

Code = Callable[..., FlowsRunner]


@pytest.fixture
def catalog(spark: SparkSession, lake: Lake, url: str) -> Iterator[SparkCatalog]:
    found = SparkCatalog(spark, lake, url)
    found.open()
    yield found
    spark.sql("use default")


@pytest.fixture
def code(catalog: SparkCatalog, tmp_path: Path, url: str) -> Code:
    """Runs the files of a folder, as a new session would."""
    folder = tmp_path / "code"

    def made(files: dict[str, str] | None = None, **settings: Any) -> FlowsRunner:
        folder.mkdir(exist_ok=True)
        for name, text in (files or {}).items():
            (folder / name).write_text(text.replace("URL", repr(url)))
        catalog.open()
        make = settings.pop("make", True)
        found = load(catalog.spark, code_folder(folder))
        graph = FlowGraph(found, catalog, folder.resolve(), make)
        graph.build()
        return FlowsRunner(graph, print, **settings)

    return made


def orders(client: nexo.Client, first: int, count: int) -> list[dict[str, Any]]:
    found = [
        {"id": n, "amount": (n * 37) % 1_000 - 50, "region": "eu" if n % 3 else "us"}
        for n in range(first, first + count)
    ]
    client.stream("orders").publish_many(found)
    return found


def rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    found = get_user_table(lake, table).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: str(sorted(row.items(), key=str)))


def test_a_folder_of_sql_and_python_fills_its_tables(
    client: nexo.Client, lake: Lake, code: Code, url: str
) -> None:
    client.stream("orders").create(partitions=2, tiering=True)
    client.stream("alerts").create()
    columns = {"id": "long", "amount": "long", "region": "string"}
    set_schema(StreamContract(lake, url, "orders").table(), columns)
    sent = orders(client, 0, 300)

    def check() -> None:
        clean = [each for each in sent if each["amount"] > 0]
        assert [row["id"] for row in sorted(rows(lake, "clean_orders"), key=lambda r: r["id"])] == [
            each["id"] for each in clean
        ]
        big = [each["id"] for each in clean if 100 < each["amount"] < 900]
        assert sorted(row["id"] for row in rows(lake, "big_orders")) == big
        gone = [each["id"] for each in clean if each["amount"] >= 900]
        assert len(rows(lake, "big_orders_dead_letters")) == len(gone)
        assert len(rows(lake, "everything")) == 2 * len(sent)
        euros = {
            region: sum(each["amount"] for each in clean if each["region"] == region)
            for region in ("eu", "us")
        }
        assert {row["region"]: row["euros"] for row in rows(lake, "revenue")} == euros
        assert client.stream("alerts").info().partitions[0].next_offset == len(big)

    runner = code({"silver.sql": SILVER, "gold.py": GOLD})
    runner.once()
    check()
    assert get_user_table(lake, "clean_orders").properties["comment"].startswith("orders that")
    seen = {each.flow: each for each in runner.tracker.pipeline.flows}
    assert seen["big_orders"].reads == ["clean_orders"]
    assert seen["big_orders"].broken["even"] > 0
    sent += orders(client, 300, 100)
    again = code()
    again.once()
    check()
    assert {each.flow: each.rows for each in again.tracker.pipeline.flows}["first"] == 100
    before = get_user_table(lake, "revenue").metadata.current_snapshot_id
    assert code(only=["revenue"]).once() == 0  # nothing that it reads has changed
    assert get_user_table(lake, "revenue").metadata.current_snapshot_id == before
