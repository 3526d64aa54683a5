"""Options of streams as Kafka's topic configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nexo.config import Settings
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.errors import InvalidOption
from nexo.options.kafka_names import OPTION_OF, from_kafka, to_kafka
from nexo.options.stream import StreamOptions

DEFAULT, DYNAMIC_TOPIC, STATIC_BROKER = 5, 1, 4
"""Where a value comes from."""
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7

OPTIONS = OPTION_OF | {"remote.storage.enable": "tiering"}
"""A configuration: the stream's option."""
_KINDS = {
    "retention.ms": _LONG,
    "retention.bytes": _LONG,
    "cleanup.policy": _LIST,
    "max.message.bytes": _INT,
    "min.cleanable.dirty.ratio": _DOUBLE,
    "delete.retention.ms": _LONG,
    "remote.storage.enable": _BOOLEAN,
}


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


_READ: dict[int, Callable[[str], Any]] = {
    _BOOLEAN: _flag, _INT: int, _LONG: int, _DOUBLE: float, _LIST: str,
}  # fmt: skip


def _written(name: str, options: StreamOptions) -> str:
    value = to_kafka(name, getattr(options, OPTIONS[name]))
    return str(value).lower() if isinstance(value, bool) else str(value)


_FIXED = {
    "compression.type": ("producer", _STRING),
    "message.timestamp.type": ("CreateTime", _STRING),
    "min.insync.replicas": ("1", _INT),
    "unclean.leader.election.enable": ("false", _BOOLEAN),
}
"""What is shown and cannot be changed."""
_IGNORED = frozenset(_FIXED) | frozenset(
    [
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.compaction.lag.ms",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    ]
)
"""Accepted from clients that set them everywhere; they mean nothing here."""


def options_of(configs: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """Configurations as options; `InvalidOption` names one that is unknown or bad."""
    found: dict[str, Any] = {}
    for name, text in configs:
        if name in _IGNORED or (text is None and name in OPTIONS):
            continue
        if name not in OPTIONS:
            raise InvalidOption(f"configuration {name!r} is not known here")
        kind = _KINDS[name]
        try:
            found[OPTIONS[name]] = from_kafka(name, _READ[kind](text or ""))
        except (KeyError, ValueError):
            wanted = "true or false" if kind == _BOOLEAN else "a number"
            raise InvalidOption(f"{name} = {text!r} is not {wanted}") from None
    return found


def changed_options(
    options: StreamOptions, defaults: StreamOptions, rows: Iterable[tuple[str, int, str | None]]
) -> dict[str, Any]:
    """What `IncrementalAlterConfigs` makes of options: name, operation and value each."""
    values: dict[str, str | None] = {}
    for name, operation, text in rows:
        if name not in OPTIONS or operation == 0:
            values[name] = text
        elif operation == 1:
            values[name] = _written(name, defaults)
        elif _KINDS[name] == _LIST:
            now = set(_written(name, options).split(","))
            given = set((text or "").split(","))
            values[name] = ",".join(sorted(now | given if operation == 2 else now - given))
        else:
            raise InvalidOption(f"{name} is not a list: set it instead")
    return options_of(values.items())


def described(
    options: StreamOptions, defaults: StreamOptions, keys: Iterable[str] | None
) -> list[KafkaMessage]:
    """A topic's configurations, all or those asked for."""
    rows = [
        _row(name, text := _written(name, options), kind)
        | {"source": DEFAULT if text == _written(name, defaults) else DYNAMIC_TOPIC}
        for name, kind in _KINDS.items()
    ]
    rows += [_row(name, text, kind) | {"read_only": True} for name, (text, kind) in _FIXED.items()]
    return _asked(rows, keys)


def broker_configs(settings: Settings, keys: Iterable[str] | None) -> list[KafkaMessage]:
    shown: Mapping[str, tuple[str, int]] = {
        "auto.create.topics.enable": (str(settings.kafka_auto_create).lower(), _BOOLEAN),
        "default.replication.factor": ("1", _INT),
        "log.retention.bytes": (_written("retention.bytes", settings.stream_options), _LONG),
        "log.retention.ms": (_written("retention.ms", settings.stream_options), _LONG),
        "message.max.bytes": (str(settings.max_payload_bytes), _INT),
        "num.partitions": (str(settings.kafka_partitions), _INT),
    }
    rows = [_row(name, *found) | {"source": STATIC_BROKER} for name, found in shown.items()]
    return _asked([row | {"read_only": True} for row in rows], keys)


def _row(name: str, text: str, kind: int) -> KafkaMessage:
    return {"name": name, "value": text, "source": DEFAULT, "config_type": kind}


def _asked(rows: list[KafkaMessage], keys: Iterable[str] | None) -> list[KafkaMessage]:
    wanted = None if keys is None else set(keys)
    return [row for row in rows if not wanted or row["name"] in wanted]
