"""Avro and Protobuf values become columns as JSON does (SPEC I11)."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from nexo.errors import InvalidInput, InvalidOption
from nexo.lake.maintenance.backfill import Backfilled, backfill
from nexo.lake.typed.avro import avro_format
from nexo.lake.typed.columns import set_additions, set_format, set_permissive, set_schema
from nexo.lake.typed.formats import ValueFormat, extended, format_of, format_text
from tests.unit.lake.conftest import Filler

ORDER: dict[str, Any] = {
    "type": "record", "name": "shop.Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"}, {"name": "n", "type": ["null", "int"]},
            ]}}},
        {"name": "more", "type": {"type": "map", "values": ["null", "string", "long"]}},
        {"name": "first", "type": ["null", "Line"], "default": None},
        {"name": "tree", "type": ["null", {"type": "record", "name": "Tree", "fields": [
            {"name": "x", "type": "double"}, {"name": "next", "type": ["null", "Tree"]},
        ]}], "default": None},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip
COLUMNS = {
    "id": "long", "price": "decimal(8, 2)", "at": "timestamp", "day": "date", "state": "string",
    "lines": "list<struct<sku: string, n: int>>", "more": "map<string, json>",
    "first": "struct<sku: string, n: int>", "tree": "struct<x: double, next: json>",
    "key": "string",
}  # fmt: skip
VALUE = {
    "id": 7, "price": Decimal("12.50"), "at": datetime(2026, 1, 1, tzinfo=UTC),
    "day": date(2026, 1, 31), "state": "PAID", "lines": [{"sku": "a", "n": None}],
    "more": {"a": "x", "b": 5, "c": None}, "first": {"sku": "b", "n": 2},
    "tree": {"x": 0.5, "next": {"x": 1.5, "next": None}},
    "key": "6f1e1d3a-0000-4000-8000-000000000000",
}  # fmt: skip
STORED = VALUE | {
    "more": [("a", '"x"'), ("b", "5"), ("c", None)],
    "tree": {"x": 0.5, "next": '{"x":1.5,"next":null}'},
}


def avro(value: Any, schema: Any = ORDER) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def found(filler: Filler) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        filler.table.refresh().scan().to_arrow().sort_by("offset").to_pylist()
    )
    return rows


def test_avro_values_become_the_columns_of_their_schema(filler: Filler) -> None:
    value_format, columns = avro_format(ORDER)
    assert columns == COLUMNS
    filler.append([avro(VALUE)])
    filler.table = set_format(filler.table, value_format, columns)
    good = avro(VALUE)
    filler.append([good, good[:-3], good + b"x", b"", b'{"id": 1}', None])
    assert backfill(filler.table) == Backfilled(files=1, rows=1)
    first, second, *bad, last = found(filler)
    for row in (first, second):
        own = {"key": "value_key", "day": "value_day"}  # the table has such names already
        assert {name: row[own.get(name, name)] for name in COLUMNS} == STORED
        assert row["rejected"] is None
    assert all(row["id"] is None and "not an Avro value" in row["rejected"] for row in bad)
    assert "1 bytes are left over" in bad[1]["rejected"]
    assert last["rejected"] is None
    with pytest.raises(InvalidOption, match="in a schema"):
        set_additions(filler.table, True)


def test_values_of_a_schema_registry_are_read_by_the_schema_of_their_id(filler: Filler) -> None:
    first = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    second = first | {"fields": [*first["fields"], {"name": "s", "type": "string"}]}
    known = None
    for schema_id, schema in ((1, first), (70_000, second)):
        value_format, columns = avro_format(schema)
        known = extended(known, value_format, schema_id)
        filler.table = set_format(filler.table, known, columns)
    assert format_of(format_text(known)) == known
    assert known is not None
    assert list(known.schemas) == ["1", "70000"]
    values = [
        struct.pack(">BI", 0, 1) + avro({"n": 1}, first),
        struct.pack(">BI", 0, 70_000) + avro({"n": 2, "s": "x"}, second),
        struct.pack(">BI", 0, 9) + avro({"n": 1}, first),
        avro({"n": 1}, first),
    ]
    filler.append(values)
    rows = found(filler)
    assert [(row["n"], row["s"]) for row in rows] == [
        (1, None),
        (2, "x"),
        (None, None),
        (None, None),
    ]
    assert "no schema with the id 9" in rows[2]["rejected"]
    assert "id of a schema" in rows[3]["rejected"]
    plain, _ = avro_format(first)
    assert list(extended(known, plain).schemas) == [""]


def test_in_permissive_mode_avro_fields_that_do_not_fit_are_null(filler: Filler) -> None:
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}  # fmt: skip
    value_format, _ = avro_format(schema)
    filler.table = set_schema(filler.table, {"n": "int", "s": "string"})
    filler.table = set_permissive(set_format(filler.table, value_format, {}), True)
    filler.append([avro({"n": 2**40, "s": "x"}, schema), avro({"n": 1, "s": "y"}, schema)])
    assert [(row["n"], row["s"]) for row in found(filler)] == [(None, "x"), (1, "y")]
    assert "$.n" in found(filler)[0]["misfits"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "not JSON"),
        ({"type": "recrod", "name": "R"}, "bad Avro schema"),
        ('"string"', "is a record"),
        ({"type": "record", "name": "R", "fields": []}, "no fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}, "nothing"),
        (
            {"type": "record", "name": "R", "fields": [
                {"name": "a", "type": {"type": "array", "items": {
                    "type": "fixed", "name": "F", "size": 0}}}]},
            "at least one byte",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": {
                "type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}}]},
            "precision of 1 to 38",
        ),
    ],
)  # fmt: skip
def test_bad_avro_schemas_are_refused_with_the_reason(schema: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        avro_format(schema)


def test_schemas_and_their_ids_have_bounds() -> None:
    value_format, _ = avro_format(ORDER)
    with pytest.raises(InvalidInput, match="between 0 and"):
        extended(None, value_format, 2**32)
    with pytest.raises(InvalidInput, match="more than"):
        extended(None, ValueFormat("avro", {"": "x" * 600_000}))


def test_without_the_packages_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = None; sys.modules['fastavro'] = None\n"
        "from nexo.errors import ConfigError\n"
        "from nexo.lake.typed.avro import avro_format\n"
        "from nexo.lake.typed.protobuf import protobuf_format\n"
        "for call in (lambda: avro_format('{}'), lambda: protobuf_format(b'', 'M')):\n"
        "    try: call()\n"
        "    except ConfigError as error: print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "fastavro is not installed: pip install 'nexo-broker[sql]'",
        "protobuf is not installed: pip install 'nexo-broker[protobuf]'",
    ]
