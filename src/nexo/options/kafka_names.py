"""Options of streams in Kafka's words, for `nexo.topics` and for Kafka clients."""

from __future__ import annotations

from typing import Any

OPTION_OF = {
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "cleanup.policy": "cleanup",
    "max.message.bytes": "max_message_bytes",
    "min.cleanable.dirty.ratio": "min_dirty_ratio",
    "delete.retention.ms": "delete_retention_ms",
}
"""A configuration of Kafka's topics: the option of our streams."""
_LIMITS = ("retention.ms", "retention.bytes")
"""No limit is Kafka's -1 and our 0."""


def from_kafka(key: str, value: Any) -> Any:
    """A value as our option has it; what Kafka and we write alike stays as it is."""
    if key in _LIMITS and value == -1:
        return 0
    if key == "cleanup.policy" and isinstance(value, str):  # a list, in any order
        return ",".join(sorted({word.strip() for word in value.split(",")}, reverse=True))
    return value


def to_kafka(key: str, value: Any) -> Any:
    """A value of our option as Kafka has it."""
    return -1 if key in _LIMITS and value == 0 else value
