"""Results of a stream broker, and the values that a worker puts into ``<stream>.dlq``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from nexo.errors import InvalidInput, NexoError
from nexo.protocol.values import ValueType, decode_content, encode_value, json_bytes


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message of a stream."""

    id: str
    """``ms-seq``; later messages of a stream have greater ids."""
    data: Any
    timestamp_ms: int
    """When it was added: the first part of the id."""
    delivery_count: int = 0
    """How often it was delivered to the group, including this time; 0 when read without a group."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that was delivered and not acknowledged."""

    id: str
    consumer: str
    """The consumer that holds it."""
    idle_ms: int
    """How long ago it was delivered or claimed."""
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """One consumer of a group."""

    name: str
    pending: int
    last_activity_ms: int
    """When it last read, or claimed; milliseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupInfo:
    """One consumer group. Unfinished messages are ``total_pending + lag``."""

    name: str
    last_delivered_id: str
    total_pending: int
    """Delivered and not acknowledged: the sum over all consumers."""
    lag: int
    """In the stream and not delivered yet."""
    trimmed_unread: int
    """Trimmed before they were delivered to the group, since it was created."""
    consumers: tuple[ConsumerInfo, ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed too often, where it came from, and why it is here."""

    stream: str
    group: str
    id: str
    data: Any
    attempts: int
    reason: str
    """Why it failed the last time: the handler's error; empty if it never raised one."""
    omitted_bytes: int = 0
    """The size of data that was too large for a letter: ``data`` is None then.

    The message itself is in ``stream`` under ``id`` until it is trimmed.
    """

    def encoded(self) -> dict[str, Any] | bytes:
        """The encoded letter; raw data follows a line of JSON."""
        fields = {_STORED.get(name, name): field for name, field in asdict(self).items()}
        if not isinstance(self.data, bytes | bytearray | memoryview):
            return fields
        del fields["data"]
        return json_bytes(fields) + b"\n" + bytes(self.data)

    def without_data(self) -> DeadLetter:
        """The same, small enough to be added anywhere."""
        return replace(self, data=None, omitted_bytes=len(encode_value(self.data)) - 1)

    @classmethod
    def of(cls, message: StreamMessage) -> DeadLetter:
        """The dead letter in a message of a ``.dlq`` stream."""
        try:
            found = _fields(message.data)
            return cls(**{_NAMES.get(name, name): field for name, field in found.items()})
        except (NexoError, TypeError):
            raise InvalidInput(f"message {message.id} holds no dead letter") from None


_STORED = {"attempts": "deliveries", "reason": "error"}
"""Fields of a letter that streams hold under other names."""
_NAMES = {stored: name for name, stored in _STORED.items()}


def _fields(data: Any) -> dict[str, Any]:
    if not isinstance(data, bytes):
        return dict(data) if isinstance(data, dict) else {}
    head, _, raw = data.partition(b"\n")
    return {**decode_content(ValueType.JSON, head), "data": raw}
