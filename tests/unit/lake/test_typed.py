"""JSON values become columns; what does not fit is set aside with the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.types import LongType, StringType

from nexo.errors import InvalidOption
from nexo.lake.files import target
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.rows import ROWS
from nexo.lake.typed import infer, rename, set_permissive, set_schema

from .conftest import Filler


def typed_rows(filler: Filler, *names: str) -> list[tuple[object, ...]]:
    rows = filler.table.refresh().scan().to_arrow().sort_by("offset").to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


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
    rows = typed_rows(filler, "id", "tags", "rejected")
    assert rows[0] == (1, '["a"]', None)
    assert rows[1][:2] == (None, None)
    assert "id" in str(rows[1][2])
    assert rows[2][2] is not None
    assert rows[3] == rows[4] == (None, None, None)
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
    fields = ["Timestamp", "ID", "id", "Id", "key", "value_key", "a.b", "my field", ""]
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
        update.delete_column("b")
    filler.append([b'{"a": 1, "b": 2}'])
    assert typed_rows(filler, "a", "note", "rejected") == [(1, None, None)]
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
    refused: list[dict[str, Any]] = [{"a": "long"}, {"b": "decimal"}, {"b": ["long"]}]
    for wanted in refused:
        with pytest.raises(InvalidOption):
            set_schema(filler.table, wanted)
    with pytest.raises(InvalidOption, match="no typed column"):
        rename(filler.table, "value", "x")
    with pytest.raises(InvalidOption, match="already"):
        rename(filler.table, "a", "Offset")
    with pytest.raises(InvalidOption, match="new name"):
        rename(filler.table, "a", "")
    assert target(filler.table.refresh()).schema == before


def test_a_schema_is_inferred_from_what_was_published() -> None:
    values = [b'{"a": 1, "b": "x", "c": null}', b'{"a": 1.5, "b": 2, "d": [1]}', b"raw", None]
    values.append(b"[" * 100_000)
    assert infer(values) == {"a": "double", "b": "json", "d": "json"}


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
    assert [row["rejected"] is None for row in found] == [True, False, False, True]
    assert "$.n" in found[1]["rejected"]
    assert "$.s" in found[1]["rejected"]
    filler.table = set_permissive(filler.table, False)
    filler.append([bad])
    last = filler.table.scan("offset = 4").to_arrow().to_pylist()[0]
    assert (last["more"], last["at"]) == (None, None)
