"""What the stream broker journals, and its snapshot: everything but the records themselves.

Streams are identified by number here, so that a deleted stream's records never affect a new
one of the same name.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nexo.brokers.stream.groups.kafka.model import KeptGroup
from nexo.brokers.stream.groups.ordered_state import OrderedRecord, OrderedSnapshot
from nexo.brokers.stream.groups.records import SharedRecord, SharedSnapshot
from nexo.brokers.stream.partition import PartitionCheckpoint
from nexo.options.stream import StreamOptions

StreamRange: TypeAlias = tuple[int, int, int, int]
"""``stream, partition, first, end`` (half-open)."""


class StreamCreated(msgspec.Struct, frozen=True, array_like=True, tag="create"):
    """A stream was created."""

    stream: int
    name: str
    options: StreamOptions
    created_ms: int


class Updated(msgspec.Struct, frozen=True, array_like=True, tag="update"):
    """A stream's options changed."""

    stream: int
    options: StreamOptions


class PartitionsAdded(msgspec.Struct, frozen=True, array_like=True, tag="grow"):
    """A stream has more partitions."""

    stream: int
    options: StreamOptions
    ends: list[int]
    """Where the partitions that it had before ended then."""


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """A stream, its records and its groups were deleted."""

    stream: int


class Tiered(msgspec.Struct, frozen=True, array_like=True, tag="tier"):
    """The lake holds every record below ``offset``."""

    stream: int
    partition: int
    offset: int


class StreamTrimmed(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """Messages below an offset are deleted for `nexo.xstreams`, though the log still has them."""

    stream: int
    offset: int


class Hidden(msgspec.Struct, frozen=True, array_like=True, tag="hide"):
    """Records that were deleted singly; they stay in the log, invisible."""

    stream: int
    partition: int
    ranges: list[tuple[int, int]]


class Checked(msgspec.Struct, frozen=True, array_like=True, tag="check"):
    """Recovery of one partition may start here."""

    stream: int
    partition: int
    checkpoint: PartitionCheckpoint


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """The broker started, in this boot of the machine."""

    boot_id: str
    cluster_id: str = ""


class ProducerStarted(msgspec.Struct, frozen=True, array_like=True, tag="producer"):
    """A producer id was assigned; a named one keeps its id and gets the next epoch."""

    producer: int
    epoch: int
    name: str
    started_ms: int = 0
    user: str = ""
    """Who started it; empty while authentication is off."""


class GroupMade(msgspec.Struct, frozen=True, array_like=True, tag="group"):
    """A shared group was created, or replaced as a whole."""

    stream: int
    group: str
    state: SharedSnapshot


class GroupChanged(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """Changes of a shared group."""

    stream: int
    group: str
    records: list[SharedRecord]


class GroupDropped(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """A shared group was deleted."""

    stream: int
    group: str


class OrderedMade(msgspec.Struct, frozen=True, array_like=True, tag="ordered"):
    """An ordered group was created."""

    group: str
    state: OrderedSnapshot


class OrderedChanged(msgspec.Struct, frozen=True, array_like=True, tag="reordered"):
    """Changes of an ordered group."""

    group: str
    records: list[OrderedRecord]


class OrderedDropped(msgspec.Struct, frozen=True, array_like=True, tag="unordered"):
    """An ordered group was deleted."""

    group: str


class TransactionCommitted(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A transaction's writes and inputs in one record: all take effect, or none (SPEC H1)."""

    transaction: int
    ranges: list[StreamRange]
    changes: list[GroupChanged | OrderedChanged]
    user: str = ""
    """The user who may ask for its outcome."""


class Aborted(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """A transaction's writes that are never shown."""

    transaction: int
    ranges: list[StreamRange]


StreamChange: TypeAlias = (
    Updated | PartitionsAdded | Tiered | StreamTrimmed | Hidden | Checked
    | GroupMade | GroupChanged | GroupDropped
)  # fmt: skip
"""Changes of a stream that may have been deleted since."""
JournalRecord: TypeAlias = (
    StreamCreated | Deleted | Opened | ProducerStarted | StreamChange
    | OrderedMade | OrderedChanged | OrderedDropped | TransactionCommitted | Aborted
)  # fmt: skip


BUILT_ON = (
    StreamCreated,
    PartitionsAdded,
    Deleted,
    Opened,
    ProducerStarted,
    GroupMade,
    OrderedMade,
)
"""Rare records that later ones depend on: a journal keeps them twice."""


class StreamState(msgspec.Struct, frozen=True, array_like=True):
    """One stream in a snapshot."""

    created: StreamCreated
    checkpoints: dict[int, PartitionCheckpoint]
    tiered: list[int]
    groups: dict[str, SharedSnapshot]
    front: int = 0
    growths: list[list[int]] = []
    """For each time that partitions were added: where those that were there ended then."""


class Outcomes(msgspec.Struct, frozen=True, array_like=True):
    """Which transactions were committed."""

    committed: list[tuple[int, int]] = []
    """First and end of ranges of ids."""
    forgotten: int = 0
    """The outcome of a transaction below this number is unknown, unless it is in ``committed``."""
    by_user: dict[str, list[tuple[int, int]]] = {}
    """Like ``committed``, for logged-in users."""


RestingProducer: TypeAlias = tuple[int, bool | None]
"""A transactional producer without an open transaction: its timeout in milliseconds, and whether
its last one was committed."""


class StreamSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The whole broker, except its records."""

    next_stream: int
    next_transaction: int
    next_producer: int
    producers: dict[str, tuple[int, ...]]
    """By name: id, epoch and, unless an earlier version wrote it, the time of the last start."""
    streams: list[StreamState]
    ordered: dict[str, OrderedSnapshot]
    boot_id: str = ""
    """Identifies the boot during which this was written; empty after a clean shutdown."""
    outcomes: Outcomes = Outcomes()
    last_created_ms: int = 0
    producer_owners: dict[str, str] = {}
    """By name: the user whose name it is."""
    cluster_id: str = ""
    resting: dict[str, RestingProducer] = {}
    """By name, after a clean shutdown: who goes on as if nothing had happened."""
    kept_groups: dict[str, KeptGroup] = {}
    """Likewise, the groups of Kafka clients that had members."""
