"""The data source's options, checked: what to read, and how much at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from nexo.errors import InvalidOption
from nexo.lake.rows import ROWS
from nexo.lake.typed import KINDS, REJECTED

KNOWN = (
    "url", "dataDir", "stream", "path", "partitions", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "rowsPerTask", "columns",
    "pushFilters", "typed", "permissive",
)  # fmt: skip
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode"}
_BY_LOWER = {name.lower(): name for name in KNOWN}
ROWS_PER_TASK = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MOST = 2**63

Position = str | int | dict[int, int]
"""``earliest``, ``latest``, one offset for every partition, or an offset for each."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column, and the JSON field of the values that it holds."""

    name: str
    field: str
    kind: str


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads."""

    stream: str
    url: str | None = None
    partitions: tuple[int, ...] | None = None
    starting: Position = "earliest"
    ending: Position = "latest"
    from_ms: int | None = None
    until_ms: int | None = None
    max_per_trigger: int | None = None
    rows_per_task: int = ROWS_PER_TASK
    columns: tuple[str, ...] = field(default=tuple(ROWS.names))
    data_dir: str | None = None
    """A server's data folder, to be read instead of asking its broker."""
    push_filters: bool = False
    typed: tuple[TypedColumn, ...] = ()
    permissive: bool = False


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Options as Spark hands them over: keys in any case, values as text."""
    found: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() in _SPARKS_OWN:
            continue
        name = _BY_LOWER.get(key.lower())
        if name is None:
            raise InvalidOption(f"unknown option {key!r}; known are {', '.join(KNOWN)}")
        found[name] = value
    stream = found.get("stream") or found.get("path")
    if not stream:
        raise InvalidOption("say which stream: .option('stream', name) or .load(name)")
    if "url" in found and "dataDir" in found:
        raise InvalidOption("give either url or dataDir: a broker to ask, or files to read")
    typed = _typed(found.get("typed"))
    from_ms = _millis("startingTimestamp", found.get("startingTimestamp"))
    until_ms = _millis("endingTimestamp", found.get("endingTimestamp"))
    if from_ms is not None and until_ms is not None and until_ms < from_ms:
        raise InvalidOption(
            f"endingTimestamp = {found['endingTimestamp']!r} is before startingTimestamp = "
            f"{found['startingTimestamp']!r}"
        )
    return SourceOptions(
        stream,
        found.get("url"),
        _partitions(found.get("partitions")),
        _position("startingOffsets", found.get("startingOffsets", "earliest")),
        _position("endingOffsets", found.get("endingOffsets", "latest")),
        from_ms,
        until_ms,
        _count("maxOffsetsPerTrigger", found.get("maxOffsetsPerTrigger")),
        _count("rowsPerTask", found.get("rowsPerTask")) or ROWS_PER_TASK,
        _columns(found.get("columns"), typed),
        found.get("dataDir"),
        _flag("pushFilters", found.get("pushFilters", "false")),
        typed,
        _flag("permissive", found.get("permissive", "false")),
    )


def _position(name: str, text: str) -> Position:
    if text in ("earliest", "latest"):
        return text
    try:
        found = json.loads(text)
        if _is_offset(found) and found >= 0:
            return int(found)
        if isinstance(found, dict) and all(map(_is_offset, found.values())):
            return {int(partition): offset for partition, offset in found.items()}
    except ValueError:
        pass
    raise InvalidOption(
        f"{name} = {text!r}: give 'earliest', 'latest', an offset, or offsets by partition as "
        'JSON, such as {"0": 42, "1": 7}'
    )


def _is_offset(found: object) -> bool:
    return type(found) is int  # neither 1.5 nor true


def _partitions(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InvalidOption(f"partitions = {text!r}: give numbers, such as 0,2,5") from None


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not _is_number(text) or int(text) < 1:
        raise InvalidOption(f"{name} = {text!r}: must be a positive number")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"{name} = {text!r}: must be true or false")
    return text.lower() == "true"


def _millis(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if _is_number(text) and int(text) < _MOST:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(
            f"{name} = {text!r}: give milliseconds since 1970, or an ISO time"
        ) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return -(-since // _MILLISECOND)  # the first one that is not earlier


def _columns(text: str | None, typed: tuple[TypedColumn, ...]) -> tuple[str, ...]:
    known = [*ROWS.names, *(column.name for column in typed), *([REJECTED] if typed else [])]
    if text is None:
        return tuple(known)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            raise InvalidOption(f"unknown column {name!r}; known are {', '.join(known)}")
        if names.count(name) > 1:
            raise InvalidOption(f"columns = {text!r}: {name!r} is there twice")
    return names


def _typed(text: str | None) -> tuple[TypedColumn, ...]:
    try:
        found = json.loads(text or "{}")
        columns = [_typed_column(name, given) for name, given in found.items()]
    except (ValueError, AttributeError):
        raise InvalidOption(
            f"typed = {text!r}: give JSON fields and their types, such as "
            '{"amount": "double"}, or {"euros": ["amount", "double"]} for another name'
        ) from None
    fields = [column.field for column in columns]
    for source in fields:
        if fields.count(source) > 1:
            raise InvalidOption(f"typed: the JSON field {source!r} is there twice")
    taken = [name.lower() for name in (*ROWS.names, REJECTED, *(each.name for each in columns))]
    for column in columns:
        if taken.count(column.name.lower()) > 1:
            raise InvalidOption(
                f"typed: there is another column {column.name!r}: give this one another name, "
                f'such as {{"value_{column.name}": ["{column.field}", "{column.kind}"]}}'
            )
    return tuple(columns)


def _typed_column(name: str, given: object) -> TypedColumn:
    source, kind = given if isinstance(given, list) else (name, given)
    if not isinstance(source, str) or not isinstance(kind, str):
        raise ValueError
    if kind not in KINDS:
        raise InvalidOption(f"typed: {name!r}: {kind!r} is not one of {', '.join(KINDS)}")
    return TypedColumn(name, source, kind)
