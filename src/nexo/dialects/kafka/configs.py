"""Kafka's topic configurations: which options they are, what is fixed, and what is shown.

Each is applied or refused (SPEC R3): what a client sets holds, in this or a stronger form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from nexo.batch.compression import check_kafka_kind
from nexo.batch.kafka_pack import KINDS
from nexo.config import Settings
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused
from nexo.errors import InvalidOption
from nexo.model import Persistence
from nexo.options.stream import OPTION_OF, StreamOptions, from_kafka, to_kafka

DEFAULT, DYNAMIC_TOPIC, STATIC_BROKER = 5, 1, 4
"""Where a value comes from."""
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_HIGHEST = {_INT: 2**31 - 1, _LONG: 2**63 - 1}
_NEVER = _HIGHEST[_LONG]
AFTER_MAX_MS = 3_600_000
"""A record may be this far ahead of the server's clock."""

_OPTIONS = OPTION_OF | {
    "remote.storage.enable": "tiering",
    "compression.type": "kafka_compression",
}
"""A configuration: the stream's option."""
_KINDS = {
    "retention.ms": _LONG,
    "retention.bytes": _LONG,
    "cleanup.policy": _LIST,
    "max.message.bytes": _INT,
    "min.cleanable.dirty.ratio": _DOUBLE,
    "delete.retention.ms": _LONG,
    "remote.storage.enable": _BOOLEAN,
    "compression.type": _STRING,
    "flush.messages": _LONG,
    "flush.ms": _LONG,
    "min.insync.replicas": _INT,
}
"""What can be set, and its type."""
_DURABILITY = ("flush.messages", "flush.ms", "min.insync.replicas")
"""These are together the stream's durability."""


class Fixed(NamedTuple):
    """A configuration that has one value here."""

    value: str
    kind: int
    reason: str


_ONE_COPY = "there is one broker"
_AS_SENT = "batches are kept as they were sent"
_LEVEL = "it holds for all topics"
_NO_LAG = "compaction takes what is there"
_LAKE = "the lake decides, not the topic"
_FIXED = {
    "compression.gzip.level": Fixed("-1", _INT, _LEVEL),
    "compression.lz4.level": Fixed("9", _INT, _LEVEL),
    "compression.zstd.level": Fixed("3", _INT, _LEVEL),
    "message.timestamp.type": Fixed("CreateTime", _STRING, _AS_SENT),
    "message.timestamp.after.max.ms": Fixed(str(AFTER_MAX_MS), _LONG, "it holds for all topics"),
    "message.timestamp.before.max.ms": Fixed(str(_NEVER), _LONG, "it holds for all topics"),
    "min.compaction.lag.ms": Fixed("0", _LONG, _NO_LAG),
    "max.compaction.lag.ms": Fixed(str(_NEVER), _LONG, _NO_LAG),
    "unclean.leader.election.enable": Fixed("false", _BOOLEAN, _ONE_COPY),
    "leader.replication.throttled.replicas": Fixed("", _LIST, _ONE_COPY),
    "follower.replication.throttled.replicas": Fixed("", _LIST, _ONE_COPY),
    "preallocate": Fixed("false", _BOOLEAN, "the server decides"),
    "local.retention.ms": Fixed("-2", _LONG, _LAKE),
    "local.retention.bytes": Fixed("-2", _LONG, _LAKE),
    "remote.log.copy.disable": Fixed("false", _BOOLEAN, _LAKE),
    "remote.log.delete.on.disable": Fixed("false", _BOOLEAN, _LAKE),
}
"""What is shown and cannot be changed."""
_FILES = {
    "segment.bytes": (_INT, 14),
    "segment.ms": (_LONG, 1),
    "segment.jitter.ms": (_LONG, 0),
    "segment.index.bytes": (_INT, 4),
    "index.interval.bytes": (_INT, 0),
    "file.delete.delay.ms": (_LONG, 0),
}
"""Type and lowest value of what only says how files are cut. Kafka's limits are exact to a file,
ours to a batch, so what these are set for holds with any value."""


# -- texts ---------------------------------------------------------------------------------


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


_READ: dict[int, Callable[[str], Any]] = {
    _BOOLEAN: _flag, _INT: _whole, _LONG: _whole, _DOUBLE: _number, _LIST: str, _STRING: str,
}  # fmt: skip
_WANTED = {_BOOLEAN: "true or false", _DOUBLE: "a number"}


def _read(name: str, text: str | None, kind: int) -> Any:
    """A value by its type; `InvalidOption` if it is none."""
    if text is None:
        raise InvalidOption(f"{name}: null is no value; leave it out for the default")
    try:
        found = _READ[kind](text.strip())
    except (KeyError, ValueError):
        wanted = _WANTED.get(kind, "a whole number")
        raise InvalidOption(f"{name} = {text!r} is not {wanted}") from None
    if kind in _HIGHEST and found > _HIGHEST[kind]:
        raise InvalidOption(f"{name} = {text}: must be at most {_HIGHEST[kind]}")
    return found


# -- what is set ---------------------------------------------------------------------------


def usual_options(settings: Settings) -> StreamOptions:
    """Options of a topic that a Kafka client creates: Kafka's own defaults.

    What an operator has set for all streams holds for topics too.
    """
    usual = settings.stream_options
    unset = usual.retention_bytes == StreamOptions().retention_bytes
    return replace(usual, retention_bytes=0) if unset else usual


class TopicConfigs:
    """The configurations of a topic with these options."""

    def __init__(self, options: StreamOptions, settings: Settings) -> None:
        self._now = options
        self._settings = settings
        self._usual = replace(usual_options(settings), partitions=options.partitions)

    def replaced(self, configs: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
        """Options for which all configurations are set: what is not named gets its default."""
        usual = self._usual
        kept = OPTION_OF | {"compression.type": _OPTIONS["compression.type"]}
        reset = {name: getattr(usual, name) for name in kept.values()}
        return reset | {"persistence": usual.persistence} | self.options(configs, usual)

    def options(
        self, configs: Iterable[tuple[str, str | None]], base: StreamOptions | None = None
    ) -> dict[str, Any]:
        """The options that configurations are; `InvalidOption` names one that cannot be."""
        found: dict[str, Any] = {}
        wishes: dict[str, int | None] = {}
        for name, text in configs:
            if name in _DURABILITY:
                wishes[name] = None if text is None else _read(name, text, _KINDS[name])
            elif name in _OPTIONS:
                found[_OPTIONS[name]] = self._value(name, _read(name, text, _KINDS[name]))
            else:
                self._check_other(name, text)
        if wishes:
            found["persistence"] = self._durability(base or self._now, wishes)
        return found

    def changed(self, rows: Iterable[tuple[str, int, str | None]]) -> dict[str, Any]:
        """What `IncrementalAlterConfigs` makes of the options: name, operation and value each."""
        values: dict[str, str | None] = {}
        for name, operation, text in rows:
            if name in values:
                raise Refused(Error.INVALID_REQUEST, f"{name} is changed twice")
            if operation == 0:
                _read(name, text, _STRING)
                values[name] = text
            elif operation == 1:
                values[name] = self._reset(name)
            elif _KINDS.get(name) == _LIST:
                now = set(self._written(name).split(","))
                given = set((text or "").split(","))
                values[name] = ",".join(sorted(now | given if operation == 2 else now - given))
            else:
                raise InvalidOption(f"{name} is not a list: set it instead")
        return self.options(values.items())

    def _reset(self, name: str) -> str | None:
        if name in _DURABILITY:
            return None
        if name in _FILES:
            return str(_FILES[name][1])
        if name in _FIXED:
            return _FIXED[name].value
        self._check_known(name)
        if name == "max.message.bytes" and not self._usual.max_message_bytes:
            return str(self._settings.max_payload_bytes)
        return TopicConfigs(self._usual, self._settings)._written(name)

    def _value(self, name: str, value: Any) -> Any:
        """A value as our option has it."""
        if name in ("retention.ms", "retention.bytes") and value == 0:
            value = 1  # keep nothing: our own 0 keeps all
        if name == "retention.bytes" and value > 0:  # Kafka's is that of each partition
            return min(value * self._now.partitions, _NEVER)
        if name == "max.message.bytes":
            return self._checked_size(value)
        if name == "compression.type":
            return _compression(value)
        return from_kafka(name, value)

    def _checked_size(self, size: int) -> int:
        most = self._settings.max_payload_bytes
        if not 1 <= size <= most:
            raise InvalidOption(
                f"max.message.bytes = {size}: must be from 1 to {most}, the server's "
                "MAX_PAYLOAD_SIZE"
            )
        return size

    def _check_other(self, name: str, text: str | None) -> None:
        """Check what changes nothing: a fixed value, or how files are cut."""
        self._check_known(name)
        if name in _FILES:
            kind, lowest = _FILES[name]
            if _read(name, text, kind) < lowest:
                raise InvalidOption(f"{name} = {text}: must be {lowest} or more")
            return
        value, kind, reason = _FIXED[name]
        if _read(name, text, kind) != _read(name, value, kind):
            raise InvalidOption(f"{name} = {text} cannot be: it is {value!r} here, as {reason}")

    def _check_known(self, name: str) -> None:
        if not any(name in known for known in (_KINDS, _FIXED, _FILES)):
            raise InvalidOption(f"configuration {name!r} is not known here")

    def _durability(self, base: StreamOptions, wishes: dict[str, int | None]) -> Persistence:
        """The durability with which all wishes hold; None for those that are withdrawn."""
        now = base.persistence
        copies = wishes.get("min.insync.replicas", 2 if now is Persistence.REPLICATED else 1)
        if copies is None:
            copies = 2 if self._usual.persistence is Persistence.REPLICATED else 1
        if copies > (2 if self._settings.replicate else 1) or copies < 1:
            raise InvalidOption(
                f"min.insync.replicas = {copies}: there is one copy, and with `nexo serve "
                "--replicate` a second in the object store"
            )
        if copies > 1:
            return Persistence.REPLICATED
        if not wishes.keys() & set(_DURABILITY[:2]):
            return now if now is not Persistence.REPLICATED else Persistence.FILE_SYNC
        return Persistence.FILE_SYNC if self._wants_sync(wishes) else _unreplicated(self._usual)

    def _wants_sync(self, wishes: dict[str, int | None]) -> bool:
        """Whether a write must be synced sooner than they all are."""
        messages, ms = wishes.get("flush.messages"), wishes.get("flush.ms")
        if (messages is not None and messages < 1) or (ms is not None and ms < 0):
            raise InvalidOption("flush.messages must be 1 or more, flush.ms 0 or more")
        often = messages is not None and messages < self._settings.flush_messages
        return often or (ms is not None and ms < self._settings.flush_ms)

    # -- what is shown ---------------------------------------------------------------------

    def described(self, keys: Iterable[str] | None) -> list[KafkaMessage]:
        """All configurations, or those asked for."""
        usual = TopicConfigs(self._usual, self._settings)
        rows = [
            _row(name, text := self._written(name), kind)
            | {"source": DEFAULT if text == usual._written(name) else DYNAMIC_TOPIC}
            for name, kind in _KINDS.items()
        ]
        fixed = [(name, each.value, each.kind) for name, each in _FIXED.items()]
        fixed += [
            ("segment.bytes", str(self._settings.segment_bytes), _INT),
            ("segment.ms", str(_NEVER), _LONG),
        ]
        rows += [_row(*each) | {"read_only": True} for each in fixed]
        return _asked(rows, keys)

    def _written(self, name: str) -> str:
        now = self._now
        synced = now.persistence is not Persistence.FILE_ASYNC
        match name:
            case "retention.bytes" if now.retention_bytes:
                return str(now.retention_bytes // now.partitions)
            case "max.message.bytes":
                return str(now.max_message_bytes or self._settings.max_payload_bytes)
            case "flush.messages":
                return str(1 if synced else self._settings.flush_messages)
            case "flush.ms":
                return str(0 if synced else self._settings.flush_ms)
            case "min.insync.replicas":
                return "2" if now.persistence is Persistence.REPLICATED else "1"
        value = to_kafka(name, getattr(now, _OPTIONS[name]))
        return str(value).lower() if isinstance(value, bool) else str(value)


def _compression(name: str) -> str:
    """A compression that is known and installed."""
    if name != "producer" and name not in KINDS:
        known = ", ".join(("producer", *KINDS))
        raise InvalidOption(f"compression.type = {name}: must be one of {known}")
    check_kafka_kind(KINDS.get(name, 0))
    return name


def _unreplicated(options: StreamOptions) -> Persistence:
    replicated = options.persistence is Persistence.REPLICATED
    return Persistence.FILE_SYNC if replicated else options.persistence


def broker_configs(
    settings: Settings, keys: Iterable[str] | None, advertised: tuple[str, int]
) -> list[KafkaMessage]:
    """Configurations of the broker, which are settings."""
    usual = TopicConfigs(usual_options(settings), settings)
    shown = {
        "advertised.listeners": ("PLAINTEXT://{}:{}".format(*advertised), _STRING),
        "auto.create.topics.enable": (str(settings.kafka_auto_create).lower(), _BOOLEAN),
        "default.replication.factor": ("1", _INT),
        "log.retention.bytes": (usual._written("retention.bytes"), _LONG),
        "log.retention.ms": (usual._written("retention.ms"), _LONG),
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
