"""Changes of a PostgreSQL table become a table of the lake: Debezium, Kafka's protocol, AUTO CDC.

It takes minutes, so it runs with ``SOAK=1``.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import nexo
from nexo.contracts import StreamContract
from nexo.errors import NexoError
from nexo.lake.user_tables import find_user_table
from pyspark_nexo.code.graph import FlowGraph
from pyspark_nexo.code.loading import code_folder, load
from pyspark_nexo.code.runner import FlowsRunner
from pyspark_nexo.tables.catalog import SparkCatalog
from tests.frameworks.postgres import postgres, tcp_port
from tests.kafka.jars import DEBEZIUM, HOWTO, connect_worker, properties
from tests.kafka.ledger import shows
from tests.timing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nexo.lake.catalog import Lake

pytestmark = pytest.mark.skipif(not os.environ.get("SOAK"), reason="slow: SOAK=1")
TOPIC = "shop.public.customers"
LIMIT_S = 180
CHANGES = int(os.environ.get("CDC_CHANGES", "10000"))
COLUMNS = "id, name, city, balance, rate, seen, born, note"
LAST = 1_000_000


@pytest.fixture
def database() -> Iterator[tuple[psycopg.Connection[Any], int]]:
    """A PostgreSQL with a table, and the port of it."""
    with (
        postgres(wal_level="logical") as host,
        tcp_port(host) as port,
        psycopg.connect(host=host, user="postgres", autocommit=True) as found,
    ):
        found.execute(
            "CREATE TABLE customers (id INT PRIMARY KEY, name TEXT, city TEXT, "
            "balance NUMERIC(20, 4), rate NUMERIC, seen TIMESTAMPTZ, born DATE, note TEXT)"
        )
        found.execute("ALTER TABLE customers ALTER COLUMN note SET STORAGE EXTERNAL")
        found.execute("INSERT INTO customers VALUES (1, 'Ada', 'London'), (2, 'Bo', 'Lund')")
        yield found, port


def connector(port: int) -> dict[str, object]:
    """Debezium's connector as the how-to has it."""
    return properties("debezium.md", 1, database_hostname="127.0.0.1", database_port=port)


def worker(url: str, folder: Path) -> dict[str, object]:
    """A standalone worker as the how-to has it."""
    return properties(
        "debezium.md", 0, bootstrap_servers=url.removeprefix("nexo://"),
        offset_storage_file_filename=folder / "offsets", plugin_discovery="service_load",
    )  # fmt: skip


class Writer:
    """Changes rows of the source."""

    def __init__(self, source: psycopg.Connection[Any]) -> None:
        self.source, self.rng, self.done = source, random.Random(32), 0
        self.more = ""

    def change(self, count: int) -> None:
        """Some changes, in transactions of several."""
        until = self.done + count
        while self.done < until:
            with self.source.transaction():
                for _ in range(self.rng.randint(1, 40)):
                    self._one()
                    self.done += 1
        self.source.execute("SELECT pg_logical_emit_message(false, 'nexo', 'of no table')")

    def _one(self) -> None:
        rng, key = self.rng, self.rng.randint(1, 400)
        lot = rng.random()
        if lot < 0.45:
            note = secrets.token_hex(2_500) if rng.random() < 0.2 else None
            self.source.execute(
                "INSERT INTO customers VALUES (%s, %s, %s, %s, %s, now(), now()::date - %s, %s) "
                "ON CONFLICT (id) DO UPDATE SET name = excluded.name, balance = excluded.balance",
                (key, f"n{self.done}", rng.choice("abc"), rng.randint(-(10**19), 10**19) / 10**4
                 if rng.random() < 0.1 else f"{rng.randint(0, 10**15)}.{rng.randint(0, 9999):04}",
                 f"{rng.randint(0, 99)}.{rng.randint(0, 999)}", rng.randint(0, 20_000), note),
            )  # fmt: skip
        elif lot < 0.75:
            self.source.execute(
                f"UPDATE customers SET city = %s{self.more} WHERE id = %s", (f"c{self.done}", key)
            )
        elif lot < 0.9:
            self.source.execute("DELETE FROM customers WHERE id = %s", (key,))
        elif lot < 0.9995:
            self.source.execute(
                # A large value of a row with a new key is only sent with REPLICA IDENTITY FULL.
                "UPDATE customers SET id = %s WHERE id = %s AND note IS NULL AND NOT EXISTS "
                "(SELECT 1 FROM customers WHERE id = %s)", (key + 400, key, key + 400),
            )  # fmt: skip
        else:
            self.source.execute("TRUNCATE customers")


@shows("Debezium", "PostgreSQL to an Iceberg table that equals it, by AUTO CDC")
def test_the_table_equals_the_one_in_the_database(
    database: tuple[psycopg.Connection[Any], int], url: str, client: nexo.Client, lake: Lake,
    spark: SparkSession, tmp_path: Path,
) -> None:  # fmt: skip
    source, port = database
    stream, writer = client.stream(TOPIC), Writer(source)
    contract = StreamContract(lake, url, TOPIC)
    folder = tmp_path / "code"
    folder.mkdir()
    page = (HOWTO / "debezium.md").read_text()
    (folder / "customers.sql").write_text(page.partition("```sql\n")[2].partition("```")[0])
    catalog = SparkCatalog(spark, lake, url)

    def published() -> int:
        return stream.info().partitions[0].next_offset if TOPIC in client.streams() else 0

    def take() -> None:
        catalog.open()
        graph = FlowGraph(load(spark, code_folder(folder)), catalog, folder.resolve())
        graph.build()
        with suppress(NexoError):  # a busy machine is late with workers; the next one goes on
            FlowsRunner(graph, print).once()

    def rows(columns: str) -> list[tuple[Any, ...]]:
        table = find_user_table(lake, "customers")
        assert table is not None
        found = table.scan().to_arrow().select(columns.split(", ")).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def connected(killed: bool) -> Any:
        return connect_worker(
            tmp_path, worker(url, tmp_path), connector(port), jars=DEBEZIUM, killed=killed
        )

    with connected(killed=True) as log:
        wait_until(lambda: published() >= 2 or " ERROR " in log.read_text(), LIMIT_S)
        assert published() >= 2, log.read_text()[-5_000:]
        contract.debezium()
        writer.change(CHANGES * 4 // 10)
        take()
        wait_until(lambda: published() > CHANGES // 10, LIMIT_S)
    writer.change(CHANGES // 10)
    take()
    with connected(killed=False) as log:
        writer.change(CHANGES * 2 // 10)
        source.execute("ALTER TABLE customers ADD COLUMN tier NUMERIC(6, 2) DEFAULT 1.25")
        writer.more = ", tier = 2.50"
        source.execute("TRUNCATE customers")
        writer.change(CHANGES * 3 // 10)
        source.execute("INSERT INTO customers (id) VALUES (%s)", (LAST,))

        def arrived() -> bool:
            if "tier" not in {each.column for each in contract.debezium().columns}:
                return False
            take()
            return any(row[0] == LAST for row in rows("id"))

        wait_until(arrived, LIMIT_S)
    columns = f"{COLUMNS}, tier"
    wanted = source.execute(f"SELECT {columns} FROM customers ORDER BY id").fetchall()
    assert rows(columns) == wanted
    assert len(wanted) > 100
    table = lake.get(TOPIC)
    assert contract.info().dead_letters == 0, table
