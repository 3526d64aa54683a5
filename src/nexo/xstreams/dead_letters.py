"""Messages that failed too often, as they lie in ``<stream>.dlq``."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from typing import Any

from nexo.errors import InvalidInput
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
    """What the handler last said; empty if it never came to say it."""

    def encoded(self) -> dict[str, Any]:
        """As added to the dead-letter stream; raw bytes are written in base64."""
        fields = asdict(self)
        if isinstance(self.data, bytes | bytearray | memoryview):
            fields |= {"data": b64encode(bytes(self.data)).decode(), "base64": True}
        return fields

    @classmethod
    def of(cls, message: StreamMessage) -> DeadLetter:
        """The dead letter in a message of a ``.dlq`` stream."""
        fields: dict[str, Any] = dict(message.data) if isinstance(message.data, dict) else {}
        try:
            if fields.pop("base64", False):
                fields["data"] = b64decode(fields["data"])
            return cls(**fields)
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(f"message {message.id} holds no dead letter") from None
