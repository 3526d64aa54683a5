"""One set of names, types and results: DuckDB and Spark answer alike (SPEC I10)."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import pytest
from pyspark.sql.types import DataType, StructType

import nexo
from nexo.contracts import StreamContract
from nexo.lake.catalog import Lake
from nexo.lake.typed import columns as typed
from nexo.sql.engine import Engine
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.types import spark_type
from pyspark_nexo.views import register_views
from tests.unit.lake.typed import test_protobuf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    "select group_id, kind, topics, generation, updated_at is null from stream_groups order by 1",
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

CONTRACT_QUERIES = [
    "select * from {0} where offset < 4 order by partition, offset",
    "select id, who.name, who.at, who.more, tags['a'] as a from {0} order by id nulls last, offset",
    "select sum(price), min(price), max(price), count(price) from {0}",
    "select id, lines from {0} where array_contains(sizes, 2) order by id",
    "select rejected is null, misfits is null, count(*) from {0} group by 1, 2 order by 1, 2",
    "select count(*) from {0}_dead_letters",
]
"""Of streams with nested columns, whatever the values' format is."""


def fill(client: nexo.Client, pipeline: Pipeline, lake: Lake, url: str) -> None:
    """Records in both tiers: typed, refused, keyed, deleted, bytes, with headers and groups."""
    orders = client.stream("orders").create(partitions=2, tiering=True, cleanup="delete,compact")
    typed.set_schema(
        StreamContract(lake, url, "orders").table(), {"amount": "double", "who": "string"}
    )
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


NESTED = {
    "id": "int", "price": "decimal(10, 2)", "tags": "map<string, long>", "sizes": "list<int>",
    "who": "struct<name: string, at: timestamp, more: json>",
    "lines": "list<struct<sku: string, price: decimal(10, 2), raw: binary, day: date>>",
}  # fmt: skip
AVRO: dict[str, Any] = {
    "type": "record", "name": "N", "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "sizes", "type": {"type": "array", "items": "int"}},
        {"name": "who", "type": ["null", {"type": "record", "name": "Who", "fields": [
            {"name": "name", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "more", "type": ["null", "int", "string"]}]}]},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"},
                {"name": "price", "type": ["null", {
                    "type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]},
                {"name": "raw", "type": "bytes"},
                {"name": "day", "type": {"type": "int", "logicalType": "date"}}]}}},
    ],
}  # fmt: skip


def nested(n: int) -> dict[str, Any]:
    """A value of `AVRO`; as JSON it fits `NESTED`."""
    who = {"name": f"ü{n}", "at": datetime(2026, 1, 1 + n, tzinfo=UTC), "more": n}
    line = {"sku": "a", "price": Decimal(n) / 4, "raw": b"\xff", "day": date(2026, 1, 1)}
    return {
        "id": n, "price": Decimal(n) / 4, "tags": {"a": n, "b": 0}, "sizes": list(range(n)),
        "who": who if n % 3 else None, "lines": [line, line | {"price": None}][: n % 3],
    }  # fmt: skip


def as_json(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value)


def as_avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


ENCODINGS = (as_json, as_avro)


def fill_contracts(client: nexo.Client, pipeline: Pipeline, lake: Lake) -> None:
    """Nested columns in both tiers, of JSON, Avro and Protobuf, that grew in between."""
    names = ("nested", "coded", "messages")
    contracts = [client.contract(name, lake=str(lake.settings.folder)) for name in names]
    streams = [client.stream(name).create(partitions=2, tiering=True) for name in names]
    contracts[0].set(NESTED)
    contracts[1].avro(AVRO)
    contracts[2].protobuf(test_protobuf.DESCRIPTORS, "shop.Order", schema_id=5)
    for first in (0, 6):
        for contract, stream, encode in zip(contracts[:2], streams, ENCODINGS, strict=False):
            contract.permissive()
            values = [encode(nested(n)) for n in range(first, first + 6)]
            stream.publish_many(values, keys=[str(n) for n in range(6)])
            stream.publish_many([b'{"id": 5000000000, "sizes": [1, "x"]}', b"neither"])
        streams[2].publish_many([b"\0\0\0\0\5\0" + test_protobuf.order(), b"none"])
        if first == 0:
            pipeline.run_once()
            grown = {"id": "long", "who": "struct<age: int>", "price": "decimal(12, 2)"}
            for contract in contracts[:2]:
                contract.set(grown)


def values(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows as both engines' Python values: bytes, times in UTC, structs and maps as dicts."""

    def one(item: Any) -> Any:
        match item:
            case bytearray():
                return bytes(item)
            case datetime():
                return item.astimezone(UTC)
            case tuple() if hasattr(item, "asDict"):
                return {name: one(each) for name, each in item.asDict().items()}
            case dict():
                return {name: one(each) for name, each in item.items()}
            case list():
                return [one(each) for each in item]
        return item

    return [tuple(map(one, row)) for row in rows]


def test_both_engines_give_the_same_names_types_and_results(
    client: nexo.Client, pipeline: Pipeline, lake: Lake, url: str
) -> None:
    fill(client, pipeline, lake, url)
    spark, duck = pipeline.spark, Engine(lake, url)
    register_views(spark, lake, url)
    for query in QUERIES:
        compare(spark, duck, query)


def compare(spark: SparkSession, duck: Engine, query: str) -> list[tuple[Any, ...]]:
    """Both engines' answers, which are the same; returns the rows."""
    frame = spark.sql(query)
    theirs = values([tuple(row) for row in frame.collect()])
    ours = duck.query(query)
    assert values(ours.rows()) == theirs, query
    named = [name for name in frame.columns if "(" not in name and " " not in name]
    assert [name for name in ours.columns if name in named] == named, query
    return theirs


def test_both_engines_show_contracts_alike(
    client: nexo.Client, pipeline: Pipeline, lake: Lake, url: str
) -> None:
    """SPEC I11: nested types, decimals, misfits, of every format, in the log and the lake."""
    fill_contracts(client, pipeline, lake)
    spark, duck = pipeline.spark, Engine(lake, url)
    register_views(spark, lake, url)
    for name in ("nested", "coded"):
        for query in CONTRACT_QUERIES:
            assert compare(spark, duck, query.format(name))
        theirs = spark.sql(f"select * from {name}").schema
        ours = duck.query(f"select * from {name} limit 0").arrow().schema
        assert [str(spark_type(each.type)) for each in ours] == [
            str(without_ids(each.dataType)) for each in theirs
        ]
    query = "select m.id, state, lines, stock['x'] as x, m.at, parent, rejected from messages m"
    rows = compare(spark, duck, f"{query} order by m.partition, m.offset")
    assert [row[0] for row in rows].count(7) == 2
    count = "select count(*), count(misfits), count(rejected), count(who.age) from {}"
    assert duck.query(count.format("nested")).rows() == [(16, 2, 2, 0)]
    assert duck.query(count.format("coded")).rows() == [(16, 0, 4, 0)]


def without_ids(kind: DataType) -> DataType:
    """A type as text would have it: without the marks by which files are read."""
    found = DataType.fromDDL(f"x {kind.simpleString()}")
    assert isinstance(found, StructType)
    return found["x"].dataType


@pytest.mark.parametrize("query", ["selec", "select * from nowhere", "select nope from orders"])
def test_both_engines_refuse_what_makes_no_sense(
    client: nexo.Client, lake: Lake, url: str, query: str
) -> None:
    client.stream("orders").create().publish(b"x")
    with pytest.raises(nexo.NexoError):
        Engine(lake, url).query(query)
