"""Options of streams as Kafka's topic configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from nexo.config import Settings
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.errors import InvalidOption
from nexo.options.stream import StreamOptions

DEFAULT, DYNAMIC_TOPIC, STATIC_BROKER = 5, 1, 4
"""Where a value comes from."""
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7


class Config(NamedTuple):
    """One configuration that is an option of ours."""

    option: str
    kind: int
    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _unlimited(text: str) -> int:
    """Kafka's -1 is our 0."""
    return max(int(text), 0)


def _limit(value: int) -> str:
    return str(value or -1)


def _cleanup(text: str) -> str:
    """Kafka's list in our order."""
    return ",".join(sorted({word.strip() for word in text.split(",")}, reverse=True))


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


CONFIGS = {
    "cleanup.policy": Config("cleanup", _LIST, _cleanup, str),
    "retention.ms": Config("retention_ms", _LONG, _unlimited, _limit),
    "retention.bytes": Config("retention_bytes", _LONG, _unlimited, _limit),
    "max.message.bytes": Config("max_message_bytes", _INT, _unlimited, str),
    "min.cleanable.dirty.ratio": Config("min_dirty_ratio", _DOUBLE, float, str),
    "delete.retention.ms": Config("delete_retention_ms", _LONG, _unlimited, str),
    "remote.storage.enable": Config("tiering", _BOOLEAN, _flag, lambda value: str(value).lower()),
}
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
        if name in _IGNORED or (text is None and name in CONFIGS):
            continue
        config = CONFIGS.get(name)
        if config is None:
            raise InvalidOption(f"configuration {name!r} is not known here")
        try:
            found[config.option] = config.read(text or "")
        except (KeyError, ValueError):
            wanted = "true or false" if config.kind == _BOOLEAN else "a number"
            raise InvalidOption(f"{name} = {text!r} is not {wanted}") from None
    return found


def changed_options(
    options: StreamOptions, defaults: StreamOptions, rows: Iterable[tuple[str, int, str | None]]
) -> dict[str, Any]:
    """What `IncrementalAlterConfigs` makes of options: name, operation and value each."""
    values: dict[str, str | None] = {}
    for name, operation, text in rows:
        config = CONFIGS.get(name)
        if config is None or operation == 0:
            values[name] = text
        elif operation == 1:
            values[name] = config.write(getattr(defaults, config.option))
        elif config.kind == _LIST:
            now = set(str(getattr(options, config.option)).split(","))
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
        _row(name, config.write(value := getattr(options, config.option)), config.kind)
        | {"source": DEFAULT if value == getattr(defaults, config.option) else DYNAMIC_TOPIC}
        for name, config in CONFIGS.items()
    ]
    rows += [_row(name, text, kind) | {"read_only": True} for name, (text, kind) in _FIXED.items()]
    return _asked(rows, keys)


def broker_configs(settings: Settings, keys: Iterable[str] | None) -> list[KafkaMessage]:
    shown: Mapping[str, tuple[str, int]] = {
        "auto.create.topics.enable": (str(settings.kafka_auto_create).lower(), _BOOLEAN),
        "default.replication.factor": ("1", _INT),
        "log.retention.bytes": (_limit(settings.retention_bytes), _LONG),
        "log.retention.ms": (_limit(settings.retention_ms), _LONG),
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
