"""Avro values: columns of a record schema, and the values that it describes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import msgspec

from nexo.errors import ConfigError, InvalidInput, InvalidOption
from nexo.extras import hint
from nexo.lake.typed.formats import AVRO, Unpack, ValueFormat
from nexo.lake.typed.kinds import (
    JSON,
    STRING,
    Kind,
    ListKind,
    MapKind,
    PlainKind,
    StructKind,
    nested,
    parse,
)

# ruff: noqa: PLC0415 - fastavro is optional

_PLAIN = {
    "boolean": "boolean", "int": "int", "long": "long", "float": "float", "double": "double",
    "string": "string", "bytes": "binary", "enum": "string", "fixed": "binary",
}  # fmt: skip
_MOMENTS = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp", "local-timestamp-micros": "timestamp",
}  # fmt: skip
_LOGICAL = {*_MOMENTS, "decimal"}
"""Logical types with a column type of their own; other fields have their plain type."""
_BAD = (
    EOFError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError, RecursionError,
    struct.error,
)  # fmt: skip
"""What fastavro raises for bytes that do not fit the schema."""


def avro_format(schema: object) -> tuple[ValueFormat, dict[str, str]]:
    """The format of values of this schema (JSON text, or decoded), and their columns."""
    found = _loaded(schema)
    kind = _Kinds().of(_parsed(found))
    if not isinstance(kind, StructKind):
        raise InvalidInput("an Avro schema of values is a record with fields")
    columns = {name: str(each) for name, each in kind.fields}
    return ValueFormat(AVRO, {"": json.dumps(found)}), columns


def reader(value_format: ValueFormat, schema_id: str) -> Unpack:
    """What reads values of one of the schemas."""
    parsed = _parsed(json.loads(value_format.schemas[schema_id]))
    read = _fastavro().schemaless_reader

    def unpack(value: bytes) -> Mapping[str, Any]:
        stream = BytesIO(value)
        try:
            found: Mapping[str, Any] = read(stream, parsed, None)
        except _BAD as error:
            raise msgspec.DecodeError(f"not an Avro value of the schema: {_said(error)}") from None
        if left := len(value) - stream.tell():
            raise msgspec.DecodeError(
                f"not an Avro value of the schema: {left:,} bytes are left over"
            )
        return found

    return unpack


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigError(hint("fastavro", "sql")) from None
    return fastavro


def _loaded(schema: object) -> Any:
    if not isinstance(schema, str | bytes):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise InvalidInput(f"the Avro schema is not JSON: {error}") from None


def _parsed(schema: Any) -> Any:
    """A schema as fastavro has it, without logical types that have no column type."""
    fastavro = _fastavro()
    known = fastavro.schema.SchemaParseException, fastavro.schema.UnknownType
    try:
        return fastavro.parse_schema(_without_others(schema))
    except (*known, *_BAD) as error:
        raise InvalidInput(f"bad Avro schema: {_said(error)}") from None


def _without_others(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_others(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_others(each) if key in ("type", "items", "values", "fields") else each
        for key, each in schema.items()
        if key != "logicalType" or each in _LOGICAL
    }


class _Kinds:
    """Column types of Avro's types; a named type is known after its definition."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._within: list[str] = []

    def of(self, schema: Any) -> Kind:
        match schema:
            case str() if schema in _PLAIN:
                return PlainKind(_PLAIN[schema])
            case str() if schema in self._named:
                return JSON if schema in self._within else self.of(self._named[schema])
            case list():
                return self._union(schema)
            case dict():
                return self._described(schema)
        raise InvalidInput(f"a field of the Avro schema has the type {schema!r}: it holds nothing")

    def _union(self, schema: list[Any]) -> Kind:
        choices = [each for each in schema if each != "null"]
        if not choices:
            raise InvalidInput("a field of the Avro schema is always null")
        kinds = [self.of(each) for each in choices]
        return kinds[0] if len(kinds) == 1 else JSON

    def _described(self, schema: dict[str, Any]) -> Kind:
        logical = schema.get("logicalType")
        if logical == "decimal":
            self._note(schema)
            return _decimal(schema)
        if logical in _MOMENTS:
            return PlainKind(_MOMENTS[logical])
        match schema["type"]:
            case "array":
                return ListKind(self._items(schema["items"]))
            case "map":
                return MapKind(STRING, self.of(schema["values"]))
            case "record" | "error":
                return self._record(schema)
            case "enum" | "fixed":
                self._note(schema)
        return self.of(schema["type"])

    def _note(self, schema: dict[str, Any]) -> None:
        if "name" in schema:
            self._named[schema["name"]] = schema

    def _items(self, schema: Any) -> Kind:
        """Items without bytes are rejected: a few bytes could claim any number of them."""
        kind = self.of(schema)
        if _is_empty(schema, self._named):
            raise InvalidInput("items of an Avro array must have at least one byte each")
        return kind

    def _record(self, schema: dict[str, Any]) -> Kind:
        self._note(schema)
        self._within.append(schema["name"])
        try:
            fields = tuple((each["name"], self.of(each["type"])) for each in schema["fields"])
        finally:
            self._within.pop()
        if not fields:
            raise InvalidInput(f"record {schema['name']} of the Avro schema has no fields")
        kind = StructKind(fields)
        return nested(kind) if self._within else kind


def _decimal(schema: dict[str, Any]) -> Kind:
    try:
        return parse(f"decimal({schema['precision']}, {schema.get('scale', 0)})")
    except (InvalidOption, KeyError):
        raise InvalidInput(
            "a decimal of the Avro schema needs a precision of 1 to 38 and no larger scale"
        ) from None


def _is_empty(schema: Any, named: Mapping[str, Any], within: tuple[str, ...] = ()) -> bool:
    """Whether a value of a schema takes no bytes."""
    found = named.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(found, dict):
        return bool(found == "null")
    if found["type"] == "fixed":
        return not found["size"]
    if found["type"] in ("record", "error"):
        inside = (*within, found["name"])
        fields = (each["type"] for each in found["fields"])
        return found["name"] in within or all(_is_empty(each, named, inside) for each in fields)
    return False
