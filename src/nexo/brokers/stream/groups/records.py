"""What a shared group logs, and its snapshot (SPEC F6).

One record per call, whatever the number of messages: ranges are ``(partition, first,
end)``, half-open. In-flight leases are not logged: after a restart those messages are
undelivered again, with the deliveries counted so far. Only with ``release='claim'`` are
holdings logged, because consumers keep them. A new group becomes durable with its first
snapshot.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nexo.model.stream import Id, Range
from nexo.options.stream import SharedOptions

CountedRange: TypeAlias = tuple[int, int, int, int]
"""``partition, first, end, deliveries``."""


class Acked(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """These messages are finished."""

    ranges: list[Range]


class Counted(msgspec.Struct, frozen=True, array_like=True, tag="count"):
    """These messages came back unfinished; their delivery counts."""

    ranges: list[CountedRange]


class RecordsParked(msgspec.Struct, frozen=True, array_like=True, tag="park"):
    """These messages reached the delivery limit and are parked."""

    ranges: list[CountedRange]
    parked_ms: int
    reason: str


class RecordsReplayed(msgspec.Struct, frozen=True, array_like=True, tag="replay"):
    """These parked messages are delivered again, as if new."""

    ranges: list[Range]


class Discarded(msgspec.Struct, frozen=True, array_like=True, tag="discard"):
    """These parked messages were dropped."""

    ranges: list[Range]


class Skipped(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """These offsets hold no message (any more)."""

    ranges: list[Range]


class Sought(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The group starts over at these ``(partition, offset)`` positions."""

    generation: int
    positions: list[tuple[int, int]]


class Tuned(msgspec.Struct, frozen=True, array_like=True, tag="tune"):
    """The options changed."""

    options: SharedOptions


class Entered(msgspec.Struct, frozen=True, array_like=True, tag="enter"):
    """A consumer that keeps its messages was added."""

    consumer: str
    at_ms: int


class MessagesHeld(msgspec.Struct, frozen=True, array_like=True, tag="hold"):
    """A consumer was given these messages, new or claimed from another."""

    consumer: str
    ranges: list[CountedRange]
    at_ms: int


class Dismissed(msgspec.Struct, frozen=True, array_like=True, tag="dismiss"):
    """A consumer was removed, and what it held is finished."""

    consumer: str


class MessagesTrimmed(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """These messages left the stream; how many of them had not been delivered."""

    ranges: list[Range]
    unread: int


ClaimRecord: TypeAlias = Entered | MessagesHeld | Dismissed | MessagesTrimmed
SharedRecord: TypeAlias = (
    Acked
    | Counted
    | RecordsParked
    | RecordsReplayed
    | Discarded
    | Skipped
    | Sought
    | Tuned
    | ClaimRecord
)


class Parking(msgspec.Struct, frozen=True, array_like=True):
    """Why and when a message was parked."""

    attempts: int
    parked_ms: int
    reason: str


class ProgressSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of one partition in a shared group."""

    floor: int
    done: list[tuple[int, int]]
    deliveries: list[tuple[int, int, int]]
    parked: list[tuple[int, int, Parking]]


class ClaimsSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Who holds what in a group with ``release='claim'``."""

    consumers: list[tuple[str, int]]
    """Names, and when each was last seen."""
    held: list[MessagesHeld]
    trimmed_unread: int
    after_id: Id | None = None
    """An id ahead of the stream to start after; None once a message was delivered."""


class SharedSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a shared group."""

    options: SharedOptions
    generation: int
    progress: list[ProgressSnapshot]
    claims: ClaimsSnapshot | None = None
