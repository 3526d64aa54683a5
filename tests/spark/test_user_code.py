"""Users' pipelines: standard declarative code, in Python and SQL, into tables of the lake."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
from pyspark.pipelines.init_cli import init

import nexo
from nexo import cli
from nexo.contracts import StreamContract
from nexo.errors import NexoError, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.folder.swapping import drop_expired
from nexo.lake.maintenance.sweep import sweep
from nexo.lake.paths import local_file
from nexo.lake.progress import now_ms
from nexo.lake.typed.columns import set_schema
from nexo.lake.user_tables import ensure_user_table, get_user_table
from nexo.lake.writing.modes import all_files
from pyspark_nexo.code.child import CodePlan, Filling
from pyspark_nexo.code.graph import FlowGraph
from pyspark_nexo.code.loading import code_folder, load
from pyspark_nexo.code.refreshing import Refresh, check_refreshed
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.tables.catalog import SparkCatalog
from pyspark_nexo.tables.writing import arrow_columns

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


@pytest.fixture(autouse=True)
def without_views(spark: SparkSession) -> None:
    """Temporary views of other tests, which Spark finds before tables of their names."""
    for each in spark.catalog.listTables():
        if each.isTemporary:
            spark.catalog.dropTempView(each.name)


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
        if settings.pop("planned", True):
            graph.build()
        return FlowsRunner(graph, print, **settings)

    return made


def refreshed(
    catalog: SparkCatalog, code: Code, files: dict[str, str], table: str, since: str = ""
) -> str | None:
    """Make a table anew, as the process of users' code does; returns what the old one is now."""
    loaded = code(files, planned=False).graph
    plan = CodePlan(str(loaded.root), "", full=(table,), since=since)
    work = Refresh(catalog.lake, table)
    definitions = work.definitions(loaded.definitions)
    return work.run(Filling(definitions, catalog, loaded.root, plan, lambda _: None))


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


def named_files(lake: Lake, table: str) -> set[str]:
    """The files that a table has now."""
    return {local_file(path).name for path in all_files(get_user_table(lake, table))}


def files_of(lake: Lake, table: str) -> set[str]:
    """The files that are in its folder."""
    folder = local_file(get_user_table(lake, table).location())
    return {path.name for path in folder.rglob("*.parquet")}


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


def test_a_batch_that_comes_again_in_another_order_counts_once(
    client: nexo.Client, lake: Lake, code: Code
) -> None:
    """As if the driver had died after our commit, before Spark noted the batch."""
    client.stream("orders").create(partitions=2)
    orders(client, 0, 50)
    shuffled = "spark.readStream.table('orders').repartition(3, 'offset', rand()).select('offset')"
    text = (
        "from pyspark import pipelines as dp\nfrom pyspark.sql.functions import rand\n"
        f"@dp.table\ndef shuffled():\n    return {shuffled}\n"
    )
    killed = iter([True])

    def die(point: str) -> None:
        if point == "after the commit" and next(killed, False):
            raise RuntimeError("killed")

    with pytest.raises(NexoError, match="killed"):
        code({"gold.py": text}, probe=die).once()
    assert len(rows(lake, "shuffled")) == 50
    orders(client, 50, 10)
    code().once()
    found = rows(lake, "shuffled")
    assert len(found) == 60
    assert files_of(lake, "shuffled") == named_files(lake, "shuffled")


def test_a_lost_checkpoint_stops_the_flow_with_a_sentence(
    client: nexo.Client, lake: Lake, code: Code
) -> None:
    client.stream("orders").create()
    orders(client, 0, 5)
    text = "CREATE STREAMING TABLE copy AS SELECT offset FROM STREAM orders"
    runner = code({"copy.sql": text})
    runner.once()
    shutil.rmtree(runner.runs[0].checkpoint)
    with pytest.raises(NexoError, match=r"copy.sql:1: the checkpoint of flow 'copy' .* is gone"):
        code().once()
    assert len(rows(lake, "copy")) == 5


def test_a_table_is_made_anew_from_all_that_its_inputs_have(
    client: nexo.Client, lake: Lake, code: Code, catalog: SparkCatalog
) -> None:  # SPEC P7
    client.stream("orders").create()
    orders(client, 0, 5)
    old = code({"copy.sql": "CREATE STREAMING TABLE copy AS SELECT offset FROM STREAM orders"})
    old.once()
    with pytest.raises(NotFound, match="--full cpy: known are copy"):
        check_refreshed(old.graph.definitions, ["cpy"])
    orders(client, 5, 2)
    new = "CREATE STREAMING TABLE copy AS SELECT offset * 10 AS n FROM STREAM orders"
    aside = refreshed(catalog, code, {"copy.sql": new}, "copy")
    assert aside is not None
    assert rows(lake, "copy") == [{"n": n * 10} for n in range(7)]
    assert rows(lake, aside) == [{"offset": n} for n in range(5)]
    orders(client, 7, 1)
    code().once()  # goes on where the new table is
    assert rows(lake, "copy") == [{"n": n * 10} for n in range(8)]
    sweep(get_user_table(lake, "copy"), 0)
    assert len(rows(lake, aside)) == 5
    assert drop_expired(lake, now_ms()) == []
    assert drop_expired(lake, now_ms() + 8 * 86_400_000) == [aside]
    assert rows(lake, "copy") == [{"n": n * 10} for n in range(8)]


def test_a_flow_that_runs_while_its_table_is_made_anew_doubles_nothing(
    client: nexo.Client, lake: Lake, code: Code, catalog: SparkCatalog
) -> None:  # SPEC P7
    client.stream("orders").create()
    orders(client, 0, 5)
    text = {"copy.sql": "CREATE STREAMING TABLE copy AS SELECT offset FROM STREAM orders"}
    code(text).once()
    orders(client, 5, 2)

    def swap(point: str) -> None:
        if point == "before the batch":  # the old query has read two rows, and not written them
            refreshed(catalog, code, {}, "copy")

    with pytest.raises(NexoError, match="made anew since the flow began"):
        code(probe=swap).once()
    assert rows(lake, "copy") == [{"offset": n} for n in range(7)]
    orders(client, 7, 1)
    code().once()
    assert rows(lake, "copy") == [{"offset": n} for n in range(8)]


def test_a_table_is_made_anew_of_a_part_of_history(
    client: nexo.Client, lake: Lake, code: Code, catalog: SparkCatalog
) -> None:  # SPEC P7
    client.stream("orders").create()
    orders(client, 0, 5)
    text = {"copy.sql": "CREATE STREAMING TABLE copy AS SELECT offset FROM STREAM orders"}
    code(text).once()
    (last,) = client.stream("orders").read(0, 4)
    while (now := datetime.now(UTC)).timestamp() * 1000 < last.timestamp_ms + 2:
        pass
    since = now.isoformat(timespec="milliseconds")
    orders(client, 5, 2)
    refreshed(catalog, code, {}, "copy", since=since)
    assert rows(lake, "copy") == [{"offset": n} for n in (5, 6)]


def test_names_with_hyphens_dots_and_capitals(client: nexo.Client, lake: Lake, code: Code) -> None:
    client.stream("user-events.v2").create()
    client.stream("user-events.v2").publish_many([{"n": 1}, {"n": 2}])
    text = """
    CREATE STREAMING TABLE `gold-a.B` AS SELECT * FROM STREAM `user-events.v2`;
    CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM nexo.`gold-a.b`;
    CREATE MATERIALIZED VIEW raw AS SELECT max(offset) AS n FROM nexo.`user-events.v2__raw`;
    """
    runner = code({"names.sql": text})
    runner.once()
    assert [rows(lake, name) for name in ("counted", "raw")] == [[{"n": 2}], [{"n": 1}]]
    assert [run.progress.reads for run in runner.runs if run.flow.name == "counted"] == [
        ["gold-a.B"]
    ]


def test_spark_s_own_example_project_runs_unchanged(
    lake: Lake, code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    init("code")
    code().once()
    found = [row["id"] for row in rows(lake, "example_sql_materialized_view")]
    assert sorted(found) == [0, 2, 4, 6, 8]


def test_a_flow_that_fails_holds_those_below_it_and_no_other(
    client: nexo.Client, lake: Lake, code: Code
) -> None:
    client.stream("orders").create()
    orders(client, 0, 5)
    text = """
from pyspark import pipelines as dp
from pyspark.sql.functions import udf
from nexo import pipelines as nx

@udf("bigint")
def broken(n):
    raise ValueError(f"no {n}")

@dp.table
def bad():
    return spark.readStream.table("orders").select(broken("offset").alias("n"))

@nx.expect_or_fail("few", "offset < 3")
def strict_rows():
    return spark.readStream.table("orders").select("offset")

dp.create_streaming_table("checked")
dp.append_flow(target="checked")(strict_rows)

@dp.materialized_view
def below():
    return spark.table("bad").groupBy().count()

@dp.table
def good():
    return spark.readStream.table("orders").select("offset")
"""
    runner = code({"gold.py": text})
    with pytest.raises(NexoError, match="ValueError: no") as failed:
        runner.once()
    assert "gold.py:" in str(failed.value)
    assert "2 rows break the expectation 'few': offset < 3" in str(failed.value)
    states = {run.flow.name: run.progress.state for run in runner.runs}
    assert states == {
        "bad": "failed", "strict_rows": "failed", "below": "held", "good": "idle",
    }  # fmt: skip
    assert len(rows(lake, "good")) == 5
    assert rows(lake, "checked") == []
    assert files_of(lake, "checked") == set()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.py": "x = (\n"}, r"a\.py:1: '\(' was never closed"),
        ({"a.py": "\nraise ValueError('no')\n"}, r"a\.py:2: ValueError: no"),
        ({"a.sql": "CREATE STREAMING TABLE t AS SELEKT 1"}, r"a\.sql: .*SELEKT"),
        ({"a.sql": "\n\nDROP TABLE t"}, r"a\.sql:3: a pipeline's script has"),
        ({"a.sql": "CREATE MATERIALIZED VIEW v AS SELECT * FROM nowhere"},
         r"a\.sql:1: no stream and no table is called 'nowhere'"),
        ({"a.sql": "CREATE MATERIALIZED VIEW v AS SELECT * FROM nexo.nowhere"},
         r"a\.sql:1: no stream and no table is called 'nowhere'"),
        ({"a.sql": "CREATE MATERIALIZED VIEW v AS SELECT * FROM w; "
                   "CREATE MATERIALIZED VIEW w AS SELECT * FROM v"}, "in a circle: v → w → v"),
        ({"a.sql": "CREATE MATERIALIZED VIEW orders AS SELECT 1 AS n"}, "'orders' is a stream"),
        ({"a.sql": "CREATE STREAMING TABLE t AS SELECT 1 AS n"}, "needs a stream"),
        ({"a.sql": "CREATE MATERIALIZED VIEW v AS SELECT 1 AS n, 2 AS N"}, "two columns"),
        ({"a.sql": "CREATE MATERIALIZED VIEW v PARTITIONED BY (x) AS SELECT 1 AS n"},
         "cannot partition by 'x'"),
        ({"a.sql": "SELECT 1"}, "a pipeline's script has"),
        ({"a.sql": "CREATE STREAMING TABLE t"}, "no flow"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(
    client: nexo.Client, lake: Lake, code: Code, files: dict[str, str], message: str
) -> None:
    client.stream("orders").create()
    with pytest.raises(NexoError, match=message):
        code(files, make=False)
    assert list(lake.every()) == []


def test_columns_are_added_to_a_table_and_other_changes_are_refused(
    client: nexo.Client, lake: Lake, code: Code
) -> None:
    text = "CREATE MATERIALIZED VIEW v AS SELECT {} FROM range(2)"
    code({"v.sql": text.format("int(id) AS id")}).once()
    code({"v.sql": text.format("id, 'a' AS more")}).once()
    assert rows(lake, "v") == [{"id": 0, "more": "a"}, {"id": 1, "more": "a"}]
    with pytest.raises(
        NexoError, match=r"v\.sql:1: column 'id' of table 'v' is int64, and now str"
    ):
        code({"v.sql": text.format("string(id) AS id")})


def test_statements_of_sql_write_to_tables_and_see_them_as_they_are(
    spark: SparkSession, lake: Lake, catalog: SparkCatalog, tmp_path: Path
) -> None:
    frame = spark.range(4)
    for name in ("a-b.c", "copy"):
        ensure_user_table(lake, name, arrow_columns(frame.schema, name))

    def ask(query: str) -> list[Any]:
        return [row[0] for row in catalog.resolved(lambda: spark.sql(query)).collect()]

    seen = catalog.resolved(lambda: spark.table("nexo.`a-b.c`"))
    ask("insert into nexo.`a-b.c` select id from range(4)")
    assert seen.count() == 4  # not as when it was made
    ask("insert overwrite nexo.`a-b.c` select id from `a-b.c` where id > 1")
    frame.writeTo("nexo.`a-b.c`").append()
    assert sorted(ask("select id from `a-b.c`")) == [0, 1, 2, 2, 3, 3]
    catalog.add("copy")

    def stream(checkpoint: str, **options: str) -> None:
        writing = spark.readStream.table("`a-b.c`").writeStream.options(**options)
        writing = writing.option("checkpointLocation", str(tmp_path / checkpoint))
        writing.trigger(availableNow=True).toTable("copy").awaitTermination()

    stream("one")
    frame.writeTo("nexo.`a-b.c`").append()
    stream("one")
    assert len(ask("select id from copy")) == 10
    with pytest.raises(Exception, match="its checkpoint is gone"):
        stream("another")
    ask("insert overwrite copy select id from `a-b.c` where id = 0")
    assert ask("select count(*) from copy") == [2]


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "your-tables.md"


@pytest.fixture
def callbacks(spark: SparkSession) -> Iterator[None]:
    """Spark calls back the process that asked last: afterwards, this one again."""
    yield
    gateway: Any = spark.sparkContext._gateway
    if (server := gateway.__dict__.get("_callback_server")) is not None:
        java = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
        port = server.server_socket.getsockname()[1]
        java.resetCallbackClient(java.getCallbackClient().getAddress(), port)


@pytest.mark.usefixtures("callbacks")
def test_the_page_of_the_first_table_does_what_it_says(
    client: nexo.Client, url: str, lake: Lake, tmp_path: Path
) -> None:
    found = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "silver.sql").write_text(found[1])
    client.stream("orders").create(tiering=True)
    client.stream("orders").publish({"region": "eu", "amount": 12.5})
    code_ = ("--code", str(tmp_path / "shop"))
    where = ("--url", url, "--lake", str(lake.settings.folder))

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(cli.main, [*arguments, *where])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    checked = [
        json.loads(line)
        for line in command("pipeline", "check", *code_, "--json").split("\n")
        if line
    ]
    assert [(row["flow"], row["reads"]) for row in checked] == [
        ("clean_orders", "orders"), ("revenue", "clean_orders"),
    ]  # fmt: skip
    ran = json.loads(command("pipeline", "run", "--once", "--json", *code_))
    assert ran == {"records": 1, "rows": 2}
    asked = json.loads(command("sql", "select region, euros from revenue", "--json"))
    assert asked == {"region": "eu", "euros": 12.5}
    shown = [
        json.loads(line) for line in command("pipeline", "flows", "--json").split("\n") if line
    ]
    assert [(row["flow"], row["state"], row["rows"]) for row in shown] == [
        ("clean_orders", "idle", 1), ("revenue", "idle", 1),
    ]  # fmt: skip
    (tmp_path / "shop" / "silver.sql").write_text("CREATE STREAMING TABLE x AS SELECT")
    failed = CliRunner().invoke(cli.main, ["pipeline", "run", "--once", *code_, *where])
    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[-1].startswith("error[CODE_ERROR]: silver.sql: ")
