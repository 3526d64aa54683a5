"""One set of names, types and results: DuckDB and Spark answer alike (SPEC I10)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import nexo
from nexo.lake import typed
from nexo.lake.catalog import Lake
from nexo.sql import Engine
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.schemas import stream_table
from pyspark_nexo.views import register_views

QUERIES = [
    "select count(*), min(offset), max(offset), sum(offset) from orders",
    "select partition, offset, cast(key as string), cast(value as string), headers, value_type "
    "from orders order by partition, offset",
    "select partition, count(*) as n from orders group by partition order by partition",
    "select offset from orders where partition = 0 order by offset desc limit 3 offset 2",
    "select * from orders where partition = 1 order by offset limit 2",
    "select amount, count(*) from orders where amount is not null group by amount order by amount",
    "select sum(amount), avg(amount), max(who) from orders",
    "select rejected is null, count(*) from orders group by 1 order by 1",
    "select get_json_object(cast(value as string), '$.who') as who, count(*) from orders "
    "group by 1 order by 1 nulls first",
    "select topic, count(*) from stream_messages group by topic order by topic",
    "select topic, partition, offset, key, value, headers from stream_messages "
    "where topic = 'a/b' order by offset",
    "select group_id, topic, partition, offset from stream_offsets order by 1, 2, 3",
    "select group_id, kind, topics, generation from stream_groups order by 1",
    "select cast(key as string), cast(value as string) from orders_latest order by 1",
    "select offset, cast(value as string) from orders_dead_letters order by partition, offset",
    "select count(*) from orders a join orders b on a.partition = b.partition "
    "and a.offset = b.offset + 1",
    "select count(*) from orders o join stream_messages m on m.topic = 'orders' "
    "and m.partition = o.partition and m.offset = o.offset",
    "select count(distinct date_trunc('day', timestamp)) <= 2 from orders",
    "with big as (select * from orders where amount > 20) select count(*) from big",
    "select timestamp = max(timestamp) over () from orders order by partition, offset limit 1",
]

Run = Callable[[str], tuple[list[str], list[tuple[Any, ...]]]]


def fill(client: nexo.Client, pipeline: Pipeline, lake: Lake, url: str) -> None:
    """Records in both tiers: typed, refused, keyed, deleted, bytes, with headers and groups."""
    orders = client.stream("orders").create(partitions=2, tiering=True, cleanup="delete,compact")
    typed.set_schema(stream_table(lake, url, "orders"), {"amount": "double", "who": "string"})
    for first in (0, 30):
        orders.publish_many(
            [{"amount": n / 2, "who": f"ü{n % 3}"} for n in range(first, first + 30)],
            keys=[f"k{n % 5}" for n in range(30)],
            headers=[{"n": n} for n in range(30)],
        )
        orders.publish(b"no JSON", key="bad")
        orders.tombstone("k1")
        if first == 0:
            pipeline.run_once()
            pipeline.compact(["orders"])
    client.stream("a/b").create().publish_many([b"\xff\xfe", b"text", b""])
    with client.stream("a/b").consume("readers", wait=0.1) as consumer:
        for record in consumer.fetch():
            consumer.ack(record)


def values(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows as both engines' Python values: bytes, and times in UTC."""

    def one(item: Any) -> Any:
        if isinstance(item, bytearray):
            return bytes(item)
        if isinstance(item, datetime):
            return item.astimezone(UTC)
        return item

    return [tuple(map(one, row)) for row in rows]


def test_both_engines_give_the_same_names_types_and_results(
    client: nexo.Client, pipeline: Pipeline, lake: Lake, url: str
) -> None:
    fill(client, pipeline, lake, url)
    spark, duck = pipeline.spark, Engine(lake, url)
    register_views(spark, lake, url)
    for query in QUERIES:
        frame = spark.sql(query)
        theirs = values([tuple(row) for row in frame.collect()])
        ours = duck.query(query)
        assert values(ours.rows()) == theirs, query
        named = [name for name in frame.columns if "(" not in name and " " not in name]
        assert [name for name in ours.columns if name in named] == named, query


@pytest.mark.parametrize("query", ["selec", "select * from nowhere", "select nope from orders"])
def test_both_engines_refuse_what_makes_no_sense(
    client: nexo.Client, lake: Lake, url: str, query: str
) -> None:
    client.stream("orders").create().publish(b"x")
    with pytest.raises(nexo.NexoError):
        Engine(lake, url).query(query)
