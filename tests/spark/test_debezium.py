"""Changes of a PostgreSQL table reach an Iceberg table: Debezium, Kafka's protocol, the pipeline.

It takes half a minute, so it runs with ``SOAK=1``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import nexo
from nexo.lake.typed.columns import rename, set_schema
from tests.frameworks.postgres import postgres, tcp_port
from tests.kafka.jars import DEBEZIUM, connect_worker, properties
from tests.kafka.ledger import shows
from tests.timing import wait_until

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake
    from pyspark_nexo.pipeline import Pipeline

pytestmark = pytest.mark.skipif(not os.environ.get("SOAK"), reason="slow: SOAK=1")
TOPIC = "shop.public.customers"
LIMIT_S = 120


@pytest.fixture
def database() -> Iterator[tuple[psycopg.Connection[Any], int]]:
    """A PostgreSQL with a table, and the port of it."""
    with (
        postgres(wal_level="logical") as host,
        tcp_port(host) as port,
        psycopg.connect(host=host, user="postgres", autocommit=True) as found,
    ):
        found.execute("CREATE TABLE customers (id INT PRIMARY KEY, name TEXT, city TEXT)")
        found.execute("INSERT INTO customers VALUES (1, 'Ada', 'London'), (2, 'Bo', 'Lund')")
        yield found, port


def connector(port: int) -> dict[str, object]:
    """Debezium's connector as the how-to has it."""
    return properties("debezium.md", 1, database_hostname="127.0.0.1", database_port=port)


def worker(url: str, folder: Path) -> dict[str, object]:
    """A standalone worker with plain JSON, as the how-to has it."""
    return properties(
        "debezium.md", 0, bootstrap_servers=url.removeprefix("nexo://"),
        offset_storage_file_filename=folder / "offsets", plugin_discovery="service_load",
    )  # fmt: skip


@shows("Debezium", "PostgreSQL (snapshot, inserts, updates, deletes) to an Iceberg table")
def test_inserts_updates_and_deletes_reach_the_lake(
    database: tuple[psycopg.Connection[Any], int],
    url: str, client: nexo.Client, lake: Lake, pipeline: Pipeline, tmp_path: Path,
) -> None:  # fmt: skip
    source, port = database
    stream = client.stream(TOPIC)

    def published() -> int:
        names = client.streams()
        return stream.info().partitions[0].next_offset if TOPIC in names else 0

    with connect_worker(
        tmp_path, worker(url, tmp_path), connector(port), jars=DEBEZIUM
    ) as log:  # the two that were there
        wait_until(lambda: published() == 2 or " ERROR " in log.read_text(), LIMIT_S)
        assert published() == 2, log.read_text()[-5_000:]
        assert pipeline.run_once() == 2
        columns = {"id": "int", "name": "string", "city": "string", "__deleted": "string"}
        rename(set_schema(lake.get(TOPIC), columns), "__deleted", "deleted")
        source.execute("INSERT INTO customers VALUES (3, 'Cleo', 'Cairo')")
        source.execute("UPDATE customers SET city = 'Paris' WHERE id = 1")
        source.execute("DELETE FROM customers WHERE id = 2")
        wait_until(lambda: published() == 6, LIMIT_S)
    assert pipeline.run_once() == 4

    rows = lake.get(TOPIC).scan().to_arrow().sort_by("offset").to_pylist()
    values = [row["value"] and json.loads(row["value"]) for row in rows]
    assert [value and value["__op"] for value in values] == ["r", "r", "c", "u", "d", None]
    assert [json.loads(row["key"])["id"] for row in rows] == [1, 2, 3, 1, 2, 2]
    assert [(row["id"], row["city"], row["deleted"]) for row in rows[2:]] == [
        (3, "Cairo", "false"), (1, "Paris", "false"), (2, None, "true"), (None, None, None),
    ]  # fmt: skip
    assert not any(row["rejected"] for row in rows)
    pipeline.compact([TOPIC])
    newest = lake.get(TOPIC, "latest").scan().to_arrow().to_pylist()
    found = {json.loads(row["key"])["id"]: json.loads(row["value"])["city"] for row in newest}
    assert found == {1: "Paris", 3: "Cairo"}
