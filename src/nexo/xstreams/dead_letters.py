"""Messages that failed too often, as stored in ``<stream>.dlq``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from nexo.errors import InvalidInput, NexoError
from nexo.protocol.values import ValueType, decode_content, encode_value, json_bytes
from nexo.xstreams.values import StreamMessage


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message, where it came from, and why it is here."""

    stream: str
    group: str
    id: str
    data: Any
    deliveries: int
    error: str
    """The handler's last error; empty if it never raised one."""
    omitted_bytes: int = 0
    """The size of data that was too large for a letter: ``data`` is None then.

    The message itself is in ``stream`` under ``id`` until it is trimmed.
    """

    def encoded(self) -> dict[str, Any] | bytes:
        """The encoded letter; raw data follows a line of JSON."""
        fields = asdict(self)
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
            return cls(**_fields(message.data))
        except (NexoError, TypeError):
            raise InvalidInput(f"message {message.id} holds no dead letter") from None


def _fields(data: Any) -> dict[str, Any]:
    if not isinstance(data, bytes):
        return dict(data) if isinstance(data, dict) else {}
    head, _, raw = data.partition(b"\n")
    return {**decode_content(ValueType.JSON, head), "data": raw}
