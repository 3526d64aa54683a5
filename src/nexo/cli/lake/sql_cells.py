"""Formats the results of SQL for people and programs: no Python in them, and times in UTC.

A timestamp is a naive time in this machine's zone when Spark hands it over, while queries see UTC.
DuckDB hands over times with their zone; a naive one is in no zone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from nexo.cli import cells

_QUOTE = '"'
_SPECIAL = re.compile(r'[",\r\n]')


def read(row: Sequence[Any], zoneless: Container[int] = ()) -> tuple[Any, ...]:
    """A row's items; times of the ``zoneless`` columns are in no zone, and stay so."""
    return tuple(
        item.isoformat() if number in zoneless and item is not None else item
        for number, item in enumerate(row)
    )


def zoned(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of DuckDB: times without a zone stay so."""
    return tuple(
        item.isoformat() if isinstance(item, datetime) and item.tzinfo is None else item
        for item in row
    )


def field(item: Any) -> object:
    """A field of a line of text: numbers as they are, nothing for null, what is nested as JSON."""
    match item:
        case bool():
            return str(item).lower()
        case None | str() | int() | float() | Decimal():
            return item
        case bytes() | bytearray():
            return _text(bytes(item))
        case date():
            return _moment(item)
        case dict() | list() | tuple():
            return json.dumps(plain_json(item), ensure_ascii=False, default=cells.plain)
    return str(item)


def csv_line(items: Iterable[object]) -> str:
    """A line as PostgreSQL's ``COPY … CSV`` writes it: nothing for null, ``""`` for empty text."""
    return ",".join(map(_csv_field, items)) + "\r\n"


def _csv_field(item: object) -> str:
    if item is None:
        return ""
    text = str(item)
    if text and not _SPECIAL.search(text):
        return text
    return f'"{text.replace(_QUOTE, 2 * _QUOTE)}"'


def plain_json(item: Any) -> object:
    """The same for JSON, which has numbers, lists and objects; bytes stay ``{"base64": …}``."""
    match item:
        case float() if not math.isfinite(item):
            return str(item)
        case date():
            return _moment(item)
        case dict():
            return {_key(key): plain_json(value) for key, value in item.items()}
        case tuple() if hasattr(item, "asDict"):
            return {name: plain_json(value) for name, value in item.asDict().items()}
        case list() | tuple():
            return [plain_json(each) for each in item]
    return item


def _key(item: Any) -> str:
    return item if isinstance(item, str) else str(field(item))


def _text(raw: bytes) -> object:
    """Bytes as the text that they most often are, else as base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return cells.plain(raw)["base64"]


def _moment(item: date) -> str:
    if not isinstance(item, datetime):
        return item.isoformat()
    return item.astimezone(UTC).isoformat().replace("+00:00", "Z")


def apart(columns: Iterable[str]) -> Iterator[str]:
    """Names of columns made unique: a join may well return two of one name."""
    seen: set[str] = set()
    for column in columns:
        name, number = column, 2
        while name in seen:
            name, number = f"{column}_{number}", number + 1
        seen.add(name)
        yield name
