"""The data source's options, checked: what to read, and how much at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from nexo.errors import InvalidOption
from nexo.lake.own_columns import ROWS
from nexo.lake.typed.columns import MISFITS, REJECTED, ParsedColumn, Terms
from nexo.lake.typed.formats import ValueFormat, format_of
from nexo.lake.typed.kinds import parse as parse_kind

_OF_SINKS = ("delivery", "staging", "ledger")
KNOWN = (
    "url", "dataDir", "stream", "topic", "path", "partitions", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "rowsPerTask", "columns",
    "pushFilters", "typed", "permissive", "valueFormat", "lake", *_OF_SINKS,
)  # fmt: skip
SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode"}
"""Options that Spark hands to a source, though they are for itself."""
ROWS_PER_TASK = 1_000_000
LEDGER = "spark/ledger"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MOST = 2**63

ReadPosition = str | int | dict[int, int]
"""``earliest``, ``latest``, one offset for every partition, or an offset for each."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads."""

    stream: str
    url: str | None = None
    partitions: tuple[int, ...] | None = None
    starting: ReadPosition = "earliest"
    ending: ReadPosition = "latest"
    from_ms: int | None = None
    until_ms: int | None = None
    max_per_trigger: int | None = None
    rows_per_task: int = ROWS_PER_TASK
    columns: tuple[str, ...] = field(default=tuple(ROWS.names))
    data_dir: str | None = None
    """A server's data folder, to read instead of asking its broker."""
    push_filters: bool = False
    typed: Terms | None = None
    """How values are parsed into further columns."""
    lake: str | None = None
    """The folder of the lake as this machine sees it, if it is not the server's own."""
    at_least_once: bool = False
    """Of a sink: publish at once, rather than all of a batch in one transaction."""
    staging: str | None = None
    """Of a sink: where tasks stage what is to be published; by default in the lake."""
    ledger: str = LEDGER
    """Of a sink: the stream that notes which batches are published."""


def parse(given: Mapping[str, str], *, writing: bool = False) -> SourceOptions:
    """Options as Spark passes them: keys in any case, values as text.

    ``writing`` needs no stream: a column may name the stream of each row.
    """
    found = _named(given, KNOWN)
    stream = found.get("stream") or found.get("topic") or found.get("path") or ""
    if not writing and (wrong := [name for name in _OF_SINKS if name in found]):
        raise InvalidOption(
            f"{wrong[0]} is an option of writing: a query that reads has no use for it"
        )
    if not stream and not writing:
        raise InvalidOption("say which stream: .option('stream', name) or .load(name)")
    if "url" in found and "dataDir" in found:
        raise InvalidOption("give either url or dataDir: a broker to ask, or files to read")
    permissive = _flag("permissive", found.get("permissive", "false"))
    typed = _typed(found.get("typed"), permissive, _format(found.get("valueFormat")))
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
        found.get("lake"),
        _at_least_once(found.get("delivery", EXACTLY_ONCE)),
        found.get("staging"),
        found.get("ledger") or LEDGER,
    )


# -- Kafka's options -------------------------------------------------------------------

KAFKA_CHOICES = ("subscribe", "subscribepattern", "assign")
"""Options that choose streams as Kafka's source does, in lower case."""
_KAFKA_KNOWN = (
    "url", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "failOnDataLoss", "maxOffsetsPerTrigger", "minPartitions", "includeHeaders", "rowsPerTask",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """What a query over several streams reads."""

    url: str | None
    topics: tuple[str, ...]
    pattern: str | None
    assigned: dict[str, list[int]] | None
    starting: str | dict[str, dict[str, int]]
    ending: str | dict[str, dict[str, int]]
    fail_on_loss: bool
    max_per_trigger: int | None
    min_partitions: int
    rows_per_task: int
    headers: bool
    columns: tuple[str, ...] = ()


def kafka_options(given: Mapping[str, str], *, streaming: bool) -> KafkaOptions:
    """Options of Kafka's source; a streaming query starts at the latest offset, as there."""
    found = _named(given, _KAFKA_KNOWN, " beside subscribe")
    chosen = [name for name in found if name.lower() in KAFKA_CHOICES]
    if len(chosen) != 1:
        raise InvalidOption(f"give one of subscribe, subscribePattern and assign, not {chosen}")
    if streaming and found.get("endingOffsets", "latest") != "latest":
        raise InvalidOption(
            "endingOffsets is only for batch queries: end with trigger(availableNow=True) at what "
            "is there now"
        )
    assigned = _assigned(found["assign"]) if "assign" in found else None
    names = assigned if assigned is not None else found.get("subscribe", "").split(",")
    default = "latest" if streaming else "earliest"
    return KafkaOptions(
        found.get("url"),
        tuple(stripped for name in names if (stripped := name.strip())),
        _pattern(found.get("subscribePattern")),
        assigned,
        _topic_offsets("startingOffsets", found.get("startingOffsets", default)),
        _topic_offsets("endingOffsets", found.get("endingOffsets", "latest")),
        _flag("failOnDataLoss", found.get("failOnDataLoss", "true")),
        _count("maxOffsetsPerTrigger", found.get("maxOffsetsPerTrigger")),
        _count("minPartitions", found.get("minPartitions")) or 1,
        _count("rowsPerTask", found.get("rowsPerTask")) or ROWS_PER_TASK,
        _flag("includeHeaders", found.get("includeHeaders", "false")),
    )


def _pattern(text: str | None) -> str | None:
    try:
        return None if text is None else re.compile(text).pattern
    except re.error as error:
        raise InvalidOption(f"subscribePattern = {text!r}: {error}") from None


def _assigned(text: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] | None = _json(text, dict[str, list[int]])
    if found:
        return found
    raise InvalidOption(f'assign = {text!r}: give partitions by stream: {{"orders": [0, 1]}}')


def _topic_offsets(name: str, text: str) -> str | dict[str, dict[str, int]]:
    if text in ("earliest", "latest"):
        return text
    found: dict[str, dict[str, int]] | None = _json(text, dict[str, dict[str, int]])
    if found is not None:
        return found
    raise InvalidOption(
        f"{name} = {text!r}: give 'earliest', 'latest', or offsets by stream and partition as "
        'JSON, such as {"orders": {"0": 42, "1": -2}} (-2 is the earliest, -1 the latest)'
    )


# -- one option each -------------------------------------------------------------------


def _named(given: Mapping[str, str], known: tuple[str, ...], beside: str = "") -> dict[str, str]:
    """Options by their names; Spark may change their case."""
    by_lower = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() in SPARKS_OWN:
            continue
        name = by_lower.get(key.lower())
        if name is None:
            raise InvalidOption(f"unknown option {key!r}{beside}; known are {', '.join(known)}")
        found[name] = value
    return found


def _position(name: str, text: str) -> ReadPosition:
    if text in ("earliest", "latest"):
        return text
    found: int | dict[int, int] | None = _json(text, int | dict[int, int])
    if isinstance(found, dict) or (found is not None and found >= 0):
        return found
    raise InvalidOption(
        f"{name} = {text!r}: give 'earliest', 'latest', an offset, or offsets by partition as "
        'JSON, such as {"0": 42, "1": 7}'
    )


def _json(text: str, kind: Any) -> Any:
    """What a JSON text holds; None if it is not of that kind."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


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


def _at_least_once(text: str) -> bool:
    if text not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise InvalidOption(f"delivery = {text!r}: give {EXACTLY_ONCE!r} or {AT_LEAST_ONCE!r}")
    return text == AT_LEAST_ONCE


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


def own_columns(permissive: bool) -> list[str]:
    """Columns for what does not fit the typed ones."""
    return [REJECTED, MISFITS] if permissive else [REJECTED]


def _format(text: str | None) -> ValueFormat | None:
    try:
        return format_of(text)
    except msgspec.DecodeError as error:
        raise InvalidOption(
            f"valueFormat: {error}; it is what the table's property nexo.columns.format says"
        ) from None


def _columns(text: str | None, typed: Terms | None) -> tuple[str, ...]:
    known = list(ROWS.names)
    if typed is not None:
        known += [*typed.names.values(), *own_columns(typed.permissive)]
    if text is None:
        return tuple(known)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            raise InvalidOption(f"unknown column {name!r}; known are {', '.join(known)}")
        if names.count(name) > 1:
            raise InvalidOption(f"columns = {text!r}: {name!r} appears twice")
    return names


def _typed(text: str | None, permissive: bool, value_format: ValueFormat | None) -> Terms | None:
    found = _json(text or "{}", dict[str, str | tuple[str, str]])
    if found is None:
        raise InvalidOption(
            f"typed = {text!r}: give JSON fields and their types, such as "
            '{"amount": "double"}, or {"euros": ["amount", "double"]} for another name'
        )
    columns = [
        _typed_column(name, given, number) for number, (name, given) in enumerate(found.items())
    ]
    fields = [column.source for column in columns]
    for source in fields:
        if fields.count(source) > 1:
            raise InvalidOption(f"typed: the JSON field {source!r} appears twice")
    own = own_columns(permissive)
    taken = [name.lower() for name in (*ROWS.names, *own, *found)]
    for name, column in zip(found, columns, strict=True):
        if taken.count(name.lower()) > 1:
            raise InvalidOption(
                f"typed: there is another column {name!r}: give this one another name, "
                f'such as {{"value_{name}": ["{column.source}", "{column.kind}"]}}'
            )
    names = dict(enumerate(found))
    return Terms(columns, names, permissive, format=value_format) if columns else None


def _typed_column(name: str, given: str | tuple[str, str], number: int) -> ParsedColumn:
    source, kind = (name, given) if isinstance(given, str) else given
    try:
        parse_kind(kind)
    except InvalidOption as error:
        raise InvalidOption(f"typed: {name!r}: {error.message}") from None
    return ParsedColumn(source, number, kind)
