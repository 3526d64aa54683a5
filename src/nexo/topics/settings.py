"""Topic settings in Kafka's words, checked and turned into a stream's options (SPEC G1, G2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nexo.client.checks import whole
from nexo.errors import InvalidInput, InvalidOption
from nexo.options.described import described, keywords
from nexo.options.option import Unfit
from nexo.options.stream import OPTION_OF, OrderedOptions, StreamOptions, from_kafka
from nexo.options.units import Duration, millis

_MOST_BARE_S = 600
"""Timeouts and intervals of consumers that are longer name their unit."""


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} = {value!r}: must be True or False")
    return value


CONFIG = OPTION_OF | {"nexo.persistence": "persistence", "nexo.tiering": "tiering"}
"""A topic's configuration: the stream's option."""


def stream_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """A topic's configuration as options of its stream; `InvalidOption` names what is wrong."""
    if not isinstance(config, Mapping):
        raise InvalidOption(f"a topic's config is a mapping, not {config!r}")
    for key in config:
        if key not in CONFIG:
            raise InvalidOption(f"unknown topic setting {key!r}; known are {', '.join(CONFIG)}")
    return {CONFIG[key]: _checked(key, value) for key, value in config.items()}


def _checked(key: str, value: Any) -> Any:
    """A value as the stream's option takes it."""
    option = described(StreamOptions)[CONFIG[key]]
    try:
        found = option.check(from_kafka(key, value))
    except Unfit as error:
        raise InvalidOption(option.refusal(key, value, error)) from None
    return whole(found, key, 0, refusal=InvalidOption) if type(found) is int else found


def topic_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's options in Kafka's words."""
    return {key: options[option] for key, option in CONFIG.items() if option in options}


def group_timeout_ms(name: str, given: Duration | None) -> int | None:
    """A timeout of a group; None leaves it as the group has it."""
    if given is None:
        return None
    _check_unit(name, given)
    option = keywords(OrderedOptions)[name]
    try:
        found: int = option.check(option.read(given, name))
    except Unfit as error:
        raise InvalidOption(option.refusal(name, given, error)) from None
    return found


def interval_ms(name: str, given: Duration) -> int:
    """`option_ms` of something that happens every few seconds."""
    _check_unit(name, given)
    return option_ms(name, given)


def _check_unit(name: str, given: Duration) -> None:
    """Refuse a bare number that is hardly in seconds: Kafka's clients count in milliseconds."""
    if isinstance(given, int | float) and given > _MOST_BARE_S:
        raise InvalidOption(
            f"{name} = {given!r}: a number without a unit is in seconds; "
            f"write '{given}ms' if it is milliseconds, or '{given}s'"
        )


def option_ms(name: str, given: Duration) -> int:
    """A duration in milliseconds; `InvalidOption` if it is none."""
    try:
        return millis(given, name)
    except InvalidInput as error:
        raise InvalidOption(error.message) from None


def at_least_one(name: str, given: Any) -> int:
    """A whole number from 1 on."""
    if isinstance(given, Mapping):
        raise InvalidOption(
            f"{name} = {given!r}: options are keywords here, such as partitions=4, config={{…}}"
        )
    return whole(given, name, 1, refusal=InvalidOption)


def check_more(topic: str, now: int, wanted: int) -> None:
    """Refuse a number of partitions that a topic has already, or more than which it has."""
    if wanted <= now:
        raise InvalidOption(
            f"partitions = {wanted}: topic {topic!r} has {now}, and partitions may be added, never "
            "removed"
        )


def not_negative(name: str, given: Any) -> float:
    """A number from 0 on."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 2**63:
        raise InvalidOption(f"{name} = {given!r}: must be a number, and not negative")
    return given


def one_of(name: str, given: Any, *allowed: str) -> Any:
    if given not in allowed:
        raise InvalidOption(f"{name} = {given!r}: must be {' or '.join(map(repr, allowed))}")
    return given


def topic_options(
    retention: Duration | None,
    compaction: bool | None,
    min_cleanable_dirty_ratio: float | None,
) -> dict[str, Any]:
    """The options of `Topic`, in Kafka's words."""
    config: dict[str, Any] = {}
    if retention is not None:
        config["retention.ms"] = option_ms("retention", retention)
    if compaction is not None:
        config["cleanup.policy"] = "compact" if _flag("compaction", compaction) else "delete"
    if min_cleanable_dirty_ratio is not None:
        ratio = "min.cleanable.dirty.ratio"
        config[ratio] = _checked(ratio, min_cleanable_dirty_ratio)
    return config
