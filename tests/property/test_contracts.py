"""Contracts against any value: inferred columns fit, and no bytes stop the others (SPEC I11)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

import pyarrow as pa

from nexo.lake.typed.avro import avro_format
from nexo.lake.typed.columns import ParsedColumn, Terms
from nexo.lake.typed.formats import ValueFormat
from nexo.lake.typed.infer import infer, merged
from nexo.lake.typed.kinds import parse
from nexo.lake.typed.values import Parser

NAMES = st.sampled_from(["a", "A", "b", "c.d", "my field", "ü", "0"])
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["2026-01-31", "2026-01-31T12:00:00Z", "0001-01-01T00:00:00+14:00", "20", ""])
    | st.text(max_size=5)
)
ITEMS: st.SearchStrategy[Any] = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)
)
RECORDS = st.lists(st.dictionaries(NAMES, ITEMS, max_size=5), min_size=1, max_size=6)
AVRO = {
    "type": "record", "name": "R", "fields": [
        {"name": "n", "type": "long"},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "l", "type": {"type": "array", "items": ["null", "string", "double"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "int", "logicalType": "date"}}},
        {"name": "r", "type": ["null", "R"]},
    ],
}  # fmt: skip


def taken(
    columns: dict[str, str],
    values: list[bytes],
    *,
    permissive: bool = False,
    value_format: ValueFormat | None = None,
) -> pa.Table:
    """The values taken apart into these columns."""
    found = [ParsedColumn(name, n, kind) for n, (name, kind) in enumerate(columns.items())]
    names = {n: f"c{n}" for n in range(len(columns))}
    parser = Parser(Terms(found, names, permissive, format=value_format))
    return parser.add_to(pa.table({"value": pa.array(values, pa.binary())}))


@given(RECORDS, RECORDS)
def test_inferred_columns_fit_the_values_they_come_from(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    halves = [[msgspec.json.encode(each) for each in part] for part in (first, second)]
    values = halves[0] + halves[1]
    found = infer(values)
    assert all(str(parse(kind)) == kind for kind in found.values())
    both = merged(infer(halves[0]), infer(halves[1]))  # as partitions of a micro-batch find them
    for columns in (found, both):
        assert taken(columns, values).column("rejected").null_count == len(values)
    assert both.keys() == found.keys()


@given(RECORDS, RECORDS)
def test_in_permissive_mode_no_object_is_refused(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    values = [msgspec.json.encode(each) for each in second]
    rows = taken(infer([msgspec.json.encode(each) for each in first]), values, permissive=True)
    assert rows.column("rejected").null_count == len(values)


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_any_bytes_are_avro_or_refused(values: list[bytes], permissive: bool) -> None:
    value_format, columns = avro_format(AVRO)
    rows = taken(columns, values, permissive=permissive, value_format=value_format)
    assert rows.num_rows == len(values)
