"""A message as a subscriber sees it, its clock and its options; shared by both clients."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from nexo.client.stream_records import shown
from nexo.protocol.values import decode_value

T = TypeVar("T")


class SubscribeOptions(TypedDict, total=False):
    """Options of `PubSub.subscribe`."""

    policy: str
    max_messages: int | None
    max_bytes: int | None
    retained: bool
    buffer: int


class PublisherClock:
    """Wall-clock time that does not step while the client lives."""

    __slots__ = ("_epoch_s",)

    def __init__(self) -> None:
        self._epoch_s = time.time() - time.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return int((self._epoch_s + time.monotonic()) * 1000)


class Message(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """One message; its value is decoded when it is asked for."""

    topic: str
    encoded: bytes
    """The value as it travels (`nexo.protocol.values`): its type byte, then the content."""
    timestamp_ms: int
    """The publisher's clock."""
    retained: bool = False
    """Published before the subscription, and delivered as its topic's last value."""
    _type: Any = None
    _headers: bytes = b""

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was published with."""
        return msgspec.json.decode(self._headers, type=dict[str, Any]) if self._headers else {}

    @property
    def value(self) -> T:
        """The published value, checked and converted if the subscription has a type."""
        decoded: T = decode_value(self.encoded, self._type)
        return decoded

    @property
    def payload(self) -> bytes:
        """The value's bytes, without looking inside."""
        return self.encoded[1:]

    @property
    def timestamp(self) -> datetime:
        """When it was published, by the publisher's clock."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, value={shown(self)})"
