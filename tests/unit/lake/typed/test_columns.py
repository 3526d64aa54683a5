"""JSON values become columns; what does not fit is set aside with the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType, TimeType

from nexo.errors import InvalidOption
from nexo.lake.files import target
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.ordered import row_groups
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.rows import rows
from nexo.lake.typed.columns import rename, set_additions, set_permissive, set_schema
from nexo.lake.typed.infer import infer
from nexo.lake.typed.values import Parser
from tests.unit.lake.conftest import Filler, make_batch


def typed_rows(filler: Filler, *names: str) -> list[tuple[object, ...]]:
    table = filler.table.refresh()
    groups = (row_groups(table.io, part.path, target(table).schema) for part in file_ranges(table))
    found = pa.concat_tables(chain.from_iterable(groups)).sort_by("offset").to_pylist()
    return [tuple(row[name] for name in names) for row in found]


def test_fields_become_columns_and_misfits_are_rejected(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"id": "long", "at": "timestamp", "tags": "json"})
    filler.append(
        [
            b'{"id": 1, "at": "2024-01-14T12:00:00Z", "tags": ["a"]}',
            b'{"id": "one"}',
            b"not json",
            None,
            b'{"other": 1}',
        ],
        keys=[b"k"] * 5,
    )
    found = typed_rows(filler, "id", "tags", "rejected")
    assert found[0] == (1, '["a"]', None)
    assert found[1][:2] == (None, None)
    assert "id" in str(found[1][2])
    assert found[2][2] is not None
    assert found[3] == found[4] == (None, None, None)
    assert [value for (value,) in typed_rows(filler, "value")][1] == b'{"id": "one"}'


def test_columns_are_added_widened_and_renamed_without_rewriting(filler: Filler) -> None:
    filler.append([b'{"a": 0}'])
    filler.table = set_schema(filler.table, {"a": "int"})
    filler.append([b'{"a": 1}'])
    filler.table = set_schema(filler.table, {"a": "long", "b": "string"})
    filler.append([b'{"a": 9000000000, "b": "x"}'])
    filler.table = rename(filler.table, "a", "amount")
    filler.append([b'{"a": 3, "b": "y"}'])
    expected = [(None, None), (1, None), (9_000_000_000, "x"), (3, "y")]
    assert typed_rows(filler, "amount", "b") == expected
    assert len(list(filler.table.scan().plan_files())) == 4
    maintain(filler.table, Care(min_files=2))
    assert typed_rows(filler, "amount", "b") == expected


def test_fields_named_like_our_columns_get_a_prefix(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"key": "string", "rejected": "boolean"})
    filler.append([b'{"key": "inner", "rejected": true}'], keys=[b"outer"])
    assert typed_rows(filler, "key", "value_key", "value_rejected", "rejected") == [
        (b"outer", "inner", True, None)
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", b'{"a": "0001-01-01T00:00:00+14:00"}'),
        ("timestamp", b'{"a": "9999-12-31T23:59:59-14:00"}'),
        ("json", b'{"a": "\xff"}'),
        ("json", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("long", b'{"a": 1, "other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("float", b'{"a": 1e300}'),
    ],
)
def test_no_value_stops_the_others(filler: Filler, kind: str, value: bytes) -> None:
    """SPEC I2: one bad record is a dead letter, whatever is wrong with it."""
    filler.table = set_schema(filler.table, {"a": kind})
    filler.append([value, b'{"a": null}'])
    (bad, reason), good = typed_rows(filler, "a", "rejected")
    assert bad is None
    assert reason
    assert good == (None, None)


def test_times_are_in_utc_whatever_their_zone(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"at": "timestamp"})
    texts = (b"2026-01-01T00:00:00+02:00", b"2025-12-31T22:00:00", b"2025-12-31T22:00:00Z")
    filler.append([b'{"at": "%s"}' % text for text in texts])
    assert {at for (at,) in typed_rows(filler, "at")} == {datetime(2025, 12, 31, 22, tzinfo=UTC)}


def test_a_field_named_like_a_renamed_column_gets_one_of_its_own(filler: Filler) -> None:
    filler.table = rename(set_schema(filler.table, {"amount": "double"}), "amount", "amt")
    filler.table = set_schema(filler.table, {"amt": "long"})
    filler.append([b'{"amount": 1.5, "amt": 7}'])
    assert typed_rows(filler, "amt", "value_amt") == [(1.5, 7)]


def test_columns_differ_in_more_than_case_and_may_have_any_name(filler: Filler) -> None:
    """SQL does not tell ``ID`` from ``id``, nor ``Timestamp`` from our own."""
    fields = ["Timestamp", "ID", "id", "Id", "key", "value_key", "a.b", "my field", "", "day"]
    filler.table = set_schema(filler.table, dict.fromkeys(fields, "long"))
    names = [column.lower() for column in filler.table.schema().column_names]
    assert len(set(names)) == len(names) == 8 + len(fields)
    filler.append([json.dumps({field: n for n, field in enumerate(fields)}).encode()])
    (row,) = filler.table.scan().to_arrow().drop(ROWS.names).to_pylist()
    assert row.pop("rejected") is None
    assert list(row.values()) == list(range(len(fields)))
    filler.table = set_schema(filler.table, {"other": "int", "a.c": "int"})
    filler.table = set_schema(filler.table, {"a.c": "long"})
    assert rename(filler.table, "a.c", "c").schema().find_field("c").field_type == LongType()


def test_columns_that_others_add_or_drop_stop_nothing(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"a": "long", "b": "float"})
    with filler.table.update_schema() as update:
        update.add_column("note", StringType())
        update.add_column("clock", TimeType())  # of a type that we never write
        update.delete_column("b")
    filler.append([b'{"a": 1, "b": 2}'])
    assert typed_rows(filler, "a", "note", "clock", "rejected") == [(1, None, None, None)]
    filler.table = set_schema(filler.table, {"b": "string"})  # now it may be anything
    filler.append([b'{"a": 1, "b": "2"}'])
    assert typed_rows(filler, "a", "b") == [(1, None), (1, "2")]


def test_columns_and_their_fields_change_in_one_commit(filler: Filler) -> None:
    """SPEC I4: a pipeline that looks in between would find columns that it cannot fill."""
    before = len(filler.table.metadata.metadata_log)
    filler.table = set_schema(filler.table, {"a": "long"})
    assert len(filler.table.metadata.metadata_log) == before + 1


def test_what_cannot_be_is_refused(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"a": "string"})
    before = target(filler.table).schema
    refused: list[dict[str, Any]] = [
        {"a": "long"},
        {"b": "decimal"},
        {"b": ["long"]},
        {"b": "x<y>"},
    ]
    for wanted in refused:
        with pytest.raises(InvalidOption):
            set_schema(filler.table, wanted)
    with pytest.raises(InvalidOption, match="no typed column"):
        rename(filler.table, "value", "x")
    with pytest.raises(InvalidOption, match="already"):
        rename(filler.table, "a", "Offset")
    with pytest.raises(InvalidOption, match="already"):
        rename(filler.table, "a", "day")  # a partition's name
    with pytest.raises(InvalidOption, match="new name"):
        rename(filler.table, "a", "")
    assert target(filler.table.refresh()).schema == before


def test_a_schema_is_inferred_from_what_was_published() -> None:
    values = [b'{"a": 1, "b": "x", "c": null}', b'{"a": 1.5, "b": 2, "d": [1]}', b"raw", None]
    values.append(b"[" * 100_000)
    assert infer(values) == {"a": "double", "b": "json", "d": "list<long>"}


def test_nested_values_are_inferred_within_bounds() -> None:
    """SPEC I11: structs and lists as deep as they are few, maps for ever new keys, else JSON."""
    values = [
        b'{"a": {"x": 1, "y": [1, 2.5], "z": null}, "e": [], "o": {}, "m": [1, "x"], "n": [null]}',
        b'{"a": {"x": 2, "w": "2026-01-31", "y": []}, "deep": [[[[[1]]]]], "odd": {"a.b": 1}}',
        b'{"big": 1e999, "dup": {"a": 1, "A": 2}}',
    ]
    assert infer(values) == {
        "a": "struct<x: long, y: list<double>, w: date>", "e": "json", "o": "json",
        "m": "list<json>", "n": "json", "deep": "list<list<list<list<json>>>>",
        "odd": "map<string, long>", "big": "json", "dup": "map<string, long>",
    }  # fmt: skip
    ids = [b'{"by_id": {"%d": {"n": %d}}}' % (n, n) for n in range(200)]
    assert infer(ids) == {"by_id": "map<string, struct<n: long>>"}
    mixed = [b'{"by_id": {"%d": %s}}' % (n, b"1" if n % 2 else b'"x"') for n in range(200)]
    assert infer(mixed) == {"by_id": "json"}


def test_inference_keeps_within_what_columns_hold() -> None:
    """P12: 10^20 is no long, ISO times are times, and a map of ids is not thousands of columns."""
    values = [
        b'{"big": 100000000000000000000, "at": "2026-01-31T12:00:00Z", "on": "2026-01-31"}',
        b'{"big": 1, "at": "2026-01-31T12:00:00.5+02:00", "on": "2026-02-01", "text": "2026"}',
        b'{"mixed": "2026-01-31", "n": -9223372036854775808}',
        b'{"mixed": "yesterday", "n": 9223372036854775807}',
    ]
    assert infer(values) == {
        "big": "json", "at": "timestamp", "on": "date", "text": "string", "mixed": "string",
        "n": "long",
    }  # fmt: skip
    many = [b'{"id": 1, "k%d": 1}' % n for n in range(1_000)]
    found = infer(many)
    assert len(found) == 200
    assert found["id"] == "long"


def test_in_permissive_mode_one_bad_field_costs_only_its_own_column(filler: Filler) -> None:
    """P14: one bad field nulled the whole row."""
    table = set_schema(filler.table, {"n": "int", "at": "timestamp", "more": "json", "s": "string"})
    filler.table = set_permissive(table, True)
    good = b'{"n": 1, "at": "2026-01-31T12:00:00Z", "more": {"a": [1]}, "s": "x"}'
    bad = b'{"n": "no", "at": "2026-01-31T12:00:00Z", "more": {"a": [1]}, "s": 5}'
    filler.append([good, bad, b"no JSON", b'{"n": 3}'])
    found = filler.table.scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["n"] for row in found] == [1, None, None, 3]
    assert [row["more"] for row in found] == ['{"a": [1]}', '{"a": [1]}', None, None]
    assert [row["s"] for row in found] == ["x", None, None, None]
    assert found[0]["at"] == found[1]["at"]
    assert [row["rejected"] is None for row in found] == [True, True, False, True]
    assert [row["misfits"] is None for row in found] == [True, False, True, True]
    assert "$.n" in found[1]["misfits"]
    assert "$.s" in found[1]["misfits"]
    filler.table = set_permissive(filler.table, False)
    filler.append([bad])
    last = filler.table.scan("offset = 4").to_arrow().to_pylist()[0]
    assert (last["more"], last["at"], last["misfits"]) == (None, None, None)
    assert last["rejected"]


def test_in_permissive_mode_what_is_nested_fits_as_far_as_it_does(filler: Filler) -> None:
    """SPEC I11: bad fields alone are null."""
    wanted = {
        "who": "struct<n: int, name: string>",
        "lines": "list<struct<d: decimal(4, 2), s: string>>",
        "m": "map<long, int>",
        "id": "long",
    }
    filler.table = set_permissive(set_schema(filler.table, wanted), True)
    bad = (
        b'{"who": {"n": "x", "name": "Ada"}, "lines": [{"d": 1.234, "s": "a"}, 7, {"d": 1}],'
        b' "m": {"5": 1, "6": "x"}, "id": 1}'
    )
    filler.append([bad, b'{"who": 1, "lines": 2, "m": {"a": 1}, "id": 2}'])
    first, second = typed_rows(filler, "id", "who", "lines", "m", "misfits", "rejected")
    lines = [{"d": None, "s": "a"}, None, {"d": Decimal("1.00"), "s": None}]
    assert first[:4] == (1, {"n": None, "name": "Ada"}, lines, [(5, 1), (6, None)])
    assert str(first[4]).count(" - at ") == 4
    assert second[:4] == (2, None, None, None)
    assert first[5] is second[5] is None
    many = b'{"lines": [%s]}' % b",".join([b"1"] * 1_000)
    filler.append([many])
    assert str(typed_rows(filler, "misfits")[2][0]).endswith("and 990 more")


def test_a_field_named_misfits_is_not_taken_for_ours(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"misfits": "long"})
    with pytest.raises(InvalidOption, match="rename it first"):
        set_permissive(filler.table, True)
    filler.table = set_permissive(rename(filler.table, "misfits", "odd"), True)
    filler.append([b'{"misfits": 1}', b'{"misfits": "x"}'])
    assert [odd for (odd,) in typed_rows(filler, "odd")] == [1, None]


def test_nested_values_and_decimals_become_columns(filler: Filler) -> None:
    """SPEC I11: structs, lists, maps and exact decimals, and what does not fit says where."""
    filler.table = set_schema(
        filler.table,
        {
            "price": "decimal(6, 2)",
            "who": "struct<name: string, at: timestamp, more: json>",
            "lines": "list<struct<sku: string, price: decimal(6, 2)>>",
            "tags": "map<string, long>",
            "raw": "binary",
        },
    )
    good = (
        b'{"price": 12.5, "who": {"name": "Ada", "at": "2026-01-01T01:00:00+01:00", "more": [1]},'
        b' "lines": [{"sku": "a", "price": "1.10"}, null, {}], "tags": {"a": 1, "b": null},'
        b' "raw": "/w=="}'
    )
    bad = [
        b'{"price": 1.005}', b'{"price": 12345.00}', b'{"price": "NaN"}', b'{"price": 1e400}',
        b'{"lines": [{"price": 1.234}]}', b'{"lines": {"sku": "a"}}', b'{"tags": {"a": "x"}}',
        b'{"who": {"at": "9999-12-31T23:59:59-14:00"}}', b'{"raw": "!"}',
    ]  # fmt: skip
    filler.append([good, *bad, b'{"price": null, "who": null, "lines": [], "tags": {}}'])
    names = ("price", "who", "lines", "tags", "raw", "rejected")
    first, *refused, last = typed_rows(filler, *names)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert first[:3] == (
        Decimal("12.50"),
        {"name": "Ada", "at": at, "more": "[1]"},
        [{"sku": "a", "price": Decimal("1.10")}, None, {"sku": None, "price": None}],
    )
    assert first[3:] == ([("a", 1), ("b", None)], b"\xff", None)
    assert last == (None, None, [], [], None, None)
    assert all(row[:5] == (None,) * 5 for row in refused)
    assert "decimal(6, 2) - at `$.lines[...].price`" in str(refused[4][5])
    assert "$.who.at" in str(refused[7][5])


def test_nested_columns_grow_without_rewriting(filler: Filler) -> None:
    first = {
        "who": "struct<n: int>",
        "by": "map<string, struct<d: decimal(4, 2)>>",
        "all": "list<struct<a: float>>",
        "d": "decimal(4, 2)",
    }
    filler.table = set_schema(filler.table, first)
    filler.append([b'{"who": {"n": 1}, "by": {"k": {"d": 1.5}}, "all": [{"a": 1}], "d": 1.25}'])
    more = {
        "who": "struct<n: long, name: string>",
        "by": "map<string, struct<d: decimal(9, 2), x: date>>",
        "all": "list<struct<a: double, b: map<string, int>>>",
        "d": "decimal(12, 2)",
    }
    filler.table = set_schema(filler.table, more)
    filler.append(
        [b'{"who": {"n": 5000000000, "name": "x"}, "all": [{"b": {"k": 1}}], "d": 12345}']
    )
    assert typed_rows(filler, "by")[0] == ([("k", {"d": Decimal("1.50"), "x": None})],)
    expected = [
        ({"n": 1, "name": None}, [{"a": 1.0, "b": None}], Decimal("1.25")),
        ({"n": 5_000_000_000, "name": "x"}, [{"a": None, "b": [("k", 1)]}], Decimal("12345.00")),
    ]
    assert typed_rows(filler, "who", "all", "d") == expected
    maintain(filler.table, Care(min_files=2))
    assert typed_rows(filler, "who", "all", "d") == expected
    with pytest.raises(InvalidOption, match="column 'who', field 'n', is long"):
        set_schema(filler.table, {"who": "struct<n: string>"})


def test_fields_of_structs_and_points_in_names_are_told_apart(filler: Filler) -> None:
    """Iceberg knows the field b of a struct a as ``a.b``."""
    filler.table = set_schema(filler.table, {"a.b": "long"})
    filler.table = set_schema(filler.table, {"a": "struct<b: string>"})
    filler.table = set_schema(filler.table, {"value_a.c": "int"})
    filler.append([b'{"a.b": 1, "a": {"b": "x"}, "value_a.c": 2}'])
    (row,) = filler.table.scan().to_arrow().drop(ROWS.names).to_pylist()
    assert [row["a.b"], row["value_a"]] == [1, {"b": "x"}]
    assert 2 in row.values()


def test_new_fields_of_values_are_found_with_types_that_fit(filler: Filler) -> None:
    """SPEC I11: automatic additions, within bounds, and never of a refused value."""
    filler.table = set_additions(set_schema(filler.table, {"id": "long"}), True)
    parser = Parser(target(filler.table).typed or pytest.fail("no terms"))
    batch = make_batch(
        0,
        [
            b'{"id": 1, "amount": 1, "to": {"zip": 1}}',
            b'{"id": 2, "amount": 1.5, "to": {"zip": 2, "street": "x"}, "none": null}',
            b'{"id": "x", "never": 1}', b"no JSON", b'{"id": 3}',
        ],
    )  # fmt: skip
    found = parser.add_to(pa.Table.from_batches([rows(batch, 0, 0, 5)]))
    assert found.column("id").to_pylist() == [1, 2, None, None, 3]
    assert parser.new_fields() == {"amount": "double", "to": "struct<zip: long, street: string>"}
    many = {f"f{n}": "long" for n in range(199)}
    filler.table = set_schema(filler.table, many)
    assert Parser(target(filler.table).typed or pytest.fail("no terms")).new_fields() == {}
