"""Debezium's envelopes: what each record changes, and what is refused and why (SPEC P4)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nexo.errors import InvalidInput
from nexo.lake.own_columns import ROWS
from nexo.lake.typed.columns import ParsedColumn, Terms
from nexo.lake.typed.debezium import (
    DebeziumSettings,
    EnvelopeReader,
    RowChange,
    debezium_format,
    unwrapped,
)
from nexo.lake.typed.kinds import parse
from nexo.lake.typed.reading import BAD
from nexo.lake.typed.values import Parser

COLUMNS = {
    name: parse(kind)
    for name, kind in {
        "id": "long", "price": "decimal(20, 2)", "name": "string", "at": "timestamp",
        "day": "date", "tags": "list<string>", "doc": "json", "blob": "binary",
    }.items()
}  # fmt: skip
UNAVAILABLE = "__debezium_unavailable_value"


def reader(keys: list[str] | None = None, permissive: bool = False, **given: Any) -> EnvelopeReader:
    return EnvelopeReader(COLUMNS, DebeziumSettings(**given), keys, permissive=permissive)


def text(found: object) -> bytes:
    return json.dumps(found).encode()


def envelope(op: str, before: object, after: object, **more: Any) -> bytes:
    source = {"lsn": 24_023_128, "table": "things"}
    return text({"op": op, "before": before, "after": after, "ts_ms": 9, "source": source, **more})


def read(value: bytes | None, key: object = None, **given: Any) -> list[RowChange]:
    return reader(**given).read(None if key is None else text(key), value)


def refused(value: bytes | None, key: object = None, **given: Any) -> str:
    with pytest.raises(BAD) as caught:
        read(value, key, **given)
    return str(caught.value)


@pytest.mark.parametrize("op", ["r", "c", "u"])
def test_what_was_read_made_or_changed_is_the_row_after_it(op: str) -> None:
    (change,) = read(envelope(op, None, {"id": 1, "name": "x"}), {"id": 1})
    assert change == RowChange(op, {"id": 1, "name": "x"}, (), 9, 24_023_128)
    assert not change.deleted


def test_a_delete_has_its_key_from_the_row_or_from_the_record() -> None:
    (of_row,) = read(envelope("d", {"id": 1, "name": "x"}, None), keys=["id"])
    (of_record,) = read(envelope("d", None, None), {"id": 1})
    wrapped = {"schema": {}, "payload": {"id": 1}}
    (of_described,) = read(envelope("d", {"id": None, "name": None}, None), wrapped)
    assert [each.values for each in (of_row, of_record, of_described)] == [{"id": 1}] * 3
    assert of_row.deleted
    assert refused(envelope("d", None, None), keys=["id"]) == "a deleted row without its key"


def test_a_changed_key_is_a_delete_and_an_upsert_in_this_order() -> None:
    gone, made = read(envelope("u", {"id": 1}, {"id": 2, "name": "x"}), {"id": 2})
    assert (gone.op, gone.values, gone.sub) == ("d", {"id": 1}, 0)
    assert (made.op, made.values, made.sub) == ("u", {"id": 2, "name": "x"}, 1)
    assert gone.position == made.position


def test_what_is_no_row_is_nothing() -> None:
    assert read(None, {"id": 1}) == []
    assert read(b"null", {"id": 1}) == []
    assert read(text({"schema": None, "payload": None}), {"id": 1}) == []
    assert read(text({"ts_ms": 5})) == []
    assert read(text({"status": "BEGIN", "id": "571"})) == []
    assert read(text({"ddl": "create table", "source": {}})) == []
    assert read(envelope("m", None, None)) == []


def test_a_truncate_is_one_change_of_all_rows() -> None:
    assert read(envelope("t", None, None)) == [RowChange("t", {}, (), 9, 24_023_128)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (text({"id": 1}), "not an envelope of Debezium"),
        (envelope("x", None, {"id": 1}), "unknown operation 'x'"),
        (envelope("u", None, None), "without the row after it"),
        (envelope("c", None, {"id": None}), "column 'id' of the key is null"),
        (envelope("c", None, {"id": "one"}), "Expected `int | null`, got `str` - at `$.id`"),
        (envelope("c", None, {"id": 1, "price": "1e400"}), "does not fit decimal(20, 2)"),
        (envelope("c", None, {"id": 1, "price": "1.005"}), "does not fit decimal(20, 2)"),
        (envelope("c", None, {"id": 1, "price": "very dear"}), "at `$.price`"),
        (envelope("c", None, {"id": 1, "at": 5}), "a number without a unit"),
        (envelope("c", None, {"id": 1, "day": 10**12}), "not a day of the calendar"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_reason(value: bytes, reason: str) -> None:
    assert reason in refused(value, {"id": 1})


def test_no_key_is_refused() -> None:
    assert "no key" in refused(envelope("c", None, {"id": 1}))
    assert "no key" in refused(envelope("d", None, None), {"other": 1})


EXACT = Decimal("123456789012345678.90")


def encoded(number: int) -> str:
    return base64.b64encode(number.to_bytes(12, signed=True)).decode()


@pytest.mark.parametrize(
    "written",
    [
        '"123456789012345678.90"',
        "123456789012345678.90",
        json.dumps(encoded(12345678901234567890)),
        json.dumps({"scale": 1, "value": encoded(1234567890123456789)}),
    ],
)
def test_decimals_are_exact_however_they_are_written(written: str) -> None:
    value = b'{"op": "c", "after": {"id": 1, "price": ' + written.encode() + b"}}"
    (change,) = read(value, {"id": 1})
    assert change.values["price"] == EXACT


def test_digits_that_may_be_text_or_base64_need_a_setting() -> None:
    value = envelope("c", None, {"id": 1, "price": "1234"})
    assert "may be text or base64" in refused(value, {"id": 1})
    as_text = read(value, {"id": 1}, decimals="text")
    as_base64 = read(value, {"id": 1}, decimals="base64")
    number = int.from_bytes(base64.b64decode("1234"), signed=True)
    assert as_text[0].values["price"] == 1234
    assert as_base64[0].values["price"] == Decimal(number).scaleb(-2)


def test_negative_decimals_and_days_and_times() -> None:
    after = {"id": 1, "price": base64.b64encode(b"\xff").decode(), "day": -1, "at": -1}
    (change,) = read(envelope("c", None, after), {"id": 1}, times="millis", decimals="base64")
    assert change.values["price"] == Decimal("-0.01")
    assert change.values["day"] == date(1969, 12, 31)
    assert change.values["at"] == datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)


def test_what_the_source_did_not_send_is_unknown() -> None:
    after = {"id": 1, "name": UNAVAILABLE, "tags": [UNAVAILABLE], "doc": UNAVAILABLE,
             "blob": base64.b64encode(UNAVAILABLE.encode()).decode(), "price": "1.00"}  # fmt: skip
    (change,) = read(envelope("u", None, after), {"id": 1})
    assert change.unknown == ("name", "tags", "doc", "blob")
    assert change.values == {"id": 1, "price": Decimal("1.00")}
    (other,) = read(envelope("u", None, {"id": 1, "name": "gone"}), {"id": 1}, unavailable="gone")
    assert other.unknown == ("name",)


ROW = [
    {"type": "int64", "field": "id"},
    {"type": "bytes", "field": "price", "name": "org.apache.kafka.connect.data.Decimal",
     "parameters": {"scale": "3", "connect.decimal.precision": "20"}},
    {"type": "int64", "field": "at", "name": "io.debezium.time.MicroTimestamp"},
    {"type": "int32", "field": "day", "name": "io.debezium.time.Date"},
    {"type": "array", "field": "tags", "items": {"type": "string"}},
    {"type": "string", "field": "doc", "name": "io.debezium.data.Json"},
]  # fmt: skip
SCHEMA = {
    "type": "struct",
    "fields": [{"type": "struct", "field": name, "fields": ROW} for name in ("before", "after")],
}


def described(after: object) -> bytes:
    return text({"schema": SCHEMA, "payload": {"op": "c", "after": after}})


def test_an_embedded_schema_says_how_fields_are_written() -> None:
    number = base64.b64encode((12_340).to_bytes(4, "big")).decode()
    after = {"id": 1, "price": number, "at": 1_500_000, "day": 1, "doc": '{"a": 1}', "tags": ["x"]}
    (change,) = read(described(after), {"schema": {}, "payload": {"id": 1}})
    assert change.values == {
        "id": 1, "price": Decimal("12.34"), "at": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
        "day": date(1970, 1, 2), "doc": '{"a": 1}', "tags": ["x"],
    }  # fmt: skip


def test_an_embedded_schema_gives_the_columns() -> None:
    made, columns = debezium_format({"decimals": "text"}, described({"id": 1}))
    assert columns == {
        "id": "long", "price": "decimal(20, 3)", "at": "timestamp", "day": "date",
        "tags": "list<string>", "doc": "json",
    }  # fmt: skip
    assert made.name == "debezium"
    assert debezium_format({}, envelope("c", None, {"id": 1}))[1] == {}
    with pytest.raises(InvalidInput):
        debezium_format({"decimal": "text"})


def test_rows_without_an_envelope_are_upserts_and_tombstones_deletes() -> None:
    given: dict[str, Any] = {"tombstones": "delete"}
    (made,) = read(
        text({"id": 1, "name": "x", "__op": "c", "__deleted": "false"}), {"id": 1}, **given
    )
    (marked,) = read(text({"id": 1, "__op": "d", "__deleted": "true"}), {"id": 1}, **given)
    (gone,) = read(None, {"id": 1}, **given)
    assert (made.op, made.values) == ("c", {"id": 1, "name": "x"})
    assert (marked.op, marked.values) == (gone.op, gone.values) == ("d", {"id": 1})


@pytest.mark.parametrize(
    ("source", "position"),
    [
        ({"lsn": 5}, 5),
        ({"file": "mysql-bin.000003", "pos": 7}, (3 << 40) + 7),
        ({"scn": "42"}, 42),
        ({"connector": "other"}, 0),
    ],
)
def test_the_position_is_that_of_the_sources_log(source: object, position: int) -> None:
    value = text({"op": "c", "after": {"id": 1}, "source": source})
    assert read(value, {"id": 1})[0].position == position


def records(*values: tuple[bytes | None, bytes | None]) -> pa.Table:
    rows = [
        {"partition": 0, "offset": number, "key": key, "value": value}
        for number, (key, value) in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, ROWS)


def test_records_become_a_table_of_changes() -> None:
    key = text({"id": 1})
    rows = records(
        (key, envelope("c", None, {"id": 1, "price": "1.5", "name": UNAVAILABLE})),
        (key, b"{"),
        (key, envelope("u", {"id": 1}, {"id": 2})),
        (key, None),
        (None, envelope("t", None, None)),
    )
    found = unwrapped(rows, reader(), COLUMNS)
    assert [offset for offset, _ in found.rejected] == [1]
    assert found.skipped == 1
    shown = found.changes.select(["id", "price", "_op", "_deleted", "_unknown"]).to_pylist()
    assert [tuple(row.values()) for row in shown] == [
        (1, Decimal("1.50"), "c", False, ["name"]),
        (1, None, "d", True, None),
        (2, None, "u", False, None),
        (None, None, "t", False, None),
    ]
    places = [tuple(each.values()) for each in found.changes.column("_seq").to_pylist()]
    assert places == [
        (24_023_128, 0, 0),
        (24_023_128, 2, 0),
        (24_023_128, 2, 1),
        (24_023_128, 4, 0),
    ]


def test_the_streams_own_table_has_the_row_and_why_a_record_was_refused() -> None:
    made, _ = debezium_format({})
    columns = [ParsedColumn("id", 8, "long"), ParsedColumn("price", 9, "decimal(20, 2)")]
    names = {8: "id", 9: "price"}
    key = text({"id": 1})
    rows = records(
        (key, envelope("c", None, {"id": 1, "price": "2.50"})),
        (key, envelope("c", None, {"id": 1, "price": "very dear"})),
        (key, envelope("d", None, None)),
        (None, envelope("c", None, {"id": 1})),
        (key, None),
    )
    strict = Parser(Terms(columns, names, format=made)).add_to(rows)
    assert strict.column("id").to_pylist() == [1, None, 1, None, None]
    assert strict.column("price").to_pylist() == [Decimal("2.50"), None, None, None, None]
    reasons = strict.column("rejected").to_pylist()
    assert [bool(each) for each in reasons] == [False, True, False, True, False]
    lenient = Parser(Terms(columns, names, permissive=True, format=made)).add_to(rows)
    assert lenient.column("id").to_pylist() == [1, 1, 1, None, None]
    assert "at `$.price`" in lenient.column("misfits").to_pylist()[1]


@pytest.mark.parametrize("depth", [10, 100_000])
def test_hostile_values_are_refused(depth: int) -> None:
    value = b'{"op":"c","after":{"id":1,"doc":' + b"[" * depth + b"]" * depth + b"}}"
    if depth > 1_000:
        refused(value, {"id": 1})
    else:
        assert read(value, {"id": 1})
    refused(envelope("c", None, {"id": 1, "price": {"scale": 10**9, "value": "AQ=="}}), {"id": 1})
    refused(envelope("c", None, {"id": 1, "price": {"scale": 2, "value": ""}}), {"id": 1})
    refused(envelope("c", None, {"id": 1, "at": 10**30}), {"id": 1}, times="millis")
    refused(b'{"op":"c","after":{"id":1,"price":1' + b"0" * 5_000 + b"}}", {"id": 1})
