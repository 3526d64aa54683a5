"""Messages between stream clients and the stream broker, beyond the existing client's table.

Requests are packed as `nexo.protocol.messages` says. Batches (`nexo.batch`) follow
raw. Publishing, ordered groups, producers and transactions have tables of their own, in
`nexo.protocol.stream_publishing` and `nexo.protocol.stream_ordered`.

================  ===============  =================================
opcode            request          reply
================  ===============  =================================
S_TAKE            `Take`           `TakeReply`, batches; long poll
S_SETTLE          `SettleRecords`  list of `RefusedRange`
S_NEXT            `Next`           `TakeReply`, batches; long poll
S_GROUP_JOIN      `GroupJoin`      `GroupJoined`
S_GROUP_LEAVE     `GroupLeave`     OK
S_GROUP_SEEK      `GroupSeek`      generation
S_GROUPS          `GroupsAsk`      list of `GroupInfo`
S_GROUP_DELETE    `GroupName`      OK
S_PARKED          `ListParked`     list of `ParkedInfo`, batches
S_PARKED_SETTLE   `ParkedSettle`   count
S_MAKE            `Make`           `StreamInfo`
S_DESCRIBE        `StreamName`     `StreamInfo`
S_UPDATE          `Make`           `StreamInfo`
S_LIST            `ListAsk`        list of names
S_READ            `Read`           `ReadReply`, batches; long poll
S_COMPACT         `StreamName`     bytes freed
S_GET             `Get`            a batch of one record, or NULL
S_STATE           `StateAsk`       `StateReply`, batches
S_READ_MANY       `ReadMany`       `ReadManyReply`, batches; long poll
S_TIERED          `TieredTo`       OK
S_RETAIN          `StreamName`     bytes freed
S_OFFSETS_AT      `OffsetsAt`      list of offsets, one per partition
================  ===============  =================================
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from nexo.model import AsArray, AsMap
from nexo.model.stream import (
    GroupInfo,
    ParkedInfo,
    ParkedList,
    PartitionInfo,
    Range,
    RecordState,
    SettleRecords,
    StartPosition,
    StateReply,
    StreamInfo,
    Verb,
)
from nexo.protocol.messages import pack, pack_headed, unpack, unpack_headed

__all__ = [
    "GroupInfo", "ParkedInfo", "ParkedList", "PartitionInfo", "Range", "RecordState",
    "SettleRecords", "StartPosition", "StateReply", "StreamInfo", "Verb", "pack", "pack_headed",
    "unpack", "unpack_headed",
]  # fmt: skip


# -- shared groups ------------------------------------------------------------------


DEFAULT_BYTES = 4 * 1024**2
"""How much a consumer gets at once, unless it says otherwise."""


class Take(AsArray, frozen=True):
    """Lease up to ``limit`` records to a consumer, waiting up to ``wait_ms`` for the first."""

    stream: str
    group: str
    consumer: str
    limit: int
    wait_ms: int
    max_bytes: int = DEFAULT_BYTES
    begins: int = 0
    """How many of them a handler begins as soon as they arrive; see `GroupJoin`."""
    ahead: bool = False
    """The consumer still works on what it has: it begins with these when it takes again, and
    gets none beyond its part of what waits."""


class RefusedRange(AsArray, frozen=True):
    """Records that were not the consumer's to settle; an empty range stands for all."""

    partition: int
    first: int
    end: int
    code: str
    message: str


class TakeReply(AsArray, frozen=True):
    """``deliveries``: ``partition, first, end, attempt, expires_ms``; batches may hold more."""

    generation: int
    deliveries: list[tuple[int, int, int, int, int]]
    partitions: list[int]
    """The partition of each batch that follows."""
    refused: list[RefusedRange] = []
    """Ranges that S_NEXT did not settle."""


class Next(AsArray, frozen=True):
    """Settle what a consumer has done, and take more: one request and one reply for both.

    Whatever becomes of the one, the other is done. The reply waits for both: the settlement is
    durable then, or listed in ``refused``.
    """

    settle: SettleRecords
    take: Take


class GroupJoin(AsMap, frozen=True):
    """Become a consumer of a shared group, which is created if need be."""

    stream: str
    group: str
    options: dict[str, Any] = {}
    start: StartPosition = "beginning"
    start_ms: int | None = None
    """Start at this time instead."""
    reports_starts: bool = False
    """The consumer reports when a handler begins: only then does a delivery count."""


class GroupJoined(AsMap, frozen=True):
    """Who the consumer is from now on."""

    consumer: str
    generation: int
    ack_wait_ms: int


class GroupLeave(AsMap, frozen=True):
    """Stop consuming; ``unstarted`` is returned without counting as delivered."""

    stream: str
    group: str
    consumer: str
    unstarted: list[Range] | None = None


class GroupSeek(AsMap, frozen=True):
    """Reset a group."""

    stream: str
    group: str
    to: StartPosition = "beginning"
    to_ms: int | None = None


class GroupName(AsMap, frozen=True):
    """A group."""

    stream: str
    group: str


class GroupsAsk(AsMap, frozen=True):
    """The groups of a stream, or one of them."""

    stream: str
    group: str | None = None
    record: tuple[int, int] | None = None
    """Partition and offset: say what each group has done with this record."""


class ListParked(AsMap, frozen=True):
    """Records set aside after too many deliveries."""

    stream: str
    group: str
    limit: int = 100
    offset: int = msgspec.field(default=0, name="skip")


class ParkedSettle(AsMap, frozen=True):
    """Deliver parked records again, or forget them; without ranges, all of them."""

    stream: str
    group: str
    verb: Literal["replay", "delete"]
    ranges: list[Range] | None = msgspec.field(default=None, name="spans")


# -- streams ------------------------------------------------------------------------


class StreamName(AsMap, frozen=True):
    """A stream."""

    stream: str


class Make(AsMap, frozen=True):
    """Create or update a stream."""

    stream: str
    options: dict[str, Any] = {}
    fresh: bool = False
    """An existing stream is a conflict, even one with the same options."""
    update: bool = False
    """An existing stream is changed to these options."""


class ListAsk(AsMap, frozen=True):
    """Names in order, beginning after ``after``."""

    prefix: str = ""
    after: str = ""
    limit: int = 1_000
    tiering: bool = False
    """Only those with tiering on."""


class Read(AsArray, frozen=True):
    """Batches from an offset on, waiting up to ``wait_ms`` for the first."""

    stream: str
    partition: int
    offset: int
    max_bytes: int
    wait_ms: int = 0
    created_ms: int = 0
    """Which incarnation of the stream is meant (`StreamInfo`), 0 for any; `StreamReplaced` if the
    stream is another."""


class ReadReply(AsArray, frozen=True):
    """The partition's bounds; whole batches follow. The first may begin earlier."""

    start_offset: int
    stable_offset: int
    next_offset: int
    """Where to continue: offsets before it that are in no batch hold no records."""


class ReadMany(AsArray, frozen=True):
    """Batches from several places, taking turns, waiting up to ``wait_ms`` for the first."""

    places: list[tuple[str, int, int]]
    """``stream, partition, offset``."""
    max_bytes: int
    wait_ms: int = 0
    created_ms: dict[str, int] = {}
    """By stream, as in `Read`; those left out are not checked."""


class ReadManyReply(AsArray, frozen=True):
    """The fields of `ReadReply` per place, and the place of each batch that follows."""

    heads: list[tuple[int, int, int]]
    batches: list[int]


class OffsetsAt(AsMap, frozen=True):
    """Where each partition's first record of a time or later is; the end if there is none."""

    stream: str
    time_ms: int


class StateAsk(AsMap, frozen=True):
    """The newest record of every key, from a place on."""

    stream: str
    partition: int = 0
    offset: int = 0
    max_bytes: int = DEFAULT_BYTES


class Get(AsMap, frozen=True):
    """The newest record of a key."""

    stream: str
    key: bytes


class TieredTo(AsMap, frozen=True):
    """The lake holds everything below ``offset``."""

    stream: str
    partition: int
    offset: int
    created_ms: int = 0
    """As in `Read`."""
