"""JSON values become columns; what does not fit is set aside with the reason."""

from __future__ import annotations

import pytest

from nexo.errors import InvalidOption
from nexo.lake.files import target
from nexo.lake.maintain import Care, maintain
from nexo.lake.typed import infer, rename, set_schema

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


def test_what_cannot_be_is_refused(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"a": "string"})
    before = target(filler.table).schema
    for wanted in ({"a": "long"}, {"b": "decimal"}):
        with pytest.raises(InvalidOption):
            set_schema(filler.table, wanted)
    with pytest.raises(InvalidOption, match="no typed column"):
        rename(filler.table, "value", "x")
    with pytest.raises(InvalidOption, match="already"):
        rename(filler.table, "a", "offset")
    assert target(filler.table.refresh()).schema == before


def test_a_schema_is_inferred_from_what_was_published() -> None:
    values = [b'{"a": 1, "b": "x", "c": null}', b'{"a": 1.5, "b": 2, "d": [1]}', b"raw", None]
    assert infer(values) == {"a": "double", "b": "json", "d": "json"}
