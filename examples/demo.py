"""A lakehouse in one command: publish, take into Iceberg tables, join and travel in time.

``make demo`` runs it against a server of its own, in a temporary folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import nexo
from nexo import testing
from nexo.cli.sparks import quiet_start
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.lake.typed import set_schema
from pyspark_nexo import register_views, session
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.schemas import stream_table

CHUNK = 20_000
ROUNDS = 2


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
JOIN = """
    select o.country, count(*) as orders, count(p.order) as paid, sum(p.amount) as revenue
    from orders o left join payments p on o.key = p.key
    group by o.country order by o.country
"""


def main(count: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        testing.process(Path(folder) / "nexo") as server,
        nexo.connect(server.url) as client,
    ):
        lake = Lake(LakeSettings(Path(folder) / "nexo" / "lake"))
        for name in ("orders", "payments"):
            client.stream(name).create(partitions=2, tiering=True)
        set_types(lake, server.url)
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
        with step("joining orders and payments over both tiers"):
            register_views(spark, lake, server.url)
            rows = spark.sql(JOIN).collect()
        for row in rows:
            print(f"  {row.country}: {row.orders:,} orders, {row.paid:,} paid, {row.revenue:,}")
        with step("counting orders as of the first run"):
            register_views(spark, lake, server.url, as_of=moments[0])
            earlier = spark.sql("select count(*) from orders").collect()[0][0]
        print(f"  {earlier:,} orders then, {count:,} now")
        spark.stop()


def set_types(lake: Lake, url: str) -> None:
    """Typed columns, so that SQL sees ``country`` and ``amount`` instead of JSON."""
    for name, columns in TYPES.items():
        set_schema(stream_table(lake, url, name), columns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=600_000, help="1 M records with payments")
    main(parser.parse_args().orders)
