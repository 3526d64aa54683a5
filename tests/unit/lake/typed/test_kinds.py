"""Types of columns as people write them (SPEC I11)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nexo.errors import InvalidOption
from nexo.lake.typed.kinds import arrow_type, parse, widened


@pytest.mark.parametrize(
    "text",
    [
        "long",
        "decimal(10, 2)",
        "list<map<string, list<double>>>",
        'struct<street: string, "zip code": int, größe: float, inner: struct<a: json>>',
        "map<long, struct<at: timestamp, raw: binary>>",
    ],
)
def test_a_type_is_written_as_it_is_read(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(text.replace(" ", "").replace("zipcode", "zip code")) == parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a type"),
        ("int8", "'int8' is not a type"),
        ("decimal", "expected '\\('"),
        ("decimal(39, 2)", "1 to 38 digits"),
        ("decimal(2, 3)", "1 to 38 digits"),
        ("decimal(2.5, 1)", "is not expected"),
        ("list<long", "expected '>'"),
        ("list<long>>", "follows a whole type"),
        ("map<double, long>", "keys of a map"),
        ("struct<>", "a field's name"),
        ("struct<a int>", "expected ':'"),
        ("struct<a: int, A: int>", "two fields"),
        ('struct<"a.b": int>', "cannot be named"),
        ("list<" * 11 + "int" + ">" * 11, "nested more than 10"),
        (f"struct<{', '.join(f'f{n}: int' for n in range(1_001))}>", "more than 1,000 fields"),
        (["long"], "not one of"),
    ],
)
def test_what_is_no_type_is_refused_with_the_reason(text: object, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        parse(text)


def test_types_are_stored_as_arrow_and_parquet_have_them() -> None:
    assert arrow_type(parse("list<decimal(20, 3)>")).value_type == pa.decimal128(20, 3)
    found = arrow_type(parse("struct<a: map<string, json>>"))
    assert found == pa.struct([("a", pa.map_(pa.string(), pa.string()))])


def test_types_grow_by_what_keeps_stored_values() -> None:
    old = parse("struct<a: int, l: list<struct<x: float, d: decimal(5, 2)>>>")
    new = parse("struct<l: list<struct<x: double, y: string, d: decimal(9, 2)>>, b: date>")
    grown = widened(old, new, "column 'c'")
    assert str(grown) == (
        "struct<a: int, l: list<struct<x: double, d: decimal(9, 2), y: string>>, b: date>"
    )
    for other in ("list<int>", "struct<a: string>", "struct<A: int>"):
        with pytest.raises(InvalidOption, match="column 'c'"):
            widened(old, parse(other), "column 'c'")
    with pytest.raises(InvalidOption, match="cannot become"):
        widened(parse("decimal(9, 2)"), parse("decimal(9, 3)"), "column 'c'")
