"""Topic settings in Kafka's words, checked and turned into a stream's options (SPEC G1, G2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from nexo.client.checks import millis
from nexo.errors import InvalidInput, InvalidOption
from nexo.model import Persistence, duration_ms
from nexo.protocol.stream_ordered import MAX_TIMEOUT_MS, MIN_TIMEOUT_MS

POLICIES = ("delete", "compact", "delete,compact")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name} = {value!r}: must be a whole number")
    if abs(value) >= 2**63:
        raise InvalidOption(f"{name} = {value}: has more than 64 bits")
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
    text = "delete,compact" if value == "compact,delete" else value
    if text not in POLICIES:
        raise InvalidOption(f"{name} = {value!r}: must be one of {', '.join(POLICIES)}")
    return str(text)


def _persistence(name: str, value: Any) -> Any:
    if value not in list(Persistence):
        raise InvalidOption(f"{name} = {value!r}: must be one of {', '.join(Persistence)}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} = {value!r}: must be True or False")
    return value


CONFIG: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "retention.ms": ("retention_ms", _limit),
    "retention.bytes": ("retention_bytes", _limit),
    "cleanup.policy": ("cleanup", _policy),
    "max.message.bytes": ("max_message_bytes", _whole),
    "min.cleanable.dirty.ratio": ("min_dirty_ratio", _ratio),
    "delete.retention.ms": ("delete_retention_ms", _whole),
    "nexo.persistence": ("persistence", _persistence),
    "nexo.tiering": ("tiering", _flag),
}
"""Kafka's key: the stream's option, and how its value is checked."""


def stream_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """A topic's configuration as options of its stream; `InvalidOption` names what is wrong."""
    found: dict[str, Any] = {}
    if not isinstance(config, Mapping):
        raise InvalidOption(f"a topic's config is a mapping, not {config!r}")
    for key, value in config.items():
        if key not in CONFIG:
            raise InvalidOption(f"unknown topic setting {key!r}; known are {', '.join(CONFIG)}")
        option, check = CONFIG[key]
        found[option] = check(key, value)
    return found


def topic_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's options in Kafka's words."""
    return {key: options[option] for key, (option, _) in CONFIG.items() if option in options}


def span_ms(name: str, given: Any) -> int:
    """Of ``'7d'`` or a `timedelta`; not of a number, which may be meant in days or seconds."""
    if isinstance(given, timedelta):
        return millis(given)
    if not isinstance(given, str):
        raise InvalidOption(f"{name} = {given!r}: write a duration, such as '7d'")
    return _whole(name, duration_ms(given))


def group_timeout_ms(name: str, given: Any) -> int | None:
    """A timeout of a group, in seconds; None leaves it as the group has it."""
    if given is None:
        return None
    found = option_ms(name, given)
    if not MIN_TIMEOUT_MS <= found <= MAX_TIMEOUT_MS:
        raise InvalidOption(f"{name} = {given!r}: must be from 1 second to 1 day")
    return found


def option_ms(name: str, given: Any) -> int:
    """An option that is a duration in seconds, not negative."""
    try:
        return millis(given)
    except InvalidInput as error:
        raise InvalidOption(f"{name} = {given!r}: {error}") from None


def at_least_one(name: str, given: Any) -> int:
    """A count."""
    if _whole(name, given) < 1:
        raise InvalidOption(f"{name} = {given}: must be at least 1")
    return int(given)


def not_negative(name: str, given: Any) -> float:
    """A number from 0 on."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 2**63:
        raise InvalidOption(f"{name} = {given!r}: must be a number, and not negative")
    return given


def one_of(name: str, given: Any, *allowed: str) -> Any:
    """One of a few words."""
    if given not in allowed:
        raise InvalidOption(f"{name} = {given!r}: must be {' or '.join(map(repr, allowed))}")
    return given


def topic_options(
    retention: str | timedelta | None,
    compaction: bool | None,
    min_cleanable_dirty_ratio: float | None,
) -> dict[str, Any]:
    """What `Topic` was given, in Kafka's words."""
    config: dict[str, Any] = {}
    if retention is not None:
        config["retention.ms"] = span_ms("retention", retention)
    if compaction is not None:
        config["cleanup.policy"] = "compact" if _flag("compaction", compaction) else "delete"
    if min_cleanable_dirty_ratio is not None:
        config["min.cleanable.dirty.ratio"] = _ratio(
            "min_cleanable_dirty_ratio", min_cleanable_dirty_ratio
        )
    return config
