"""Columns from models, history filled by them, and dead letters sent again (SPEC I11)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest

from nexo.errors import InvalidInput, InvalidOption, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.derived import dead_letters
from nexo.lake.derived.redrive import HEADER, redrive
from nexo.lake.maintenance.backfill import Backfilled, backfill
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.tables import DEAD_LETTERS, StreamId
from nexo.lake.typed.columns import rename, set_permissive, set_schema
from nexo.lake.typed.models import columns_from
from tests.unit.lake.conftest import Filler

LOG = StreamId("log", 1)


@dataclass
class Inner:
    x: int


@dataclass
class Tree:
    name: str
    children: list[Tree]


class Order(msgspec.Struct):
    id: int
    amount: float
    paid: bool
    at: datetime
    day: date | None
    note: str | None = None
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    many: list[int] = []
    odd: int | str = 0
    price: Decimal = Decimal(0)
    tree: Tree | None = None
    by_name: dict[str, list[Inner]] = {}
    raw: bytes = b""


COLUMNS = {
    "id": "long", "amount": "double", "paid": "boolean", "at": "timestamp", "day": "date",
    "note": "string", "kind": "string", "inner": "struct<x: long>",
    "many": "list<long>", "odd": "json", "price": "decimal(38, 18)",
    "tree": "struct<name: string, children: list<json>>",
    "by_name": "map<string, list<struct<x: long>>>", "raw": "binary",
}  # fmt: skip


def test_columns_come_from_models_and_from_a_json_schema() -> None:
    assert columns_from(Order) == COLUMNS
    schema = msgspec.json.schema(Order)  # no format of times and decimals
    plain = {"at": "string", "price": "string", "raw": "string"}
    assert columns_from(schema) == COLUMNS | plain
    assert columns_from(Inner) == {"x": "long"}
    pydantic = pytest.importorskip("pydantic")
    price = pydantic.condecimal(max_digits=10, decimal_places=2)
    line: Any = pydantic.create_model("Line", sku=(str, ...), price=(price, ...))
    model = pydantic.create_model(
        "Model", id=(int, ...), at=(datetime | None, None), n=(dict, {}), total=(Decimal, 0),
        lines=(list[line], []), by_sku=(dict[str, line], {}),
    )  # fmt: skip
    inner = "struct<sku: string, price: decimal(10, 2)>"
    assert columns_from(model) == {
        "id": "long", "at": "timestamp", "n": "json", "total": "decimal(38, 18)",
        "lines": f"list<{inner}>", "by_sku": f"map<string, {inner}>",
    }  # fmt: skip
    for nothing in (int, {"type": "object"}, object()):
        with pytest.raises(InvalidInput):
            columns_from(nothing)


def test_history_is_filled_once_and_files_that_fit_stay(lake: Lake, filler: Filler) -> None:
    with pytest.raises(InvalidOption, match="no typed columns"):
        backfill(filler.table)
    filler.append([b'{"id": 1}', b'{"id": "x"}', None])
    filler.append([b'{"id": 2}'], partition=1)
    filler.table = rename(set_schema(filler.table, {"id": "long"}), "id", "number")
    filler.append([b'{"id": 3}'])
    assert backfill(filler.table) == Backfilled(files=2, rows=4)
    rows = (
        lake.get("log")
        .scan()
        .to_arrow()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    assert rows.column("number").to_pylist() == [1, None, None, 3, 2]
    assert [reason is not None for reason in rows.column("rejected").to_pylist()] == [
        False, True, False, False, False,
    ]  # fmt: skip
    assert backfill(filler.table) == Backfilled()
    maintain(lake.get("log"), Care(min_files=2, grace_s=0))
    assert backfill(filler.table) == Backfilled()
    assert lake.get("log").scan().to_arrow().num_rows == 5


def test_new_fields_inside_a_column_are_filled_too(filler: Filler) -> None:
    filler.table = set_schema(filler.table, {"who": "struct<n: int>"})
    filler.append([b'{"who": {"n": 1, "name": "Ada"}}'])
    filler.table = set_schema(filler.table, {"who": "struct<name: string>"})
    filler.append([b'{"who": {"n": 2, "name": "Bob"}}'])
    assert backfill(filler.table) == Backfilled(files=1, rows=1)
    found = filler.table.refresh().scan().to_arrow().sort_by("offset").column("who").to_pylist()
    assert found == [{"n": 1, "name": "Ada"}, {"n": 2, "name": "Bob"}]
    assert backfill(filler.table) == Backfilled()


def test_in_permissive_mode_only_what_cannot_be_read_is_a_dead_letter(
    lake: Lake, filler: Filler
) -> None:
    """SPEC I11."""
    filler.table = set_permissive(set_schema(filler.table, {"id": "long"}), True)
    filler.append([b'{"id": "x"}', b"no JSON", b'{"id": 1}'])
    planned = dead_letters.plan(lake, LOG)
    assert planned is not None
    dead_letters.finish(*planned, [dead_letters.run(step) for step in planned[1]])
    assert dead_letters.count(lake, LOG) == {0: 1}
    (letter,) = dead_letters.newest(lake.get("log", DEAD_LETTERS), 10)
    assert (letter.partition, letter.offset) == (0, 1)
    assert "JSON" in letter.reason


def test_dead_letters_are_sent_again_once(lake: Lake, filler: Filler) -> None:
    sent: list[tuple[Any, Any, Any]] = []

    def publish(values: Any, keys: Any, headers: Any) -> None:
        sent.extend(zip(values, keys, headers, strict=True))

    with pytest.raises(NotFound, match="no dead letters"):
        redrive(lake, LOG, publish)
    filler.table = set_schema(filler.table, {"id": "long"})
    for value in (b'{"id": "x"}', b'{"id": "y"}'):
        filler.append([value, b'{"id": 1}'], keys=[b"k", None])
        planned = dead_letters.plan(lake, LOG)
        assert planned is not None
        table, steps = planned
        dead_letters.finish(table, steps, [dead_letters.run(step) for step in steps])
        assert redrive(lake, LOG, publish) == 1
    assert redrive(lake, LOG, publish) == 0
    assert [value for value, _, _ in sent] == ['{"id": "x"}', '{"id": "y"}']
    assert sent[0][1:] == (b"k", {"n": 1, HEADER: "log/0/0"})
    assert sent[1][2][HEADER] == "log/0/2"
