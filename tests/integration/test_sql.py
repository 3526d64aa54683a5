"""SQL over hot log and lake with DuckDB: each record once, from CLI and client (SPEC I10)."""

from __future__ import annotations

import json
import os
import pty
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyiceberg")

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner, Result
from pyiceberg.table import Table

import nexo
from nexo import cli, testing
from nexo.errors import InvalidInput, NotFound
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.derived import latest
from nexo.lake.files import DataFileFacts
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.once import commit_once
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.snapshot import TableChange
from nexo.lake.tables import NEWEST, StreamId, derived_view
from nexo.lake.typed import columns as typed
from nexo.sql import engine as sql_engine
from nexo.sql import streams as sql_streams
from nexo.sql.dialect import quoted
from nexo.sql.engine import Engine
from tests.unit.lake.foreign import delete_rows, rewrite

from .tiering import take


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    with testing.server(data_dir=tmp_path / "nexo") as url:
        yield url


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(LakeSettings(tmp_path / "nexo" / "lake"))


@pytest.fixture
def both(served: str, lake: Lake) -> Engine:
    """A stream of 900 records in the lake and 100 in the log, and one in the log alone."""
    with nexo.connect(served) as client:
        orders = client.stream("orders").create(partitions=2, tiering=True)
        values = [{"n": n, "who": "ü"} for n in range(1_000)]
        keys = [f"k{n % 7}" for n in range(1_000)]
        orders.publish_many(values[:900], keys=keys[:900])
        take(served, lake, "orders")
        orders.publish_many(values[900:], keys=keys[900:])
        client.stream("hot/only").create().publish_many([b"\xff", b"text"])
    return Engine(lake, served)


def test_each_record_of_both_tiers_is_seen_once(both: Engine) -> None:
    query = "select count(*), count(distinct (partition, offset)), min(offset) from orders"
    assert both.query(query).rows() == [(1_000, 1_000, 0)]
    total = "select sum(cast(get_json_object(cast(value as string), '$.n') as int)) from orders"
    assert both.query(total).scalar() == sum(range(1_000))


def test_values_that_are_no_json_have_no_fields(both: Engine) -> None:
    query = "select get_json_object(value, '$.n') from stream_messages where topic = 'hot/only'"
    assert both.query(query).rows() == [(None,), (None,)]


def test_offset_is_a_column_and_a_clause(both: Engine) -> None:
    query = "select offset from orders where partition = 0 and offset < 5 order by offset limit 3"
    assert both.query(f"{query} offset 1").rows() == [(1,), (2,), (3,)]
    assert quoted("select max(o.offset) - offset from t limit 5 OFFSET 3") == (
        'select max(o."offset") - "offset" from t limit 5 OFFSET 3'
    )
    assert quoted("select 'offset', \"offset\" from t -- offset") == (
        "select 'offset', \"offset\" from t -- offset"
    )


def test_messages_of_all_streams_show_text_or_base64(both: Engine) -> None:
    query = "select topic, count(*) from stream_messages group by topic order by topic"
    assert both.query(query).rows() == [("hot/only", 2), ("orders", 1_000)]
    values = both.query("select value from stream_messages where topic = 'hot/only'").rows()
    assert sorted(values) == [("/w==",), ("text",)]
    assert both.query("select count(*) from stream_messages", streams=["hot/only"]).scalar() == 2


def test_types_and_names_are_those_of_the_stream(both: Engine) -> None:
    cast = both.query("select cast(key as string), upper(cast(o.key as string)) as k from orders o")
    assert cast.columns == ["key", "k"]
    found = both.query("select * from orders limit 0").arrow()
    assert found.schema.names[:7] == [
        "partition", "offset", "timestamp", "key", "value", "headers", "value_type",
    ]  # fmt: skip
    assert [str(kind) for kind in found.schema.types[:5]] == [
        "int32", "int64", "timestamp[us, tz=UTC]", "binary", "binary",
    ]  # fmt: skip


def test_typed_columns_are_there_for_both_tiers(served: str, lake: Lake, both: Engine) -> None:
    typed.set_schema(lake.get("orders"), {"n": "int"})
    take(served, lake, "orders")
    with nexo.connect(served) as client:
        client.stream("orders").publish({"n": 5_000}, key="k0")
        typed.rename(typed.set_schema(lake.get("orders"), {"n": "long"}), "n", "number")
        client.stream("orders").publish({"n": 5_000_000_000}, key="k0")
    assert both.query("select max(number), count(number) from orders").rows() == [
        (5_000_000_000, 102)
    ]


def test_the_newest_record_of_each_key_is_a_view(served: str, lake: Lake, both: Engine) -> None:
    with nexo.connect(served) as client:
        stream = StreamId("orders", client.stream("orders").info().created_ms)
        table, steps = latest.plan(lake, stream)
        latest.finish(table, steps, [latest.run(step) for step in steps])
        query = "select cast(key as string), max(offset) from {} group by 1 order by 1"
        first = both.query(query.format("orders_latest")).rows()
        assert [key for key, _ in first] == [f"k{n}" for n in range(7)]
        now = both.query(query.format("orders_latest"), as_of=datetime.now(UTC)).rows()
        assert now == both.query(query.format("orders")).rows() != first
        client.stream("orders_latest").create().publish(b"a stream of that name")
    assert both.query("select count(*) from orders_latest").scalar() == 1
    other = derived_view("orders", NEWEST, {"orders_latest"})
    assert both.query(f"select count(*) from {other}").scalar() == 7


def test_as_of_leaves_out_what_came_later(both: Engine) -> None:
    assert both.query("select count(*) from orders", as_of=datetime.now(UTC)).scalar() == 1_000
    early = datetime.now(UTC) - timedelta(hours=1)
    assert both.query("select count(*) from orders", as_of=early).scalar() == 0
    with pytest.raises(InvalidInput, match="time zone"):
        both.query("select 1", as_of=datetime(2026, 1, 1))  # noqa: DTZ001


def test_bad_queries_are_plain_errors(both: Engine) -> None:
    with pytest.raises(InvalidInput, match="syntax error"):
        both.query("selec")
    with pytest.raises(NotFound, match="nope does not exist; `show tables` lists all"):
        both.query("select * from nope")
    with pytest.raises(InvalidInput, match='Candidate bindings: "offset"'):
        both.query("select ofset from orders")
    with pytest.raises(InvalidInput, match='is written in quotes: "user-events"'):
        both.query("select * from user-events")
    with pytest.raises(InvalidInput, match="nope"):
        both.query("select nope from orders")


def test_a_machine_that_cannot_reach_the_lake_reads_it_through_the_broker(
    served: str, both: Engine
) -> None:
    assert Engine(None, served).query("select count(*) from orders").scalar() == 1_000


def test_many_hot_records_go_through_a_file(both: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_streams, "SPILL_BYTES", 1)
    join = "select count(*) from orders a join orders b using (partition, offset)"
    assert both.query(join).scalar() == 1_000


@pytest.mark.usefixtures("both")
def test_the_clients_give_arrow_rows_and_dicts(served: str) -> None:
    query = "select partition, count(*) as n from orders group by partition order by partition"
    with nexo.connect(served) as client:
        found = client.sql(query)
        assert (found.columns, len(found)) == (["partition", "n"], 2)
        assert (
            sum(row["n"] for row in found.dicts())
            == found.arrow().column("n").to_pylist()[0] + found.rows()[1][1]
        )


@pytest.mark.usefixtures("both")
async def test_the_async_client_too(served: str) -> None:
    async with nexo.AsyncClient(served) as client:
        assert (await client.sql("select count(*) from orders")).scalar() == 1_000


def command(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.main, arguments, input=text)


@pytest.mark.usefixtures("both")
def test_the_command_prints_tables_csv_and_json(served: str) -> None:
    query = "select cast(key as string) as key, count(*) as n from orders group by 1 order by 1"
    table = command("sql", query, "--csv", "--limit", "2", "--url", served)
    assert table.stdout.splitlines() == ["key,n", "k0,143", "k1,143"], table.output
    assert table.stderr == "only the first 2 rows are shown: --limit shows more\n"
    lines = command("sql", query, "--json", "--url", served).stdout.splitlines()
    assert json.loads(lines[0]) == {"key": "k0", "n": 143}
    piped = command("sql", "--csv", "--url", served, text="select 1 as one;\n")
    assert piped.stdout.splitlines() == ["one", "1"]
    times = "select timestamptz'2026-01-01' as a, timestamp'2026-01-01' as b"
    shown = command("sql", times, "--url", served)
    assert shown.stdout == "2026-01-01T00:00:00Z\t2026-01-01T00:00:00\n"
    bad = command("sql", "selec", "--url", served)
    assert bad.stderr.startswith("error[INVALID]: syntax error")


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from nexo.cli import main
main(sys.argv[2:])
"""


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("duckdb", "sql", ["sql", "select 1"]),
        ("pyiceberg", "spark", ["pipeline", "maintain"]),
        ("pyarrow", "spark", ["pipeline", "schema", "orders"]),
        ("pyspark", "spark", ["sql", "--engine", "spark", "select 1"]),
    ],
)
def test_without_a_package_the_command_says_what_to_install(
    served: str, module: str, extra: str, command: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, module, *command, "--url", served],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"error[CONFIG]: {module} is not installed: pip install 'nexo-broker[{extra}]'\n"
    )


@pytest.mark.usefixtures("both")
def test_a_query_says_nothing_but_its_result(served: str) -> None:
    query = "select count(*) from orders where partition = 1 and offset > 3"
    done = subprocess.run(
        [sys.executable, "-m", "nexo", "sql", query, "--url", served],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout.strip().isdigit(), done.stderr) == (True, "")


LISTING = """
import atexit, sys
atexit.register(lambda: print(*sys.modules))
from nexo.__main__ import main
main()
"""
NEEDLESS = {"pyarrow.compute", "pyarrow.dataset", "pyiceberg", "ssl"}


@pytest.mark.usefixtures("both")
def test_a_query_imports_little(served: str) -> None:
    """SPEC I10: these take longer to import than most queries to run."""
    query = "select partition, count(*), max(offset), min(timestamp) from orders group by 1"
    done = subprocess.run(
        [sys.executable, "-c", LISTING, "sql", query, "--url", served],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = set(done.stdout.split())
    assert {"duckdb", "nexo.sql.engine"} <= imported
    assert not NEEDLESS & imported


@pytest.mark.usefixtures("both")
def test_queries_are_typed_at_a_prompt(served: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    command = [sys.executable, "-m", "nexo", "sql", "--csv", "--url", served]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ):
        os.close(theirs)
        os.write(ours, b"selec;\nselect count(*) as n\nfrom orders;\n\\q\n")
        said = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65_536):
                said += part
    os.close(ours)
    assert b"\nn\r\r\n1000\r\r\n" in said
    assert b"error[INVALID]: syntax error" in said
    assert "from orders;" in (tmp_path / "nexo" / "sql_history").read_text()


def test_files_of_other_programs_and_deleted_rows_are_seen_as_they_are(
    both: Engine, lake: Lake, tmp_path: Path
) -> None:
    """A rewrite in any order, rows marked as deleted, and a file made elsewhere, without ids."""
    table, chance = lake.get("orders"), random.Random(3)
    rewrite(table, chance)
    marked = file_ranges(table.refresh())[0]
    delete_rows(table, marked.file, [0, 5])
    assert both.query(
        "select count(*), count(distinct (partition, offset)) from orders"
    ).rows() == [(998, 998)]
    assert both.query("select count(*) from stream_messages where topic = 'orders'").scalar() == 998
    names = {"offset": [7_000], "value": [b"from elsewhere"], "unknown": [1]}
    pq.write_table(pa.table(names), tmp_path / "elsewhere.parquet")
    table.refresh()
    with table.transaction() as change:
        mapping = table.schema().name_mapping.model_dump_json()
        change.set_properties({"schema.name-mapping.default": mapping})
    _add_file(table, f"file://{tmp_path}/elsewhere.parquet")
    query = "select partition, offset, value from orders where offset = 7000"
    assert both.query(query).rows() == [(None, 7_000, b"from elsewhere")]
    maintain(table, Care(min_files=2, grace_s=0))
    assert both.query(query).rows() == [(None, 7_000, b"from elsewhere")]
    assert both.query("select count(*) from orders").scalar() == 999


def _add_file(table: Table, path: str) -> None:
    facts = DataFileFacts(path, (None,), table.spec().spec_id, 1, 100)
    commit_once(table, "somebody", 0, TableChange(added=[facts]))


def test_a_streams_own_name_may_be_written_in_quotes(served: str, lake: Lake) -> None:
    with nexo.connect(served) as client:
        events = client.stream("user-events").create(tiering=True, cleanup="compact")
        events.publish_many([b"1", b"2"], keys=["a", "a"])
        client.stream("Shop.Orders").create().publish(b"3")
        client.stream("orders").create().publish(b"4")
        client.stream("ORDERS").create().publish(b"5")
    take(served, lake, "user-events")
    _compact(lake, "user-events", served)
    engine = Engine(lake, served)
    assert engine.query('select count(*) from "user-events"').scalar() == 2
    assert engine.query('select value from "user-events_latest"').rows() == [(b"2",)]
    assert engine.query('select value from "shop.orders"').rows() == [(b"3",)]
    assert engine.query("select value from orders").rows() == [(b"4",)]
    assert engine.query('select value from "ORDERS"').rows() == [(b"5",)]
    with pytest.raises(InvalidInput, match="differ in case alone"):
        engine.query('select * from orders, "ORDERS"')
    with pytest.raises(NotFound):
        engine.query('select * from "no-such-stream"')


def _compact(lake: Lake, stream: str, url: str) -> None:
    with HotLog(url) as broker:
        created_ms = broker.describe(stream).created_ms
    table, steps = latest.plan(lake, StreamId(stream, created_ms))
    latest.finish(table, steps, [latest.run(step) for step in steps])


def test_show_tables_lists_what_a_query_may_name(both: Engine) -> None:
    listed = both.query("show tables").rows()
    assert ("orders", "orders") in listed
    assert ("stream_messages", None) in listed
    (hot,) = [name for name, stream in listed if stream == "hot/only"]
    assert both.query(f"select count(*) from {hot}").scalar() == 2
    assert both.query("select name from (show tables) where stream = 'orders'").rows() == [
        ("orders",)
    ]


def test_messages_of_many_streams_are_complete_or_refused(
    served: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_engine, "MOST_STREAMS", 2)
    names = ["a", "b", "c", "d"]
    with nexo.connect(served) as client:
        for name in names:
            client.stream(name).create().publish(name)
    engine = Engine(lake, served)

    def topics(query: str) -> list[str]:
        return sorted(row[0] for row in engine.query(query).rows())

    assert topics("select topic from stream_messages where topic = 'd'") == ["d"]
    assert topics("select m.topic from stream_messages m where 'c' = m.topic and true") == ["c"]
    assert topics("select topic from stream_messages where topic in ('a', 'd')") == ["a", "d"]
    assert topics(
        "select topic from stream_messages where topic = 'a' union all "
        "select topic from stream_messages where topic = 'b'"
    ) == ["a", "b"]
    assert topics("select topic from stream_messages where topic = 'no such'") == []
    for query in (
        "select count(*) from stream_messages",
        "select count(*) from stream_messages where topic = 'a' or true",
        "select count(*) from stream_messages where topic > 'a'",
        "select count(*) from stream_messages where not topic = 'a'",
        "select count(*) from stream_messages where topic not in ('a')",
        "select count(*) from stream_messages where topic = 'a' union all "
        "select count(*) from stream_messages",
        "select count(*) from stream_messages a, stream_messages b where a.topic = 'a'",
        "select count(*) from stream_messages where topic in ('a', key)",
        "select count(*) from stream_messages where 'a' in (topic)",
    ):
        with pytest.raises(InvalidInput, match=r"4 streams, .* topic in"):
            engine.query(query)
    assert engine.query("select count(*) from stream_messages", streams=["a", "b"]).scalar() == 2
    assert engine.query("select count(distinct topic) from stream_offsets").scalar() == 0
