"""Protobuf values become columns (SPEC I11)."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from nexo.errors import InvalidInput
from nexo.lake.typed.columns import set_format
from nexo.lake.typed.formats import extended
from nexo.lake.typed.protobuf import protobuf_format
from tests.unit.lake.conftest import Filler

F = FieldDescriptorProto
ONE, MANY = F.LABEL_OPTIONAL, F.LABEL_REPEATED
_FIELDS = [
    ("id", F.TYPE_INT64, ONE, ""), ("count", F.TYPE_UINT64, ONE, ""),
    ("price", F.TYPE_DOUBLE, ONE, ""), ("name", F.TYPE_STRING, ONE, ""),
    ("raw", F.TYPE_BYTES, ONE, ""), ("state", F.TYPE_ENUM, ONE, ".shop.State"),
    ("lines", F.TYPE_MESSAGE, MANY, ".shop.Line"), ("first", F.TYPE_MESSAGE, ONE, ".shop.Line"),
    ("at", F.TYPE_MESSAGE, ONE, ".google.protobuf.Timestamp"),
    ("limit", F.TYPE_MESSAGE, ONE, ".google.protobuf.Int32Value"),
    ("stock", F.TYPE_MESSAGE, MANY, ".shop.Order.StockEntry"),
    ("parent", F.TYPE_MESSAGE, ONE, ".shop.Order"), ("tags", F.TYPE_STRING, MANY, ""),
]  # fmt: skip
COLUMNS = {
    "id": "long", "count": "decimal(20, 0)", "price": "double", "name": "string", "raw": "binary",
    "state": "string", "lines": "list<struct<sku: string, n: int>>",
    "first": "struct<sku: string, n: int>", "at": "timestamp", "limit": "int",
    "stock": "map<string, int>", "parent": "json", "tags": "list<string>",
}  # fmt: skip


def _add(message: Any, fields: list[tuple[str, int, int, str]]) -> None:
    for number, (name, kind, label, of) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)


def order_file() -> FileDescriptorProto:
    """What ``protoc`` would make of a file with an order."""
    file = FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    _add(file.message_type.add(name="Line"), [
        ("sku", F.TYPE_STRING, ONE, ""), ("n", F.TYPE_SINT32, ONE, "")])  # fmt: skip
    order = file.message_type.add(name="Order")
    _add(order, _FIELDS)
    entry = order.nested_type.add(name="StockEntry")
    entry.options.map_entry = True
    _add(entry, [("key", F.TYPE_STRING, ONE, ""), ("value", F.TYPE_INT32, ONE, "")])
    return file


DESCRIPTORS = FileDescriptorSet(file=[order_file()]).SerializeToString()


def order_class() -> Any:
    from google.protobuf import timestamp_pb2, wrappers_pb2  # noqa: PLC0415

    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2):
        pool.Add(FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb))
    pool.Add(order_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def order() -> bytes:
    made = order_class()(
        id=7, count=2**64 - 1, price=1.5, name="ü", raw=b"\xff", state=1, tags=["a"]
    )
    made.lines.add(sku="a", n=-2)
    made.at.FromDatetime(datetime(2026, 1, 1))  # noqa: DTZ001 - UTC
    made.limit.value = 3
    made.stock["x"] = 4
    made.parent.name = "p"
    found: bytes = made.SerializeToString()
    return found


def test_protobuf_values_become_the_columns_of_their_message(filler: Filler) -> None:
    value_format, columns = protobuf_format(DESCRIPTORS, "shop.Order")
    assert columns == COLUMNS
    filler.table = set_format(filler.table, value_format, columns)
    filler.append([order(), b"", b"\xff\xff\xff", order_class()(state=9).SerializeToString()])
    rows = filler.table.scan().to_arrow().sort_by("offset").to_pylist()
    assert {name: rows[0][name] for name in COLUMNS} == {
        "id": 7, "count": Decimal(2**64 - 1), "price": 1.5, "name": "ü", "raw": b"\xff",
        "state": "PAID", "lines": [{"sku": "a", "n": -2}], "first": None,
        "at": datetime(2026, 1, 1, tzinfo=UTC), "limit": 3, "stock": [("x", 4)],
        "parent": '{"name":"p"}', "tags": ["a"],
    }  # fmt: skip
    assert (rows[1]["id"], rows[1]["state"], rows[1]["limit"], rows[1]["lines"]) == (
        0,
        "OPEN",
        None,
        [],
    )
    assert "not a message shop.Order" in rows[2]["rejected"]
    assert rows[3]["state"] == "9"


def test_values_of_a_schema_registry_say_which_message_they_are(filler: Filler) -> None:
    value_format, columns = protobuf_format(DESCRIPTORS, "shop.Order")
    filler.table = set_format(filler.table, extended(None, value_format, 5), columns)
    head = struct.pack(">BI", 0, 5)
    filler.append([head + b"\x00" + order(), head + b"\x02\x02" + order(), head, order()])
    rows = filler.table.scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["id"] for row in rows] == [7, 7, None, None]
    assert all(row["rejected"] for row in rows[2:])


@pytest.mark.parametrize(
    ("descriptors", "message", "why"),
    [
        (b"\xff\xff", "shop.Order", "bad descriptor set"),
        (DESCRIPTORS, "shop.Odrer", "no message 'shop.Odrer', but shop.Line, shop.Order"),
        (
            FileDescriptorSet(
                file=[FileDescriptorProto(name="a", dependency=["b"])]
            ).SerializeToString(),
            "A",
            "it lacks b",
        ),
    ],
)
def test_bad_descriptors_are_refused_with_the_reason(
    descriptors: bytes, message: str, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        protobuf_format(descriptors, message)
