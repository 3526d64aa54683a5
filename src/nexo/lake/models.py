"""Typed columns from a model or a JSON Schema (SPEC I11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nexo.errors import InvalidInput

_PLAIN = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_FORMATS = {"date-time": "timestamp", "date": "date"}
_REF = "#/$defs/"
_TYPES = {
    msgspec.inspect.NoneType: "null", msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.IntType: "long", msgspec.inspect.FloatType: "double",
    msgspec.inspect.StrType: "string", msgspec.inspect.UUIDType: "string",
    msgspec.inspect.DateTimeType: "timestamp", msgspec.inspect.DateType: "date",
}  # fmt: skip


def columns_from(source: object) -> dict[str, str]:
    """Columns of a dataclass, a msgspec struct, a pydantic model, or a JSON Schema of an object.

    Whatever is nested, or may be of several types, is a column of JSON text.
    """
    if isinstance(source, Mapping):
        schema: Mapping[str, Any] = source
    elif callable(dump := getattr(source, "model_json_schema", None)):  # pydantic's
        schema = dump()
    else:
        return _fields(source)
    definitions = schema.get("$defs", {})
    found = _resolved(schema, definitions).get("properties")
    if not isinstance(found, Mapping) or not found:
        raise InvalidInput("the schema describes no object with properties: there are no columns")
    return {name: _kind(given, definitions) for name, given in found.items()}


def _fields(model: Any) -> dict[str, str]:
    """Of a dataclass or a msgspec struct; JSON Schema has no time without a zone."""
    try:
        found = msgspec.inspect.type_info(model)
    except TypeError:
        found = None
    if not isinstance(found, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        raise InvalidInput(
            f"{model!r} is no dataclass, msgspec struct, pydantic model or JSON Schema"
        )
    return {field.encode_name: _kind_of_type(field.type) for field in found.fields}


def _kind_of_type(found: msgspec.inspect.Type) -> str:
    match found:
        case msgspec.inspect.UnionType():
            return _common([_kind_of_type(each) for each in found.types])
        case msgspec.inspect.LiteralType():
            return _common([_kind_of(each) for each in found.values])
        case msgspec.inspect.EnumType():
            return _common([_kind_of(each.value) for each in found.cls])
    return next((kind for known, kind in _TYPES.items() if isinstance(found, known)), "json")


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema behind a reference."""
    if not isinstance(schema, Mapping):
        return {}
    name = str(schema.get("$ref", ""))
    if name.startswith(_REF):
        return _resolved(definitions.get(name.removeprefix(_REF)), definitions)
    return schema


def _kind(given: Any, definitions: Mapping[str, Any]) -> str:
    schema = _resolved(given, definitions)
    if "const" in schema or "enum" in schema:
        return _common([_kind_of(each) for each in schema.get("enum", [schema.get("const")])])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return _common([_kind(each, definitions) for each in choices])
    named = schema.get("type")
    if isinstance(named, list):
        return _common([_plain(str(each), schema) for each in named])
    return _plain(str(named), schema)


def _plain(named: str, schema: Mapping[str, Any]) -> str:
    if named == "string":
        return _FORMATS.get(str(schema.get("format")), "string")
    return "null" if named == "null" else _PLAIN.get(named, "json")


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "long"
        case float():
            return "double"
        case str():
            return "string"
    return "json"


def _common(kinds: list[str]) -> str:
    """One type for all that a field may be; null fits any."""
    found = {kind for kind in kinds if kind != "null"}
    if found == {"long", "double"}:
        return "double"
    return found.pop() if len(found) == 1 else "json"
