"""AUTO CDC in users' pipelines: changes in any order become rows by key (SPEC P4)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nexo
from nexo.contracts import StreamContract
from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.changes import merge as merging
from nexo.lake.changes.keyed import find_keyed
from nexo.lake.changes.waiting import merge_forgotten
from nexo.lake.typed.columns import set_schema
from nexo.lake.user_tables import get_user_table
from nexo.sql.engine import Engine
from pyspark_nexo.code.graph import FlowGraph
from pyspark_nexo.code.loading import code_folder, load
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.tables.catalog import SparkCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEWEST = """
CREATE STREAMING TABLE customers;
CREATE FLOW customers_cdc AS AUTO CDC INTO customers FROM STREAM changes
  KEYS (id) APPLY AS DELETE WHEN gone SEQUENCE BY at COLUMNS (id, name, city);
"""
VERSIONS = """
from pyspark import pipelines as dp
dp.create_streaming_table("versions")
dp.create_auto_cdc_flow(
    target="versions", source="changes", keys=["id"], sequence_by="struct(at, 1)",
    apply_as_deletes="gone", column_list=["id", "name", "city"], stored_as_scd_type=2,
    track_history_column_list=["city"],
)
"""
OPENED = """
CREATE STREAMING TABLE things;
CREATE FLOW things_cdc AS AUTO CDC INTO things FROM STREAM debezium.`shop.public.things`
  KEYS (id) APPLY AS DELETE WHEN _deleted SEQUENCE BY _seq
  COLUMNS * EXCEPT (_deleted, _op, _ts_ms, _seq);
"""

Code = Callable[..., FlowsRunner]


@pytest.fixture
def catalog(spark: SparkSession, lake: Lake, url: str) -> Iterator[SparkCatalog]:
    found = SparkCatalog(spark, lake, url)
    found.open()
    yield found
    spark.sql("use default")
    for database in ("nexo", "debezium"):
        spark.sql(f"drop database if exists {database} cascade")


@pytest.fixture
def code(catalog: SparkCatalog, tmp_path: Path) -> Code:
    """Runs the files of a folder, as a new session would."""
    folder = tmp_path / "code"

    def made(files: dict[str, str] | None = None) -> FlowsRunner:
        folder.mkdir(exist_ok=True)
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        catalog.open()
        graph = FlowGraph(load(catalog.spark, code_folder(folder)), catalog, folder.resolve())
        graph.build()
        return FlowsRunner(graph, print)

    return made


@pytest.fixture
def changes(client: nexo.Client, lake: Lake, url: str) -> Any:
    stream = client.stream("changes").create(partitions=2, tiering=True)
    columns = {"id": "long", "name": "string", "city": "string", "at": "long", "gone": "boolean"}
    set_schema(StreamContract(lake, url, "changes").table(), columns)
    return stream


def once(code: Code, files: dict[str, str] | None = None) -> int:
    """Run all flows; again if a worker of Spark's came too late, on a busy machine."""
    found = 0
    for attempt in range(6):
        runner = code(files)
        try:
            return found + runner.once()
        except NexoError as error:
            if attempt == 5 or "failed to connect back" not in error.message:
                raise
            found += sum(run.progress.rows for run in runner.runs)
    raise AssertionError("the last attempt returns or raises")


def change(key: int | None, at: int | None, city: str = "", gone: bool = False) -> dict[str, Any]:
    return {"id": key, "name": f"n{at}", "city": city, "at": at, "gone": gone}


def rows(lake: Lake, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = get_user_table(lake, table).scan().to_arrow().select(list(columns)).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def publish(stream: Any, values: list[dict[str, Any]]) -> None:
    stream.publish_many(values, keys=[str(each["id"]) for each in values])


def test_changes_become_the_newest_rows_and_all_versions(
    changes: Any, lake: Lake, code: Code
) -> None:
    publish(changes, [change(1, 5, "Lund"), change(2, 1, "Bonn"), change(1, 3, "Kiel")])
    assert once(code, {"newest.sql": NEWEST, "versions.py": VERSIONS}) == 6
    assert rows(lake, "customers", "id", "name", "city") == [(1, "n5", "Lund"), (2, "n1", "Bonn")]
    publish(changes, [change(1, 4, "Lund"), change(2, 2, gone=True), change(2, 1, "late")])
    publish(changes, [change(None, 9, "no key"), change(3, None, "no place"), change(3, 1, "Rom")])
    once(code)
    assert rows(lake, "customers", "id", "name", "city") == [(1, "n5", "Lund"), (3, "n1", "Rom")]
    spans = get_user_table(lake, "versions").scan().to_arrow().to_pylist()
    found = {
        (row["id"], row["city"], row["__START_AT"]["at"], (row["__END_AT"] or {}).get("at"))
        for row in spans
    }
    versions = {(1, "Kiel", 3, 4), (1, "Lund", 4, None), (2, "late", 1, 2), (3, "Rom", 1, None)}
    assert found == versions | {(3, "no place", None, 1)}  # a struct with a null has a place
    letters = rows(lake, "customers_dead_letters", "reason")
    assert letters == [("the key is null",), ("the sequence is null",)]
    assert once(code) == 0


@pytest.mark.parametrize("point", ["after the commit", "rows"])
def test_a_batch_that_is_cut_off_anywhere_counts_once(
    changes: Any, lake: Lake, code: Code, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(point)
    sent = [
        change(rng.randrange(20), at, rng.choice("ab"), rng.random() < 0.2) for at in range(200)
    ]
    rng.shuffle(sent)
    publish(changes, sent[:100])
    once(code, {"versions.py": VERSIONS})
    publish(changes, sent[100:])
    replace, left = merging._replace, 1 if point == "rows" else 99

    class Gone(Exception):
        pass

    def failing(table: Any, made: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Gone("as if killed")
        replace(table, made)

    def probe(name: str) -> None:
        if name == point:
            raise Gone("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(merging, "_replace", failing)
        runner = code()
        for run in runner.runs:
            run.probe = probe
        with pytest.raises(NexoError):
            runner.once()
    once(code)
    newest: dict[int, dict[str, Any]] = {}
    for each in sorted(sent, key=lambda one: one["at"]):
        newest[each["id"]] = each
    lives = [(n, each["name"], each["city"]) for n, each in newest.items() if not each["gone"]]
    open_ = [
        row for row in rows(lake, "versions", "id", "name", "city", "__END_AT") if row[3] is None
    ]
    assert sorted(row[:3] for row in open_) == sorted(lives)
    assert not rows(lake, "versions__changes", "id")


WAITING = """
CREATE STREAMING TABLE customers
TBLPROPERTIES ('nexo.buckets' = '2', 'nexo.upsert.every' = '{every}');
CREATE FLOW customers_cdc AS AUTO CDC INTO customers FROM STREAM changes
  KEYS (id) APPLY AS DELETE WHEN gone SEQUENCE BY at COLUMNS (id, name, city);
CREATE MATERIALIZED VIEW cities AS SELECT city, count(*) AS people FROM customers GROUP BY city;
"""


def turn_until(runner: FlowsRunner, done: Callable[[], bool]) -> None:
    """Run flows as they run until stopped."""
    for _ in range(2_000):
        runner.turn()
        if done():
            return
        time.sleep(0.05)
    raise AssertionError([run.progress for run in runner.runs])


@pytest.fixture
def waiting(changes: Any, lake: Lake, code: Code) -> Iterator[FlowsRunner]:
    """Flows that run, after two changes of a table of 100 rows."""
    publish(changes, [change(n, 1, "Lund") for n in range(100)])
    once(code, {"waiting.sql": WAITING.format(every="1h")})
    assert rows(lake, "cities", "city", "people") == [("Lund", 100)]
    runner = code()
    runner.trigger_s = 0.5
    publish(changes, [change(3, 2, gone=True), change(4, 3, "Bonn")])
    turn_until(runner, lambda: runner.runs[0].progress.waiting == 2)
    yield runner
    for run in runner.runs:
        run.stop()


def test_changes_that_wait_are_seen_inside_nexo_and_merged_at_the_end(
    waiting: FlowsRunner, lake: Lake, url: str, catalog: SparkCatalog, code: Code
) -> None:
    now = [("Bonn", 1), ("Lund", 98)]
    question = "select city, count(*) as people from customers group by city order by city"
    assert Engine(lake, url).query(question).rows() == now
    assert Engine(lake, url, confined=True).query(question).rows() == now
    found = catalog.resolved(lambda: catalog.spark.sql(question)).collect()
    assert [tuple(row) for row in found] == now
    turn_until(waiting, lambda: rows(lake, "cities", "city", "people") == now)
    assert len(rows(lake, "customers", "id")) == 100
    seen = waiting.runs[0].progress
    assert (seen.waiting, seen.records) == (2, 100)
    assert time.time() * 1000 - 300_000 < (seen.waiting_since_ms or 0) <= time.time() * 1000
    waiting.stop()
    assert (seen.waiting, seen.waiting_since_ms) == (0, None)
    assert len(rows(lake, "customers", "id")) == 99
    assert not rows(lake, "customers__changes", "id")
    with pytest.raises(Exception, match="replaced by key"):
        catalog.resolved(lambda: catalog.spark.readStream.table("customers")).writeStream.format(
            "noop"
        ).start().awaitTermination()


def test_changes_that_wait_outlive_their_pipeline(
    waiting: FlowsRunner, lake: Lake, code: Code
) -> None:
    for run in waiting.runs:
        run.stop()  # as if killed: nothing is merged
    assert len(rows(lake, "customers__changes", "id")) == 2
    once(code)
    assert len(rows(lake, "customers", "id")) == 99
    assert not rows(lake, "customers__changes", "id")


def test_changes_are_merged_when_they_are_old(
    waiting: FlowsRunner, lake: Lake, changes: Any, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    (merger,) = [run.merger for run in waiting.runs if run.merger is not None]
    replace, left = merging._replace, [1]

    def failing(table: Any, made: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise NexoError("the disk is full")
        replace(table, made)

    monkeypatch.setattr(merging, "_replace", failing)
    merger.every_ms = 1
    turn_until(waiting, lambda: "disk is full" in waiting.runs[0].progress.error)
    assert waiting.runs[0].query is None
    turn_until(waiting, lambda: len(rows(lake, "customers", "id")) == 99)
    assert not rows(lake, "customers__changes", "id")


def test_what_a_pipeline_left_waiting_is_merged_by_maintenance(
    waiting: FlowsRunner, lake: Lake
) -> None:
    for run in waiting.runs:
        run.stop()
    keyed = find_keyed(lake, "customers")
    assert keyed is not None
    at_ms = waiting.runs[0].progress.waiting_since_ms or 0
    assert not merge_forgotten(keyed, at_ms + 35_999_999).changes
    assert merge_forgotten(keyed, at_ms + 36_000_000).changes == 2
    assert len(rows(lake, "customers", "id")) == 99


def envelope(op: str, before: Any, after: Any, lsn: int) -> str:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}})


def test_envelopes_of_debezium_are_a_source_of_changes(
    client: nexo.Client, lake: Lake, url: str, code: Code
) -> None:
    stream = client.stream("shop.public.things").create(tiering=True)
    contract = StreamContract(lake, url, "shop.public.things")
    contract.debezium({"decimals": "text"})
    contract.set({"id": "long", "price": "decimal(20, 2)", "note": "string"})

    def publish(key: int | None, *events: tuple[str, Any, Any, int]) -> None:
        keys = [None if key is None else json.dumps({"id": key})] * len(events)
        stream.publish_many([envelope(*each) for each in events], keys=keys)

    first = {"id": 1, "price": "123456789012345678.90", "note": "a"}
    second = {"id": 1, "price": "0.01", "note": "__debezium_unavailable_value"}
    publish(1, ("c", None, first, 1), ("u", None, second, 2))
    publish(2, ("c", None, {"id": 2, "price": "2", "note": "b"}, 3), ("d", {"id": 2}, None, 5))
    publish(3, ("r", None, {"id": 3, "price": "very dear", "note": "c"}, 4))
    once(code, {"opened.sql": OPENED})
    shown = "id", "price", "note"
    assert [(row[0], str(row[1]), row[2]) for row in rows(lake, "things", *shown)] == [
        (1, "0.01", "a")
    ]
    publish(None, ("t", None, None, 8))
    publish(4, ("c", None, {"id": 4, "price": "7.00", "note": "late"}, 7))
    publish(5, ("c", None, {"id": 5, "price": "8.00", "note": "new"}, 9))
    once(code)
    assert [(row[0], str(row[1]), row[2]) for row in rows(lake, "things", *shown)] == [
        (5, "8.00", "new")
    ]


def test_rows_are_written_by_key(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    def upsert(values: list[tuple[Any, ...]], **more: str) -> None:
        frame = spark.createDataFrame(values, "id long, at long, name string")
        writing = frame.write.format("nexo").option("mode", "upsert").option("key", "id")
        writing = writing.option("table", "people").option("lake", str(lake.settings.folder))
        writing.options(**more).mode("append").save()

    upsert([(1, 5, "a"), (2, 5, "b")], sequence="at")
    upsert([(1, 4, "late"), (2, 6, "new"), (3, 1, "c")], sequence="at")
    assert rows(lake, "people", "id", "name") == [(1, "a"), (2, "new"), (3, "c")]
    with pytest.raises(Exception, match="is null"):
        upsert([(None, 5, "a")], sequence="at")
    with pytest.raises(Exception, match="known are"):
        upsert([(1, 5, "a")], sequnce="at")
    assert len(rows(lake, "people", "id")) == 3
    assert not rows(lake, "people__changes", "id")


def test_a_query_writes_each_batch_by_key_once(
    spark: SparkSession, lake: Lake, changes: Any, catalog: SparkCatalog, tmp_path: Path
) -> None:
    def take(**more: str) -> None:
        frame = catalog.resolved(lambda: spark.readStream.table("changes"))
        writing = frame.select("id", "city").writeStream.format("nexo")
        writing = writing.option("mode", "upsert").option("key", "id").option("table", "cities")
        writing = writing.option("lake", str(lake.settings.folder))
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing = writing.options(**more)
        writing.trigger(availableNow=True).start().awaitTermination()

    publish(changes, [change(1, 5, "Lund"), change(2, 1, "Bonn")])
    take()
    publish(changes, [change(1, 1, "Kiel")])
    take()
    take()
    assert rows(lake, "cities", "id", "city") == [(1, "Kiel"), (2, "Bonn")]
    publish(changes, [change(n, 1, "Rom") for n in range(10, 1_010)])
    take()
    publish(changes, [change(2, 2, "Oslo")])
    take(every="1h")
    assert sorted(rows(lake, "cities", "id", "city"))[1] == (2, "Bonn")
    found = catalog.resolved(lambda: spark.sql("select city from nexo.cities where id = 2"))
    assert [row.city for row in found.collect()] == ["Oslo"]
