"""Columns that fit values, inferred from the values, within bounds.

Whole and other numbers mixed are doubles, dates and other texts mixed are text, and any other
mixture is JSON. Objects are structs, or maps if they have too many different keys.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from functools import reduce
from math import isfinite
from typing import Any

import msgspec

from nexo.lake.typed.kinds import (
    JSON,
    STRING,
    Kind,
    ListKind,
    MapKind,
    PlainKind,
    StructKind,
    may_be_field,
    parse,
)
from nexo.lake.typed.reading import raw_by_name, utc

MOST_COLUMNS = 200
"""The most columns to infer; the most frequent fields get them."""
MOST_KEYS = 50
"""The most fields of an inferred struct; an object with more is a map, or JSON."""
MOST_LEVELS = 4
"""What is nested more deeply is JSON."""
MOST_NAME = 200
"""The longest name of a field that becomes a column."""
_COUNTED = 5_000
"""The most fields to count: a map of ids may have millions."""

_UNKNOWN: Kind = PlainKind("unknown")
"""The type of null and of the items of an empty list; it fits everything."""
_TEXTS = {"string", "date", "timestamp"}
_MOMENTS: dict[str, Callable[[str], object]] = {
    "date": lambda text: msgspec.convert(text, date),
    "timestamp": lambda text: utc("$", msgspec.convert(text, datetime)),
}


def infer(values: Iterable[bytes | None]) -> dict[str, str]:
    """Columns that fit the JSON objects among ``values``."""
    found = Inference()
    for value in values:
        found.add_json(value or b"")
    return found.columns(MOST_COLUMNS)


class Inference:
    """Finds the types of fields, value by value; ``known`` fields are left out."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = frozenset(known)
        self._kinds: dict[str, Kind] = {}
        self._counts: Counter[str] = Counter()

    def add_json(self, value: bytes) -> None:
        """Look at a value, unless it is not a JSON object."""
        try:
            fields = raw_by_name(value)
            new = [name for name in fields if name not in self._known]
            found = {name: json.loads(bytes(fields[name])) for name in new}
        except (ValueError, RecursionError):
            return
        if found:
            self.add(found)

    def add(self, fields: Mapping[str, Any]) -> None:
        """Look at the fields of a value."""
        for name, item in fields.items():
            if item is None or not 0 < len(name) <= MOST_NAME:
                continue
            if name in self._kinds or len(self._kinds) < _COUNTED:
                kind = kind_of(item)
                self._kinds[name] = common(self._kinds.get(name, kind), kind)
                self._counts[name] += 1

    def columns(self, most: int) -> dict[str, str]:
        """The types of the fields that occur most often."""
        kept = {name for name, _ in self._counts.most_common(most)}
        return {
            name: str(settled(kind) or JSON) for name, kind in self._kinds.items() if name in kept
        }


def merged(left: Mapping[str, str], right: Mapping[str, str]) -> dict[str, str]:
    """Columns that fit the values of both."""
    found = dict(left)
    for name, kind in right.items():
        found[name] = str(settled(common(parse(found.get(name, kind)), parse(kind))) or JSON)
    return found


def kind_of(item: object, levels: int = MOST_LEVELS) -> Kind:  # noqa: PLR0911 - a case for each type
    """The type of one JSON value."""
    match item:
        case None:
            return _UNKNOWN
        case bool():
            return PlainKind("boolean")
        case int():
            return PlainKind("long") if -(2**63) <= item < 2**63 else JSON
        case float():
            return PlainKind("double") if isfinite(item) else JSON
        case str():
            return PlainKind(_kind_of_text(item))
        case list() | dict() if not levels:
            return JSON
        case list():
            return ListKind(_all_in_one(kind_of(each, levels - 1) for each in item))
        case dict():
            return _object({name: kind_of(each, levels - 1) for name, each in item.items()})
    return JSON


def _kind_of_text(text: str) -> str:
    """``date`` or ``timestamp`` for text in ISO 8601, else ``string``."""
    if not text[:4].isdigit():
        return "string"
    for name, read in _MOMENTS.items():
        try:
            read(text)
        except msgspec.ValidationError:
            continue
        return name
    return "string"


def _all_in_one(kinds: Iterable[Kind]) -> Kind:
    return reduce(common, kinds, _UNKNOWN)


def _object(fields: Mapping[str, Kind]) -> Kind:
    """A struct, or a map if it has too many keys, or keys that cannot be fields."""
    names = {name.lower() for name in fields}
    if len(names) == len(fields) <= MOST_KEYS and all(map(may_be_field, fields)):
        return StructKind(tuple(fields.items()))
    return MapKind(STRING, _all_in_one(fields.values()))


def common(left: Kind, right: Kind) -> Kind:  # noqa: PLR0911 - a case for each type
    """A type that fits the values of both."""
    match left, right:
        case _ if right in (left, _UNKNOWN):
            return left
        case _ if left == _UNKNOWN:
            return right
        case PlainKind(), PlainKind():
            return _common_plain(left.name, right.name)
        case ListKind(), ListKind():
            return ListKind(common(left.element, right.element))
        case StructKind(), StructKind():
            fields = dict(left.fields)
            for name, kind in right.fields:
                fields[name] = common(fields.get(name, kind), kind)
            return _object(fields)
        case MapKind() | StructKind(), MapKind() | StructKind():
            return MapKind(STRING, common(_values(left), _values(right)))
    return JSON


def _values(kind: MapKind | StructKind) -> Kind:
    if isinstance(kind, MapKind):
        return kind.value
    return _all_in_one(each for _, each in kind.fields)


def _common_plain(left: str, right: str) -> Kind:
    names = {left, right}
    if names <= _TEXTS:
        return STRING
    return PlainKind("double") if names == {"long", "double"} else JSON


def settled(kind: Kind) -> Kind | None:
    """A type without unknown parts; None if nothing is known of it."""
    match kind:
        case PlainKind():
            return None if kind == _UNKNOWN else kind
        case ListKind():
            element = settled(kind.element)
            return JSON if element is None else ListKind(element)
        case MapKind():
            value = settled(kind.value)
            return JSON if value is None or value == JSON else MapKind(kind.key, value)
        case StructKind():
            fields = [(name, settled(each)) for name, each in kind.fields]
            known = tuple((name, each) for name, each in fields if each is not None)
            return StructKind(known) if known else JSON
    return kind
