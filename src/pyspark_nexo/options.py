"""The data source's options, checked: what to read, and how much at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from nexo.errors import InvalidOption
from nexo.lake.rows import ROWS

KNOWN = (
    "url", "dataDir", "stream", "path", "partitions", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "rowsPerTask", "columns",
    "pushFilters",
)  # fmt: skip
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode"}
_BY_LOWER = {name.lower(): name for name in KNOWN}
ROWS_PER_TASK = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Position = str | int | dict[int, int]
"""``earliest``, ``latest``, one offset for every partition, or an offset for each."""


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
    return SourceOptions(
        stream,
        found.get("url"),
        _partitions(found.get("partitions")),
        _position("startingOffsets", found.get("startingOffsets", "earliest")),
        _position("endingOffsets", found.get("endingOffsets", "latest")),
        _millis("startingTimestamp", found.get("startingTimestamp")),
        _millis("endingTimestamp", found.get("endingTimestamp")),
        _count("maxOffsetsPerTrigger", found.get("maxOffsetsPerTrigger")),
        _count("rowsPerTask", found.get("rowsPerTask")) or ROWS_PER_TASK,
        _columns(found.get("columns")),
        found.get("dataDir"),
        _flag("pushFilters", found.get("pushFilters", "false")),
    )


def _position(name: str, text: str) -> Position:
    if text in ("earliest", "latest"):
        return text
    try:
        found = json.loads(text)
        if isinstance(found, int) and found >= 0:
            return found
        if isinstance(found, dict):
            return {int(partition): int(offset) for partition, offset in found.items()}
    except (ValueError, TypeError):
        pass
    raise InvalidOption(
        f"{name} = {text!r}: give 'earliest', 'latest', an offset, or offsets by partition as "
        'JSON, such as {"0": 42, "1": 7}'
    )


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
    if not text.isdigit() or int(text) < 1:
        raise InvalidOption(f"{name} = {text!r}: must be a positive number")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"{name} = {text!r}: must be true or false")
    return text.lower() == "true"


def _millis(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(
            f"{name} = {text!r}: give milliseconds since 1970, or an ISO time"
        ) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return -(-since // _MILLISECOND)  # the first one that is not earlier


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(ROWS.names)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in ROWS.names:
            raise InvalidOption(f"unknown column {name!r}; known are {', '.join(ROWS.names)}")
    return names
