"""Python values as bytes and back (SPEC A4)."""

import contextlib
import datetime
import enum
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.errors import InvalidInput, ProtocolError
from nexo.protocol.values import ValueType, decode_content, decode_value, encode_value


@dataclass
class User:
    name: str
    age: int = 0


class UserStruct(msgspec.Struct):
    name: str
    age: int = 0


class UserModel(pydantic.BaseModel):
    name: str
    age: int = 0


class Colour(enum.Enum):
    RED = "red"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.binary() | st.text() | json_values)
def test_a_value_comes_back_equal_and_of_its_type(value: Any) -> None:  # SPEC A4
    back = decode_value(encode_value(value))
    assert back == value
    assert type(back) is type(value)


def test_the_type_byte_says_how_a_value_travels() -> None:  # SPEC A4
    assert encode_value(b"\x00\xff") == b"\x00\x00\xff"
    assert encode_value("é") == b"\x01\xc3\xa9"
    assert encode_value({"a": 1}) == b'\x02{"a":1}'
    assert encode_value(None) == b"\x02null"
    assert [kind.value for kind in ValueType] == [0, 1, 2]


def test_empty_and_null_values_are_all_distinct() -> None:  # SPEC A4
    values: tuple[object, ...] = (b"", "", None, [], {}, 0, False)
    assert len({encode_value(value) for value in values}) == len(values)


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2]])
def test_any_buffer_travels_as_its_bytes(value: object) -> None:
    assert decode_value(encode_value(value)) == b"ab"


def test_text_that_looks_like_json_stays_text() -> None:
    assert decode_value(encode_value('{"a": 1}')) == '{"a": 1}'
    assert decode_value(encode_value("null")) == "null"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [1, x], lambda x: {"a": {"b": (x,)}}])
def test_numbers_json_does_not_have_are_refused(number: float, wrap: Any) -> None:  # SPEC A4
    with pytest.raises(InvalidInput, match="NaN"):
        encode_value(wrap(number))


def test_they_are_refused_inside_models_too() -> None:  # SPEC A4
    @dataclass
    class Point:
        x: float

    class PointStruct(msgspec.Struct):
        x: float

    class PointModel(pydantic.BaseModel):
        x: float

    for value in (Point(math.nan), PointStruct(math.inf), PointModel(x=math.nan)):
        with pytest.raises(InvalidInput, match="NaN"):
            encode_value(value)


def test_null_next_to_ordinary_numbers_is_fine() -> None:
    assert decode_value(encode_value({"a": None, "b": 1.5, "c": "null"})) == {
        "a": None,
        "b": 1.5,
        "c": "null",
    }


@pytest.mark.parametrize("type_", [User, UserStruct, UserModel])
def test_models_round_trip_by_their_type(type_: type[Any]) -> None:  # SPEC K1
    user = type_(name="Max", age=3)
    back = decode_value(encode_value(user), type_)
    assert back == user
    assert type(back) is type_
    assert decode_value(encode_value(user)) == {"name": "Max", "age": 3}


@pytest.mark.parametrize("type_", [User, UserStruct, UserModel])
@pytest.mark.parametrize("value", [{"name": 1}, {"age": 2}, [1], "text", b"raw", None])
def test_a_value_that_does_not_fit_its_type_is_refused(type_: type[Any], value: object) -> None:
    with pytest.raises(InvalidInput, match=type_.__name__):
        decode_value(encode_value(value), type_)


def test_builtin_generics_and_unions_are_checked() -> None:
    assert decode_value(encode_value([1, 2]), list[int]) == [1, 2]
    with pytest.raises(InvalidInput):
        decode_value(encode_value([1, "2"]), list[int])


@pytest.mark.parametrize(("value", "type_"), [("text", bytes), (b"raw", str), ({"a": 1}, str)])
def test_text_and_bytes_are_not_taken_for_each_other(value: object, type_: type[Any]) -> None:
    with pytest.raises(InvalidInput, match=type_.__name__):
        decode_value(encode_value(value), type_)


def test_models_inside_containers_and_common_types_are_written() -> None:
    day = datetime.date(2024, 2, 29)
    value = {"users": [UserModel(name="a"), User("b")], "day": day, "colour": Colour.RED}
    assert decode_value(encode_value(value)) == {
        "users": [{"name": "a", "age": 0}, {"name": "b", "age": 0}],
        "day": "2024-02-29",
        "colour": "red",
    }
    number = uuid.UUID(int=1)
    assert decode_value(encode_value([number, Decimal("1.10")])) == [str(number), "1.10"]


@pytest.mark.parametrize("value", [object(), {"a": object()}, lambda: None, {(1, 2): 3, "x": {4j}}])
def test_what_cannot_be_written_is_refused_with_its_type(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"JSON"):
        encode_value(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidInput):
        encode_value(loop)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="UTF-8"):
        encode_value("\ud800")


@pytest.mark.parametrize(
    "data", [b"", b"\x03x", b"\xff", b"\x02", b"\x02{", b"\x02" + b"[" * 10**5, b"\x01\xff"]
)
def test_bytes_that_are_no_value_are_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_value(data)


def test_the_type_byte_may_arrive_apart_from_the_content() -> None:
    assert decode_content(ValueType.TEXT, memoryview(b"ab")) == "ab"
    assert decode_content(ValueType.RAW, bytearray(b"ab")) == b"ab"


@given(st.binary(max_size=80))
def test_any_bytes_give_a_value_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_value(data)
