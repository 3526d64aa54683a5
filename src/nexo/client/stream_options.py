"""Reads the arguments of ``create`` and ``update`` as the options of a stream (SPEC E1)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from nexo.client.checks import whole
from nexo.errors import InvalidInput, InvalidOption
from nexo.model.stream import StartPosition
from nexo.options.described import to_stored
from nexo.options.stream import SharedOptions, StreamOptions
from nexo.options.units import Duration, millis


class Retention(TypedDict, total=False):
    """How much of a stream is kept; 0 or None is no limit."""

    max_age: Duration | None
    max_bytes: int | None


class StreamSettings(TypedDict, total=False):
    """Options of a stream, as `create` and `update` take them."""

    partitions: int
    persistence: str
    retention: Retention | Duration
    compaction: bool
    cleanup: str
    min_dirty_ratio: float
    delete_retention: Duration
    max_message_bytes: int
    kafka_compression: str
    tiering: bool


class GroupSettings(TypedDict, total=False):
    """Options of a shared group, as `consume` and `subscribe` take them."""

    ack_wait: Duration
    max_deliveries: int
    max_ack_pending: int
    ordered_by: Literal["key"] | None


def group_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a group by their stored names; `InvalidOption` for one that does not exist."""
    return to_stored(SharedOptions, given)


def stream_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a stream by their stored names; `InvalidOption` for one that does not exist."""
    options = dict(given)
    for name, value in _aliases(options).items():
        if name in options:
            raise InvalidOption(f"{name} was given twice, in two spellings")
        options[name] = value
    return to_stored(StreamOptions, options)


def _aliases(options: dict[str, Any]) -> dict[str, Any]:
    """Takes out of ``options`` those that `StreamOptions` spells otherwise."""
    found: dict[str, Any] = {}
    if "compaction" in options:
        compaction = options.pop("compaction")
        if not isinstance(compaction, bool):
            raise InvalidOption(f"compaction is True or False, not {compaction!r}")
        found["cleanup"] = "compact" if compaction else "delete"
    if "retention" in options:
        found |= _retention(options.pop("retention"))
    return found


def _retention(retention: Any) -> dict[str, Any]:
    limits = retention if isinstance(retention, Mapping) else {"max_age": retention}
    unknown = limits.keys() - {"max_age", "max_bytes"}
    if unknown:
        raise InvalidOption(
            f"retention has max_age and max_bytes, not {', '.join(map(repr, unknown))}"
        )
    found: dict[str, Any] = {}
    if "max_age" in limits:
        found["retention_ms"] = millis(limits["max_age"] or 0, "max_age")
    if "max_bytes" in limits:
        found["retention_bytes"] = limits["max_bytes"] or 0
    return found


def position(at: StartPosition | datetime, what: str) -> tuple[StartPosition, int | None]:
    """A place in a stream, and a time instead if one was given."""
    match at:
        case datetime():
            return "beginning", int(at.timestamp() * 1000)
        case "beginning" | "end":
            return at, None
        case dict():
            for partition, offset in at.items():
                whole(partition, "a partition", 0)
                whole(offset, "an offset", 0)
            return at, None
        case int() if not isinstance(at, bool):
            return whole(at, what, 0), None
    raise InvalidInput(
        f"{what} is 'beginning', 'end', an offset, offsets by partition, or a datetime, not {at!r}"
    )
