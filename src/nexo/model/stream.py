"""Requests and reports of the stream broker, in values that all layers share.

The engine and the services make or read them, the protocol carries them as they are, and clients
get them, so a field that is added here is added everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from nexo.model import AsArray, AsMap

Id: TypeAlias = tuple[int, int]
"""``ms, seq``: a message's timestamp and its offset (`nexo.xstreams`)."""
Range: TypeAlias = tuple[int, int, int]
"""``partition, first, end`` (half-open)."""
StreamPartition: TypeAlias = tuple[str, int]
OffsetRow: TypeAlias = tuple[str, int, int, str]
"""``topic, partition, offset, metadata``: the offset is of the last record processed."""
Verb: TypeAlias = Literal["ack", "nack", "release", "extend", "start"]
"""How leased records are settled."""
StartPosition: TypeAlias = Literal["beginning", "end"] | int | dict[int, int]
"""Where to start: a word, one offset for every partition, or an offset per partition."""
GroupKind: TypeAlias = Literal["shared", "ordered", "xstreams"]


def shared_kind(options: Mapping[str, Any]) -> GroupKind:
    """The kind of a group that is not ordered: consumers of `nexo.xstreams` keep their messages."""
    return "xstreams" if options.get("release") else "shared"


# -- streams ------------------------------------------------------------------------


class PartitionInfo(AsMap, frozen=True):
    """One partition.

    The lake holds ``start_offset`` up to ``tiered_offset``, the log ``hot_offset`` up to
    ``next_offset``; readers see no border.
    """

    start_offset: int
    next_offset: int
    stable_offset: int
    """Where readers stop: everything below is durable and belongs to no open transaction."""
    size_bytes: int
    tiered_offset: int = 0
    last_ms: int = 0
    hot_offset: int = 0


class StreamInfo(AsMap, frozen=True):
    """One stream."""

    name: str
    created_ms: int
    """Identifies this incarnation: a stream created again under the name has a higher one."""
    options: dict[str, Any]
    partitions: list[PartitionInfo]
    groups: list[str]
    growths: list[list[int]] = []
    """For each time that partitions were added: where those that were there ended then."""


class StreamSeen(msgspec.Struct, frozen=True, array_like=True):
    """One stream, as far as it is open."""

    name: str
    partitions: int
    offsets: int
    """From the first to the next offset of each partition: an upper bound on its records."""
    bytes: int
    published: int
    """Records ever published, as far as known."""
    groups: int


class GroupSeen(msgspec.Struct, frozen=True, array_like=True):
    """The position of a group in a stream."""

    stream: str
    name: str
    kind: GroupKind
    lag: int
    in_flight: int
    parked: int
    consumers: int
    finished: int
    """Records finished, counted over all time; falls when the group is reset."""


class StreamSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A page: streams with their shared groups, then ordered groups."""

    streams: list[StreamSeen]
    groups: list[GroupSeen]
    next: int
    """Where the next page begins; 0 after the last."""


class StateReply(AsArray, frozen=True):
    """The partition of each batch that follows, and where to ask on; None at the end."""

    partitions: list[int]
    following: tuple[int, int] | None


# -- shared groups ------------------------------------------------------------------


class SettleRecords(AsArray, frozen=True):
    """The outcome of leased records."""

    stream: str
    group: str
    consumer: str
    generation: int
    verb: Verb
    ranges: list[Range]
    delay_ms: int = 0
    reason: str = ""
    begins: list[Range] = []
    """The records that a handler begins next: saves a separate ``start`` request."""


class RecordState(AsMap, frozen=True):
    """The state of one record in a shared group, as far as it knows."""

    state: str
    """``unread``, ``in_flight``, ``delayed`` or ``waiting`` (both to be delivered again),
    ``parked`` or ``finished``."""
    attempts: int = 0
    """Deliveries that counted, with the current one of a record in flight."""
    consumer: str | None = None
    """The consumer that holds it."""
    until_ms: int | None = None
    """When the lease ends, or the delay is over."""
    parked_ms: int | None = None
    reason: str = ""


class ParkedInfo(AsArray, frozen=True):
    """Records that were parked with the same reason and time."""

    partition: int
    first: int
    end: int
    attempts: int
    parked_ms: int
    reason: str


class ParkedList(AsArray, frozen=True):
    """Parked records; the batches that hold them follow."""

    rows: list[ParkedInfo]
    partitions: list[int]
    """The partition of each batch that follows."""


class PartitionProgress(AsMap, frozen=True):
    """A shared group in one partition; ``lag`` is everything that is not finished."""

    floor: int
    next_offset: int
    lag: int
    in_flight: int
    to_redeliver: int
    parked: int


class GroupInfo(AsMap, frozen=True):
    """A shared group."""

    name: str
    generation: int
    options: dict[str, Any]
    consumers: list[str]
    lag: int
    partitions: list[PartitionProgress]
    record: RecordState | None = None
    """If one was asked for."""


# -- ordered groups -----------------------------------------------------------------


class Assigned(AsMap, frozen=True):
    """The partitions that a member owns, gives up and waits for in a generation.

    It works on ``owned`` only, gives up ``revoked`` before it confirms the generation with a
    heartbeat, and will own ``awaited`` once others have given it up.
    """

    member: str
    generation: int
    leader: str
    owned: list[StreamPartition]
    revoked: list[StreamPartition]
    awaited: list[StreamPartition]


class CommittedAt(AsMap, frozen=True):
    """One stored offset."""

    topic: str
    partition: int
    offset: int
    metadata: str
    committed_ms: int


class KafkaMember(AsMap, frozen=True):
    """A Kafka client in a group."""

    id: str
    client_id: str
    host: str
    instance: str | None = None
    """Of a static member."""


class KafkaGroup(AsMap, frozen=True):
    """Further details of a group of Kafka clients."""

    state: str
    """``Stable``, ``PreparingRebalance``, ``CompletingRebalance`` or ``Reconciling``."""
    assignor: str
    members: list[KafkaMember]


class OrderedInfo(AsMap, frozen=True):
    """An ordered group: all of it, or what concerns one stream."""

    name: str
    generation: int
    leader: str
    members: list[str]
    stable: bool
    options: dict[str, Any]
    owners: list[tuple[str, int, str]]
    """``topic, partition, member``."""
    offsets: list[CommittedAt]
    lag: int
    lags: dict[str, int] = {}
    """By topic, for every topic that it reads or has read."""
    kafka: KafkaGroup | None = None


# -- groups of nexo.xstreams --------------------------------------------------------


class XPage(AsArray, frozen=True):
    """The offsets asked for, and where to continue; the batches follow and may hold more."""

    first: int
    end: int
    following: int | None


class XDelivered(AsArray, frozen=True):
    """``first, end, delivery count`` of ranges of offsets; the batches follow."""

    ranges: list[tuple[int, int, int]]


class XPending(AsArray, frozen=True):
    """One pending message."""

    ms: int
    seq: int
    consumer: str
    idle_ms: int
    delivery_count: int


class XConsumer(AsArray, frozen=True):
    """One consumer of a group."""

    name: str
    pending: int
    seen_ms: int


class XGroup(AsArray, frozen=True):
    """One group."""

    name: str
    last_id: Id
    pending: int
    lag: int
    trimmed_unread: int
    consumers: list[XConsumer]


class XInfo(AsArray, frozen=True):
    """A stream and its groups."""

    length: int
    groups: list[XGroup]


# -- inputs of transactions ---------------------------------------------------------


class TxAcks(AsArray, frozen=True):
    """Records of a shared group that are finished with the transaction."""

    stream: str
    group: str
    consumer: str
    generation: int
    ranges: list[Range]


class TxOffsets(AsArray, frozen=True):
    """Offsets of an ordered group that are committed with the transaction."""

    group: str
    member: str
    generation: int
    offsets: list[OffsetRow]
    rewind: bool = False
    """The member sought back, so lower offsets are intended."""


class KeyAt(AsArray, frozen=True):
    """The newest record of a key, as a transaction saw it."""

    stream: str
    key: bytes
    offset: int
    """-1: there was none."""
