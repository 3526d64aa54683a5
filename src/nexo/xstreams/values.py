"""What a stream broker returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
