"""Files are divided as their table is, whoever changed that: readers that prune find all rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.transforms import (
    BucketTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    YearTransform,
)

from nexo.errors import Conflict
from nexo.lake.files import FileWriter, target
from nexo.lake.own_columns import ROWS
from nexo.lake.snapshot import TableChange, draft
from nexo.lake.typed.columns import set_schema
from nexo.lake.writing.layout import layout_of

from ..conftest import DAY_MS, Filler

HOUR_MS = 3_600_000
EqualTo: Any = expressions.EqualTo  # its own types take no column's name
GreaterThan: Any = expressions.GreaterThan
LessThan: Any = expressions.LessThan


def offsets(filler: Filler, wanted: BooleanExpression) -> list[int]:
    """What a reader finds that skips files by partition and by bounds."""
    found = filler.table.refresh().scan(wanted).to_arrow().column("offset").to_pylist()
    return sorted(found)


def divide(filler: Filler, column: str, transform: Transform[Any, Any], name: str) -> None:
    """As another engine's ADD PARTITION FIELD."""
    with filler.table.update_spec() as spec:
        spec.add_field(column, transform, name)


@pytest.mark.parametrize(
    ("column", "transform"),
    [
        ("value_type", IdentityTransform()),
        ("key", IdentityTransform()),
        ("headers", IdentityTransform()),
        ("timestamp", IdentityTransform()),
        ("timestamp", HourTransform()),
        ("timestamp", MonthTransform()),
        ("timestamp", YearTransform()),
        ("key", BucketTransform(4)),
        ("offset", BucketTransform(3)),
        ("timestamp", BucketTransform(3)),
        ("key", TruncateTransform(1)),
        ("offset", TruncateTransform(5)),
    ],
)
def test_records_after_a_new_partition_field_are_found_by_all_who_prune(
    filler: Filler, column: str, transform: Transform[Any, Any]
) -> None:
    keys = [b"a1", b"b2", None, b"a3", b"c4", b"a1"]
    filler.append([b"0"] * 6, keys=keys)
    divide(filler, column, transform, "by-it")
    for day in (0, 1):
        filler.append([b"1"] * 6, keys=keys, at_ms=day * DAY_MS + HOUR_MS)
    for offset in range(18):
        assert offsets(filler, EqualTo("offset", offset)) == [offset]
    assert offsets(filler, EqualTo("key", b"a1")) == [0, 5, 6, 11, 12, 17]
    assert offsets(filler, EqualTo("value_type", 1)) == list(range(18))
    at_six = datetime(1970, 1, 1, 0, 30, tzinfo=UTC).isoformat()
    assert offsets(filler, GreaterThan("timestamp", at_six)) == list(range(6, 18))
    assert offsets(filler, LessThan("timestamp", at_six)) == list(range(6))


def test_files_of_several_fields_have_rows_of_one_value_each(filler: Filler) -> None:
    divide(filler, "key", BucketTransform(4), "key_bucket")
    divide(filler, "offset", TruncateTransform(4), "fours")
    filler.append([b"x"] * 8, keys=[b"a", b"b"] * 4)
    found = filler.table.inspect.files().to_pylist()
    assert sum(each["record_count"] for each in found) == 8
    assert len({json.dumps(each["partition"], default=str) for each in found}) == len(found) == 4


def test_a_table_that_is_no_longer_divided_is_written_whole(filler: Filler) -> None:
    filler.append([b"0"])
    with filler.table.update_spec() as spec:
        spec.remove_field("day")
    filler.append([b"1"], at_ms=5 * DAY_MS)
    assert layout_of(filler.table).fields == ()
    assert offsets(filler, GreaterThan("timestamp", "1970-01-02T00:00:00+00:00")) == [1]


def test_files_planned_before_a_change_are_committed_as_they_were_written(filler: Filler) -> None:
    """A file counts under the spec that it was written by, which the table still knows."""
    filler.append([b"0"])
    planned = target(filler.table)
    divide(filler, "key", BucketTransform(2), "key_bucket")
    filler.table.refresh()
    writer = FileWriter(planned, "0-1")
    rows = pa.Table.from_pylist(
        [{"partition": 0, "offset": 1, "timestamp": datetime(1970, 1, 2, tzinfo=UTC), "key": b"k"}],
        schema=ROWS,
    )
    change = TableChange(added=writer.save([rows]))
    drafted = draft(filler.table, change)
    filler.table.catalog.commit_table(filler.table, drafted.requirements, drafted.updates)
    assert offsets(filler, EqualTo("key", b"k")) == [1]


@pytest.mark.parametrize("order", [[0, 1, 0], [1, 0, 1], [0, 2, 1]])
def test_days_that_come_out_of_order_are_apart(filler: Filler, order: Sequence[int]) -> None:
    rows = [
        {"partition": 0, "offset": n, "timestamp": datetime(1970, 1, 1 + day, tzinfo=UTC)}
        for n, day in enumerate(order)
    ]
    made = FileWriter(target(filler.table), "x").save([pa.Table.from_pylist(rows, schema=ROWS)])
    assert sorted(each.partition for each in made) == [(day,) for day in sorted(set(order))]
    assert sum(each.count for each in made) == 3


def test_a_partition_field_that_is_not_understood_is_refused(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = filler.table.spec()
    field = spec.fields[0].model_copy(update={"transform": UnknownTransform("zorder")})
    odd = spec.model_copy(update={"fields": (field,)})
    monkeypatch.setattr(filler.table, "spec", lambda: odd)
    with pytest.raises(Conflict, match=r"partitioned by 'day' \(unknown\).*drop that partition"):
        layout_of(filler.table)


def test_a_contracts_columns_have_bounds(filler: Filler) -> None:
    kinds = {
        "amount": "double", "count": "long", "small": "int", "name": "string", "ok": "boolean",
        "day": "date", "at": "timestamp", "price": "decimal(9, 2)", "big": "decimal(30, 2)",
    }  # fmt: skip
    set_schema(filler.table, {f"c_{name}": kind for name, kind in kinds.items()})
    filler.table.refresh()
    values = [
        {
            "c_amount": n - 1.5, "c_count": n - 10**12, "c_small": -n, "c_name": "x" * 20 + str(n),
            "c_ok": n > 5, "c_day": f"2026-01-{n + 1:02}", "c_at": f"2026-01-01T00:00:{n:02}Z",
            "c_price": n - 3, "c_big": -(10**25) + n,
        }
        for n in range(8)
    ]  # fmt: skip
    filler.append([json.dumps(each).encode() for each in values])
    (found,) = filler.table.inspect.files().to_pylist()
    metrics = {
        name: (each["lower_bound"], each["upper_bound"])
        for name, each in found["readable_metrics"].items()
        if name.startswith("c_")
    }
    assert metrics["c_amount"] == (-1.5, 5.5)
    assert metrics["c_count"] == (-(10**12), 7 - 10**12)
    assert metrics["c_small"] == (-7, 0)
    assert metrics["c_name"] == ("x" * 16, "x" * 15 + "y")
    assert metrics["c_ok"] == (False, True)
    assert [str(each) for each in metrics["c_day"]] == ["2026-01-01", "2026-01-08"]
    assert [each.second for each in metrics["c_at"]] == [0, 7]
    assert metrics["c_price"] == (Decimal("-3.00"), Decimal("4.00"))
    assert metrics["c_big"] == (Decimal(-(10**25)), Decimal(-(10**25) + 7))
    for n in range(8):
        assert offsets(filler, EqualTo("c_name", "x" * 20 + str(n))) == [n]
        assert offsets(filler, EqualTo("c_price", n - 3)) == [n]
