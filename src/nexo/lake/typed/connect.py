"""Fields as Kafka Connect's JSON converter writes them: decimals, times and schemas beside values.

A decimal is text, a number, or the base64 of a whole number whose scale the schema says; it is
never read as a double. Digits alone may be either, so without a schema they need a setting: a wrong
amount is worse than a dead letter.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException
from typing import Any, Literal, TypeAlias

import msgspec

from nexo.lake.typed.kinds import (
    JSON,
    MOST_DIGITS,
    STRING,
    DecimalKind,
    Kind,
    ListKind,
    MapKind,
    PlainKind,
    StructKind,
    nested,
)
from nexo.lake.typed.reading import BAD, Misfit, finisher, python_type

DecimalText: TypeAlias = Literal["", "text", "base64"]
"""How decimals without a schema are written; unsaid, what may be either is refused."""
TimeUnit: TypeAlias = Literal["", "millis", "micros", "nanos"]
"""Of times without a schema that are numbers; unsaid, they are refused."""
ReadField: TypeAlias = Callable[[msgspec.Raw], Any]

_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?\d+")
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_EPOCH, _FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_EXACT = Context(prec=1_000)
_TIMES: dict[str, TimeUnit] = {
    "io.debezium.time.Timestamp": "millis",
    "io.debezium.time.MicroTimestamp": "micros",
    "io.debezium.time.NanoTimestamp": "nanos",
    "org.apache.kafka.connect.data.Timestamp": "millis",
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_ANY_SCALE = "io.debezium.data.VariableScaleDecimal"
_KINDS = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long",
    "float": "float", "float32": "float", "double": "double", "float64": "double",
    "string": "string", "bytes": "binary",
}  # fmt: skip
_NAMED = {
    "io.debezium.time.Date": "date", "org.apache.kafka.connect.data.Date": "date",
    "io.debezium.time.ZonedTimestamp": "timestamp", "io.debezium.data.Json": "json",
    **dict.fromkeys(_TIMES, "timestamp"),
}  # fmt: skip


class ConnectSchema(msgspec.Struct, frozen=True):
    """A schema beside a value."""

    type: str
    name: str = ""
    field: str = ""
    parameters: dict[str, str] = {}
    fields: tuple[ConnectSchema, ...] = ()
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None

    def part(self, name: str) -> ConnectSchema | None:
        """The schema of a field."""
        return next((each for each in self.fields if each.field == name), None)


@dataclass(frozen=True, slots=True)
class FieldForm:
    """How a field is written."""

    decimals: DecimalText = ""
    scale: int | None = None
    """Of a decimal as base64; None for that of its column."""
    times: TimeUnit = ""


def form_of(schema: ConnectSchema | None, otherwise: FieldForm) -> FieldForm:
    """What a schema says of its field; ``otherwise`` without one."""
    if schema is None:
        return otherwise
    times = _TIMES.get(schema.name, otherwise.times)
    if schema.name == _DECIMAL:
        return FieldForm("base64", _scale(schema), times)
    return FieldForm("text" if schema.type == "string" else otherwise.decimals, None, times)


def _scale(schema: ConnectSchema) -> int:
    text = schema.parameters.get("scale", "0")
    return int(text) if _PLAIN.fullmatch(text) and len(text) < 4 else 0


# -- columns ---------------------------------------------------------------------------


def kind_of_schema(schema: ConnectSchema) -> Kind:  # noqa: PLR0911 - a case for each type
    """The column type of a field."""
    if schema.name == _DECIMAL:
        digits = schema.parameters.get("connect.decimal.precision", str(MOST_DIGITS))
        most = min(int(digits) if _PLAIN.fullmatch(digits) else MOST_DIGITS, MOST_DIGITS)
        scale = _scale(schema)
        return DecimalKind(most, scale) if 0 <= scale <= most and most else STRING
    if schema.name == _ANY_SCALE:
        return DecimalKind(MOST_DIGITS, 18)
    if schema.name in _NAMED:
        return PlainKind(_NAMED[schema.name])
    if schema.type in _KINDS:
        return PlainKind(_KINDS[schema.type])
    match schema.type:
        case "array" if schema.items is not None:
            return ListKind(kind_of_schema(schema.items))
        case "map" if schema.values is not None:
            return MapKind(STRING, kind_of_schema(schema.values))
        case "struct" if schema.fields:
            fields = ((each.field, kind_of_schema(each)) for each in schema.fields)
            return nested(StructKind(tuple(fields)))
    return JSON


def columns_of_schema(schema: ConnectSchema) -> dict[str, str]:
    """The columns of rows of this schema."""
    return {each.field: str(kind_of_schema(each)) for each in schema.fields}


# -- fields ----------------------------------------------------------------------------


def field_reader(kind: Kind, path: str, form: FieldForm) -> ReadField:
    """What reads a field that is not null; raises `Misfit`, or as msgspec does."""
    if isinstance(kind, DecimalKind):
        return _decimal_reader(kind, path, form)
    if kind == PlainKind("date"):
        return _date_reader(path)
    if kind == PlainKind("timestamp"):
        return _time_reader(path, form)
    if kind == JSON:
        return _json_reader(path)
    decode = msgspec.json.Decoder(python_type(kind, as_json=True)).decode
    finish = finisher(kind, path, as_json=True)

    def read(raw: msgspec.Raw) -> Any:
        try:
            found = decode(raw)
        except msgspec.ValidationError as error:
            raise Misfit(f"{error} - at `{path}`") from None
        return found if found is None or finish is None else finish(found)

    return read


def _json_reader(path: str) -> ReadField:
    """JSON, which sources send as text."""
    finish = finisher(JSON, path, as_json=True)
    assert finish is not None

    def read(raw: msgspec.Raw) -> Any:
        if bytes(raw).startswith(b'"'):
            inner = msgspec.json.decode(raw, type=str)
            with suppress(*BAD):
                return finish(msgspec.json.decode(inner, type=msgspec.Raw))
        return finish(raw)

    return read


class _AnyScale(msgspec.Struct):
    scale: int
    value: bytes


def _decimal_reader(kind: DecimalKind, path: str, form: FieldForm) -> ReadField:
    fits = finisher(kind, path, as_json=True)
    assert fits is not None

    def read(raw: msgspec.Raw) -> Any:
        text = bytes(raw)
        if text == b"null":
            return None
        try:
            if _NUMBER.fullmatch(text):
                return fits(Decimal(text.decode()))
            if text.startswith(b"{"):
                found = msgspec.json.decode(text, type=_AnyScale)
                return fits(_unscaled(found.value, found.scale))
            given = msgspec.json.decode(text, type=str)
            return fits(_from_text(given, form, kind.scale, path))
        except msgspec.ValidationError as error:
            if isinstance(error, Misfit):
                raise
            raise Misfit(f"not a decimal: {error} - at `{path}`") from None
        except (DecimalException, ValueError):
            raise Misfit(f"not a decimal - at `{path}`") from None

    return read


def _from_text(text: str, form: FieldForm, scale: int, path: str) -> Decimal:
    base64_scale = scale if form.scale is None else form.scale
    if form.decimals == "base64":
        return _unscaled(base64.b64decode(text, validate=True), base64_scale)
    if form.decimals == "text":
        return Decimal(text)
    if len(text) % 4 == 0 and _PLAIN.fullmatch(text):
        raise Misfit(
            f"digits that may be text or base64: set how decimals are written - at `{path}`"
        )
    try:
        return Decimal(text)
    except DecimalException:
        return _unscaled(base64.b64decode(text, validate=True), base64_scale)


def _unscaled(number: bytes, scale: int) -> Decimal:
    if not number or len(number) > 256 or abs(scale) > 400:
        raise ValueError("no decimal of a database")
    return Decimal(int.from_bytes(number, signed=True)).scaleb(-scale, _EXACT)


def _date_reader(path: str) -> ReadField:
    decode = msgspec.json.Decoder(int | date | None).decode

    def read(raw: msgspec.Raw) -> Any:
        try:
            found = decode(raw)
            return _FIRST_DAY + timedelta(days=found) if isinstance(found, int) else found
        except msgspec.ValidationError as error:
            raise Misfit(f"{error} - at `{path}`") from None
        except OverflowError as error:
            raise Misfit(f"not a day of the calendar: {error} - at `{path}`") from None

    return read


def _time_reader(path: str, form: FieldForm) -> ReadField:
    decode = msgspec.json.Decoder(int | datetime | None).decode
    utc = finisher(PlainKind("timestamp"), path, as_json=True)
    assert utc is not None

    def read(raw: msgspec.Raw) -> Any:
        try:
            found = decode(raw)
            if isinstance(found, int):
                return _moment(found, form, path)
            return None if found is None else utc(found)
        except Misfit:
            raise
        except msgspec.ValidationError as error:
            raise Misfit(f"{error} - at `{path}`") from None
        except OverflowError as error:
            raise Misfit(f"not a time of the calendar: {error} - at `{path}`") from None

    return read


def _moment(number: int, form: FieldForm, path: str) -> datetime:
    if not form.times:
        raise Misfit(f"a number without a unit: set the unit of times - at `{path}`")
    return _EPOCH + timedelta(microseconds=number * 10**6 // _PER_SECOND[form.times])
