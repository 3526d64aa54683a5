"""Topic settings in Kafka's words, checked and turned into a stream's options (SPEC G1, G2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nexo.errors import InvalidOption
from nexo.model import duration_ms

POLICIES = ("delete", "compact", "delete,compact")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name} = {value!r}: must be a whole number")
    return value


def _limit(name: str, value: Any) -> int:
    """Kafka's -1 is our 0: no limit."""
    number = _whole(name, value)
    if number < -1:
        raise InvalidOption(f"{name} = {value!r}: must be -1 for no limit, or not negative")
    return max(0, number)


def _ratio(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidOption(f"{name} = {value!r}: must be from 0 to 1")
    return float(value)


def _policy(name: str, value: Any) -> str:
    text = {"compact,delete": "delete,compact"}.get(value, value)
    if text not in POLICIES:
        raise InvalidOption(f"{name} = {value!r}: must be one of {', '.join(POLICIES)}")
    return str(text)


def _as_is(_: str, value: Any) -> Any:
    return value


CONFIG: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "retention.ms": ("retention_ms", _limit),
    "retention.bytes": ("retention_bytes", _limit),
    "cleanup.policy": ("cleanup", _policy),
    "max.message.bytes": ("max_message_bytes", _whole),
    "min.cleanable.dirty.ratio": ("min_dirty_ratio", _ratio),
    "delete.retention.ms": ("delete_retention_ms", _whole),
    "nexo.persistence": ("persistence", _as_is),
    "nexo.tiering": ("tiering", _as_is),
}
"""Kafka's key: the stream's option, and how its value is checked."""


def stream_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """A topic's configuration as options of its stream; `InvalidOption` names what is wrong."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key not in CONFIG:
            raise InvalidOption(f"unknown topic setting {key!r}; known are {', '.join(CONFIG)}")
        option, check = CONFIG[key]
        found[option] = check(key, value)
    return found


def topic_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's options in Kafka's words."""
    return {key: options[option] for key, (option, _) in CONFIG.items() if option in options}


def partition_count(partitions: Any) -> int:
    """How many partitions; `InvalidOption` unless it is a whole number from 1 on."""
    if _whole("partitions", partitions) < 1:
        raise InvalidOption(f"partitions = {partitions}: must be at least 1")
    return int(partitions)


def replicas(factor: Any) -> int:
    """How many copies."""
    if _whole("replication_factor", factor) < 1:
        raise InvalidOption(f"replication_factor = {factor}: must be at least 1")
    return int(factor)


def topic_options(
    retention: str | None, compaction: bool | None, min_cleanable_dirty_ratio: float | None
) -> dict[str, Any]:
    """What `Topic` was given, in Kafka's words."""
    config: dict[str, Any] = {}
    if retention is not None:
        config["retention.ms"] = duration_ms(retention)
    if compaction is not None:
        config["cleanup.policy"] = "compact" if compaction else "delete"
    if min_cleanable_dirty_ratio is not None:
        config["min.cleanable.dirty.ratio"] = _ratio(
            "min_cleanable_dirty_ratio", min_cleanable_dirty_ratio
        )
    return config
