"""A row of Spark as a record: its columns are checked, and turned into bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
from pyspark.sql.types import DataType, StringType, StructType

from nexo.errors import InvalidInput
from nexo.lake.own_columns import OWN_COLUMNS
from nexo.protocol.values import ValueType
from pyspark_nexo.types import spark_type

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    **{
        each.name: tuple(type(spark_type(kind)) for kind in each.written)
        for each in OWN_COLUMNS
        if each.written
    },
}
_headers_fit = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_json_fits = msgspec.json.Decoder(msgspec.Raw).decode

Content: TypeAlias = tuple[bytes | None, bytes | None, bytes, int | None]
"""Value, key, headers, and the value's type."""


class PlacedRow(NamedTuple):
    """A record, and where its row wants it: a partition or None, a stream or None."""

    content: Content
    partition: int | None
    topic: str | None


def check_columns(schema: StructType) -> None:
    """`InvalidInput` unless rows of these columns can be published."""
    if "value" not in schema.names:
        raise InvalidInput("rows to be published need a column 'value', as text or binary")
    for field in schema:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise InvalidInput(
                f"column {field.name!r} has no place in a record: select "
                f"{', '.join(_COLUMNS)}, or put it into the value with to_json(struct(…))"
            )
        if not isinstance(field.dataType, kinds):
            raise InvalidInput(
                f"column {field.name!r} is {field.dataType.simpleString()}: it must be "
                f"{' or '.join(kind().simpleString() for kind in kinds)}"
            )


def placed_rows(columns: dict[str, list[Any]]) -> Iterator[PlacedRow]:
    """The rows of some columns; raises at the first that is no record."""
    values = columns["value"]
    absent = [None] * len(values)
    names = ("key", "headers", "partition", "value_type", "topic")
    rows = zip(values, *(columns.get(name, absent) for name in names), strict=True)
    for value, key, headers, partition, kind, topic in rows:
        content, raw_key = _raw(value), _raw(key)
        texts = _checked_headers(_object(headers))
        if kind is not None:
            _check_value(content, kind)
        yield PlacedRow((content, raw_key, texts, kind), partition, topic)


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _object(headers: str | list[dict[str, Any]] | None) -> str | None:
    """Headers as JSON; Kafka's are a list of names and bytes."""
    if headers is None or isinstance(headers, str):
        return headers
    try:
        found = {
            each["key"]: None if each["value"] is None else bytes(each["value"]).decode()
            for each in headers
        }
    except (UnicodeDecodeError, KeyError, TypeError) as error:
        raise InvalidInput(f"headers are a list of names and texts: {error}") from None
    return msgspec.json.encode(found).decode()


def _checked_headers(text: str | None) -> bytes:
    """Headers as they are stored; anything but a JSON object would stop every consumer."""
    if not text:
        return b""
    try:
        _headers_fit(text)
    except msgspec.DecodeError:
        raise InvalidInput(
            f'headers are a JSON object, such as {{"source": "spark"}}, not {text[:100]!r}'
        ) from None
    return text.encode()


def _check_value(content: bytes | None, kind: int) -> None:
    """`InvalidInput` unless consumers can read a value as its type."""
    if kind not in (ValueType.RAW, ValueType.TEXT, ValueType.JSON):
        raise InvalidInput(f"value_type is 0 (bytes), 1 (text) or 2 (JSON), not {kind}")
    if content is None or kind == ValueType.RAW:
        return
    try:
        if kind == ValueType.JSON:
            _json_fits(content)
        else:
            content.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "JSON" if kind == ValueType.JSON else "text"
        raise InvalidInput(
            f"value_type {kind} says that a value is {what}, and it is not: {error}"
        ) from None
