"""Types of columns, and how people write them.

=========================== ==================================================================
type                        holds
=========================== ==================================================================
boolean int long            whole numbers of 32 and 64 bits
float double                numbers of 32 and 64 bits
decimal(10, 2)              at most 10 digits, 2 of them after the point; never rounded
string binary               text and bytes (in JSON, bytes are base64)
date timestamp              a day; a moment, in UTC where it names no zone
json                        anything, kept as JSON text
list<long>                  a list of one type
map<string, double>         keys (string, int or long) with values of one type
struct<a: int, "b c": long> named fields; names that are no plain words are in quotes
=========================== ==================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

import pyarrow as pa

from nexo.errors import InvalidOption

MOST_DEPTH = 10
"""How deep types may be nested."""
MOST_FIELDS = 1_000
"""Plain types that one column may consist of."""
MOST_DIGITS = 38
"""Digits of a decimal, as Iceberg, Spark and DuckDB have them."""

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "json": pa.string(),
}  # fmt: skip
KNOWN = ", ".join([*_PLAIN, "decimal(P, S)", "list<T>", "map<K, T>", "struct<name: T, …>"])
_KEYS = ("string", "int", "long")
_WORD = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(r'\s*([<>(),:]|"(?:[^"\\]|\\.)*"|\w+|$)')


@dataclass(frozen=True, slots=True)
class PlainKind:
    """A type without parts."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalKind:
    """A number with ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class ListKind:
    """A list."""

    element: Kind

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapKind:
    """Keys and values."""

    key: PlainKind
    value: Kind

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class StructKind:
    """Fields, in order."""

    fields: tuple[tuple[str, Kind], ...]

    def __str__(self) -> str:
        inside = (f"{_quoted(name)}: {kind}" for name, kind in self.fields)
        return f"struct<{', '.join(inside)}>"


Kind: TypeAlias = PlainKind | DecimalKind | ListKind | MapKind | StructKind

JSON, STRING = PlainKind("json"), PlainKind("string")


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def arrow_type(kind: Kind) -> pa.DataType:
    match kind:
        case PlainKind():
            return _PLAIN[kind.name]
        case DecimalKind():
            return pa.decimal128(kind.precision, kind.scale)
        case ListKind():
            return pa.list_(pa.field("element", arrow_type(kind.element)))
        case MapKind():
            return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
        case StructKind():
            return pa.struct([pa.field(name, arrow_type(each)) for name, each in kind.fields])


# -- text ------------------------------------------------------------------------------


def parse(text: object) -> Kind:
    """A type as people write it; `InvalidOption` says what is wrong with it."""
    if not isinstance(text, str):
        raise InvalidOption(f"{text!r} is not one of {KNOWN}")
    return _parse(text)


@lru_cache(4_096)
def _parse(text: str) -> Kind:
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._cut(text))
        self._at = self._plain = 0

    def _cut(self, text: str) -> Iterator[str]:
        at, token = 0, " "
        while token:
            found = _TOKEN.match(text, at)
            if found is None:
                self._refuse(f"{text[at:].strip()[:1]!r} is not expected")
            at, token = found.end(), found[1]
            yield token

    def _refuse(self, why: str) -> NoReturn:
        shown = self._text if len(self._text) <= 200 else f"{self._text[:200]}…"
        raise InvalidOption(f"type {shown!r}: {why}; known are {KNOWN}")

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += bool(token)  # the end stays
        return token

    def _take(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            self._refuse(f"expected {wanted!r}, not {found or 'the end'!r}")

    def whole(self) -> Kind:
        kind = self._kind(1)
        if rest := self._next():
            self._refuse(f"{rest!r} follows a whole type")
        return kind

    def _kind(self, depth: int) -> Kind:
        if depth > MOST_DEPTH:
            self._refuse(f"nested more than {MOST_DEPTH} deep")
        match name := self._next():
            case "decimal":
                return self._decimal()
            case "list":
                self._take("<")
                kind: Kind = ListKind(self._kind(depth + 1))
            case "map":
                self._take("<")
                kind = self._map(depth)
            case "struct":
                self._take("<")
                kind = StructKind(tuple(self._fields(depth)))
            case _:
                return self._named(name)
        self._take(">")
        return kind

    def _named(self, name: str) -> PlainKind:
        if name not in _PLAIN:
            self._refuse(f"{name or 'nothing'!r} is not a type")
        self._count()
        return PlainKind(name)

    def _count(self) -> None:
        self._plain += 1
        if self._plain > MOST_FIELDS:
            self._refuse(f"more than {MOST_FIELDS:,} fields")

    def _decimal(self) -> DecimalKind:
        self._take("(")
        precision = self._number()
        self._take(",")
        scale = self._number()
        self._take(")")
        if not 1 <= precision <= MOST_DIGITS or scale > precision:
            self._refuse(
                f"a decimal has 1 to {MOST_DIGITS} digits, as many or fewer after the point"
            )
        self._count()
        return DecimalKind(precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not (token.isascii() and token.isdigit() and len(token) < 4):
            self._refuse(f"expected a small number, not {token or 'the end'!r}")
        return int(token)

    def _map(self, depth: int) -> MapKind:
        key = self._next()
        if key not in _KEYS:
            self._refuse(f"keys of a map are {', '.join(_KEYS)}, not {key!r}")
        self._take(",")
        return MapKind(PlainKind(key), self._kind(depth + 1))

    def _fields(self, depth: int) -> Iterator[tuple[str, Kind]]:
        seen: set[str] = set()
        more = ","
        while more == ",":
            name = self._name()
            if name.lower() in seen:
                self._refuse(f"there are two fields {name!r}: SQL ignores case")
            seen.add(name.lower())
            self._take(":")
            yield name, self._kind(depth + 1)
            more = self._tokens[self._at]
            self._at += more == ","

    def _name(self) -> str:
        token = self._next()
        name = token
        if token.startswith('"'):
            try:
                name = json.loads(token)
            except ValueError as error:
                self._refuse(f"{token}: {error}")
        elif not _WORD.fullmatch(token):
            self._refuse(f"expected a field's name, not {token or 'the end'!r}")
        if not may_be_field(name):
            self._refuse(f"a field of a struct cannot be named {name!r}")
        return name


def nested(kind: StructKind) -> Kind:
    """A struct inside a column; JSON if engines could not distinguish its fields."""
    try:
        return parse(str(kind))
    except InvalidOption:
        return JSON


def may_be_field(name: str) -> bool:
    """Whether a field of a struct may have this name: engines read a point as a path."""
    return bool(name.strip()) and "." not in name


# -- changes ---------------------------------------------------------------------------

_WIDER = {("int", "long"), ("float", "double")}


def widened(old: Kind, new: Kind, where: str) -> Kind:
    """A type for ``old`` and what ``new`` adds; `InvalidOption` if none keeps what is stored.

    Fields that ``new`` does not name stay.
    """
    match old, new:
        case _ if old == new:
            return old
        case PlainKind(), PlainKind() if (old.name, new.name) in _WIDER:
            return new
        case DecimalKind(), DecimalKind() if old.scale == new.scale:
            return old if old.precision > new.precision else new
        case ListKind(), ListKind():
            return ListKind(widened(old.element, new.element, where))
        case MapKind(), MapKind() if old.key == new.key:
            return MapKind(old.key, widened(old.value, new.value, where))
        case StructKind(), StructKind():
            return _with_fields(old, new, where)
    raise InvalidOption(
        f"{where} is {old} and cannot become {new}: only int to long, float to double, decimals of "
        "more digits before the point and further fields of structs keep what is stored; drop the "
        "column first (in PyIceberg: update_schema().delete_column), the raw values stay"
    )


def _with_fields(old: StructKind, new: StructKind, where: str) -> StructKind:
    fields = dict(old.fields)
    cases = {name.lower(): name for name in fields}
    for name, kind in new.fields:
        known = cases.get(name.lower(), name)
        if known != name:
            raise InvalidOption(f"{where} has a field {known!r} already, in another case")
        at = f"{where}, field {name!r},"
        fields[name] = widened(fields[name], kind, at) if name in fields else kind
    return StructKind(tuple(fields.items()))
