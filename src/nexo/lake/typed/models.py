"""Typed columns from a model or a JSON Schema (SPEC I11).

Nested types are structs, lists or maps; a field that may have several types, or contains itself, is
a column of JSON text. A decimal without given digits has 38, 18 of them after the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nexo.errors import InvalidInput
from nexo.lake.typed.kinds import (
    JSON,
    STRING,
    DecimalKind,
    Kind,
    ListKind,
    MapKind,
    PlainKind,
    StructKind,
    nested,
)

_PLAIN = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_FORMATS = {"date-time": "timestamp", "date": "date"}
_DECIMAL = "x-decimal"
"""In a JSON Schema made here: digits in all and after the point, as far as they are known."""
_REF = "#/$defs/"
_NULL = PlainKind("null")
_ANY_DECIMAL = DecimalKind(38, 18)
_TYPES: dict[type[msgspec.inspect.Type], Kind] = {
    msgspec.inspect.NoneType: _NULL,
    msgspec.inspect.BoolType: PlainKind("boolean"),
    msgspec.inspect.IntType: PlainKind("long"),
    msgspec.inspect.FloatType: PlainKind("double"),
    msgspec.inspect.StrType: STRING,
    msgspec.inspect.UUIDType: STRING,
    msgspec.inspect.TimeType: STRING,
    msgspec.inspect.BytesType: PlainKind("binary"),
    msgspec.inspect.DateTimeType: PlainKind("timestamp"),
    msgspec.inspect.DateType: PlainKind("date"),
    msgspec.inspect.DecimalType: _ANY_DECIMAL,
}
_VALUES: dict[type, Kind] = {
    type(None): _NULL, bool: PlainKind("boolean"), int: PlainKind("long"),
    float: PlainKind("double"), str: STRING,
}  # fmt: skip


def columns_from(source: object) -> dict[str, str]:
    """Columns of a dataclass, a msgspec struct, a pydantic model, or a JSON Schema of an object."""
    if isinstance(source, Mapping):
        kind = _of_schema(source, _definitions(source), ())
    elif callable(getattr(source, "model_json_schema", None)):
        schema = _pydantic_schema(source)
        kind = _of_schema(schema, _definitions(schema), ())
    else:
        kind = _of_model(source)
    if not isinstance(kind, StructKind):
        raise InvalidInput("the schema describes no object with properties: there are no columns")
    return {name: str(each) for name, each in kind.fields}


def _struct(fields: Iterable[tuple[str, Kind]], *, whole: bool) -> Kind:
    """Fields as a struct; JSON if engines could not distinguish them inside a column."""
    kind = StructKind(tuple(fields))
    if not kind.fields:
        return JSON
    return kind if whole else nested(kind)


# -- dataclasses and msgspec structs ---------------------------------------------------


def _of_model(model: Any) -> Kind:
    try:
        found = msgspec.inspect.type_info(model)
    except TypeError:
        found = None
    if not isinstance(found, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        raise InvalidInput(
            f"{model!r} is not a dataclass, msgspec struct, pydantic model or JSON Schema"
        )
    return _of_type(found, ())


def _of_type(  # noqa: PLR0911 - a case for each type
    found: msgspec.inspect.Type, within: tuple[type, ...]
) -> Kind:
    match found:
        case msgspec.inspect.Metadata():
            return _of_type(found.type, within)
        case msgspec.inspect.UnionType():
            return _common(_of_type(each, within) for each in found.types)
        case msgspec.inspect.LiteralType():
            return _common(map(_of_value, found.values))
        case msgspec.inspect.EnumType():
            return _common(_of_value(each.value) for each in found.cls)
        case (
            msgspec.inspect.ListType() | msgspec.inspect.SetType() | msgspec.inspect.VarTupleType()
        ):
            return _list(_of_type(found.item_type, within))
        case msgspec.inspect.DictType():
            return _map(_of_type(found.key_type, within), _of_type(found.value_type, within))
        case (
            msgspec.inspect.StructType()
            | msgspec.inspect.DataclassType()
            | msgspec.inspect.TypedDictType()
        ):
            return _of_fields(found, within)
    return next((kind for known, kind in _TYPES.items() if isinstance(found, known)), JSON)


def _of_fields(found: Any, within: tuple[type, ...]) -> Kind:
    if found.cls in within or getattr(found, "array_like", False):
        return JSON
    inside = (*within, found.cls)
    fields = ((each.encode_name, _or_json(_of_type(each.type, inside))) for each in found.fields)
    return _struct(fields, whole=not within)


def _or_json(kind: Kind) -> Kind:
    """A field that is always null is JSON: nothing else is known of it."""
    return JSON if kind == _NULL else kind


def _list(element: Kind) -> Kind:
    return ListKind(_or_json(element))


def _map(key: Kind, value: Kind) -> Kind:
    if isinstance(key, PlainKind) and key.name in ("string", "long"):
        return MapKind(key, _or_json(value))
    return JSON


# -- JSON Schema -----------------------------------------------------------------------


def _pydantic_schema(model: Any) -> Mapping[str, Any]:
    """A model's JSON Schema, with the digits of decimals."""
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 - the model is pydantic's

    class WithDecimals(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            return {_DECIMAL: [schema.get("max_digits"), schema.get("decimal_places")]}

    found: Mapping[str, Any] = model.model_json_schema(schema_generator=WithDecimals)
    return found


def _definitions(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("$defs")
    return found if isinstance(found, Mapping) else {}


def _of_schema(  # noqa: PLR0911 - a case for each kind of schema
    given: Any, definitions: Mapping[str, Any], within: tuple[str, ...]
) -> Kind:
    if not isinstance(given, Mapping):
        return JSON
    name = str(given.get("$ref", ""))
    if name.startswith(_REF):
        if name in within:
            return JSON
        target = definitions.get(name.removeprefix(_REF))
        return _of_schema(target, definitions, (*within, name))
    if _DECIMAL in given:
        return _decimal(given[_DECIMAL])
    if "const" in given or "enum" in given:
        return _common(map(_of_value, given.get("enum", [given.get("const")])))
    choices = given.get("anyOf") or given.get("oneOf") or given.get("allOf")
    if isinstance(choices, list) and "properties" not in given:
        return _common(_of_schema(each, definitions, within) for each in choices)
    named = given.get("type", "object" if "properties" in given else "")
    names = named if isinstance(named, list) else [named]
    return _common(_of_named(str(each), given, definitions, within) for each in names)


def _of_named(
    named: str, given: Mapping[str, Any], definitions: Mapping[str, Any], within: tuple[str, ...]
) -> Kind:
    match named:
        case "null":
            return _NULL
        case "string":
            return PlainKind(_FORMATS.get(str(given.get("format")), "string"))
        case "array" if isinstance(given.get("items"), Mapping):
            return _list(_of_schema(given["items"], definitions, (*within, "")))
        case "object" if isinstance(given.get("properties"), Mapping):
            fields = given["properties"].items()
            inside = (*within, "")
            found = [(str(n), _or_json(_of_schema(s, definitions, inside))) for n, s in fields]
            return _struct(found, whole="" not in within)
        case "object" if isinstance(given.get("additionalProperties"), Mapping):
            inner = _of_schema(given["additionalProperties"], definitions, (*within, ""))
            return _map(STRING, inner)
    return PlainKind(_PLAIN[named]) if named in _PLAIN else JSON


def _decimal(digits: Any) -> Kind:
    match digits:
        case [int(precision), int(scale)] if 1 <= precision <= 38 and 0 <= scale <= precision:
            return DecimalKind(precision, scale)
        case [None, int(scale)] if 0 <= scale <= 38:
            return DecimalKind(38, scale)
    return _ANY_DECIMAL


def _of_value(value: object) -> Kind:
    return _VALUES.get(type(value), JSON)


def _common(kinds: Iterable[Kind]) -> Kind:
    """One type for all types that a field may have; null fits any."""
    every = set(kinds)
    found = every - {_NULL} or every
    if found == {PlainKind("long"), PlainKind("double")}:
        return PlainKind("double")
    return found.pop() if len(found) == 1 else JSON
