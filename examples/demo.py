"""A lakehouse in one command: publish, take into Iceberg tables, derive one's own, ask in SQL.

``make demo`` runs it against a server of its own and leaves the data in ``nexo-demo``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import nexo
from nexo import testing
from nexo.cli.lake.spark_session import quiet_start
from nexo.contracts import StreamContract
from nexo.lake.catalog import Lake
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.typed.columns import set_schema
from nexo.sql.result import Result
from pyspark_nexo import session
from pyspark_nexo.code.child import CodePlan, graph_of
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK = 20_000
ROUNDS = 2
FOLDER = Path("nexo-demo")
MARK = "made-by-the-demo"


@contextmanager
def step(text: str) -> Iterator[None]:
    print(f"{text} ... ", end="", flush=True)
    started_s = time.perf_counter()
    yield
    print(f"{time.perf_counter() - started_s:.1f} s", flush=True)


def publish(client: nexo.Client, first: int, count: int) -> None:
    """Orders, and a payment for two of three."""
    orders, payments = client.stream("orders"), client.stream("payments")
    for start in range(first, first + count, CHUNK):
        ids = range(start, min(start + CHUNK, first + count))
        orders.publish_many(
            [{"id": n, "country": ["DE", "FR", "IT", "PL"][n % 4], "amount": n % 100} for n in ids],
            keys=[f"o{n}" for n in ids],
        )
        paid = [n for n in ids if n % 3]
        payments.publish_many(
            [{"order": n, "amount": n % 100} for n in paid], keys=[f"o{n}" for n in paid]
        )


TYPES = {
    "orders": {"id": "long", "country": "string", "amount": "long"},
    "payments": {"order": "long", "amount": "long"},
}
JOIN = """\
select o.country, count(*) as orders, count(p.order) as paid, sum(p.amount) as revenue
from orders o left join payments p on o.key = p.key
group by o.country order by o.country"""
COUNT = "select count(*) as orders from orders"
CODE = """\
CREATE STREAMING TABLE large_orders AS
SELECT id, country, amount FROM STREAM orders WHERE amount >= 90;

CREATE MATERIALIZED VIEW large_by_country AS
SELECT country, count(*) AS orders, sum(amount) AS amount FROM large_orders GROUP BY country;
"""
LARGE = "select * from large_by_country order by country"
WEIGHT = "select count(*) as orders, sum(weight) as weight from orders where weight is not null"


def main(count: int, folder: Path) -> None:
    make_room(folder)
    with testing.process(folder) as server, nexo.connect(server.url) as client:
        lake = Lake(LakeSettings(folder / "lake"))
        for name in ("orders", "payments"):
            client.stream(name).create(partitions=2, tiering=True)
        set_types(lake, server.url, TYPES)
        with step("starting Spark"), quiet_start(afterwards=False):
            spark = session("local[*]", app="demo")
        pipeline = Pipeline(spark, lake, server.url)
        moments = []
        for number in range(ROUNDS):
            with step(f"publishing {count // ROUNDS:,} orders and their payments"):
                publish(client, number * count // ROUNDS, count // ROUNDS)
            with step("taking them into the lake"):
                total = pipeline.run_once()
            moments.append(datetime.now(UTC))
            print(f"  {total:,} records, each once")
        show_files(lake)
        ask(client, "joining orders and payments over hot log and lake", JOIN)
        ask(client, "travelling back to the first round", COUNT, moments[0])
        with step("adding a column while it runs"):
            set_types(lake, server.url, {"orders": {"weight": "double"}})
            client.stream("orders").publish({"id": count, "country": "DE", "weight": 1.5})
            pipeline.run_once()
        ask(client, "asking for the new column", WEIGHT)
        derive(spark, folder, server.url)
        ask(client, "asking for the tables of its own", LARGE)
        spark.stop()
    say_what_next(folder)


def make_room(folder: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    if folder.exists():
        if not (folder / MARK).exists():
            sys.exit(f"{folder} is there and not from a demo: give another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def derive(spark: SparkSession, folder: Path, url: str) -> None:
    """Tables of one's own, by the code in a folder: `nexo pipeline run --code` does this."""
    code = folder / "code"
    code.mkdir()
    (code / "large.sql").write_text(CODE)
    print(textwrap.indent(CODE.rstrip(), "  > "))
    plan = CodePlan(str(code), str(folder / "lake"), url=url)
    with step("building two tables of its own with Spark"):
        rows = FlowsRunner(graph_of(spark, plan), lambda _: None).once()
    print(f"  {rows:,} rows")


def set_types(lake: Lake, url: str, types: dict[str, dict[str, str]]) -> None:
    """Typed columns, so that SQL sees ``country`` and ``amount`` instead of JSON."""
    for name, columns in types.items():
        set_schema(StreamContract(lake, url, name).table(), columns)


def ask(client: nexo.Client, what: str, query: str, as_of: datetime | None = None) -> None:
    """Show a query and its result."""
    with step(what):
        found = client.sql(query, as_of=as_of)
    print(textwrap.indent(query, "  > "))
    show(found)


def show(found: Result) -> None:
    rows = [
        found.columns,
        *([f"{item:,}" if isinstance(item, int) else str(item) for item in row] for row in found),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def show_files(lake: Lake) -> None:
    """Where the records are now."""
    table = lake.get("orders")
    files = file_ranges(table)
    size = sum(part.file.file_size_in_bytes for part in files) / 1024**2
    print(f"  table {'.'.join(table.name())}: {len(files)} Parquet files, {size:.1f} MiB, such as")
    print(f"  {local_path(files[0].path)}")


def say_what_next(folder: Path) -> None:
    print(f"\nThe data stays in {folder}. To go on:\n")
    for command, what in (
        (f"nexo serve --data-dir {folder} --pipeline", "dashboard: http://localhost:8080"),
        ("nexo sql", "a prompt: select * from orders limit 5;"),
        ("nexo pipeline status", "how far the lake is"),
        (f"nexo pipeline run --code {folder}/code", "go on with your own tables"),
        (f"rm -r {folder}", "when you are done"),
    ):
        print(f"  {command:46} # {what}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=600_000, help="1 M records with payments")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the data stays")
    given = parser.parse_args()
    main(given.orders, given.folder)
