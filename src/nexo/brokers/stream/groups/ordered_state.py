"""The durable part of an ordered group: its generation and committed offsets (SPEC G5).

Membership is not durable: after a restart members join again, in a later generation.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nexo.model.stream import StreamPartition
from nexo.options.stream import OrderedOptions

NO_EPOCH = -1


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True):
    """The last processed offset a member reports for a partition."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH
    """What a Kafka client stored beside it; nothing here has another meaning."""
    is_ahead: bool = False
    """No record was there when a Kafka client stored it, so nobody has seen one."""


class StoredOffset(msgspec.Struct, frozen=True, array_like=True):
    """What is stored for a partition."""

    offset: int
    metadata: str
    committed_ms: int
    leader_epoch: int = NO_EPOCH
    is_ahead: bool = False

    @property
    def next_offset(self) -> int:
        """The next offset to read: what Kafka clients call the committed offset."""
        return self.offset + 1


class Regenerated(msgspec.Struct, frozen=True, array_like=True, tag="generation"):
    """The group entered a generation."""

    generation: int


class OffsetsCommitted(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """These offsets were committed, as given."""

    offsets: list[OffsetCommit]
    committed_ms: int


class TopicForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """A topic was deleted, and its offsets with it."""

    topic: str


class TopicGrown(msgspec.Struct, frozen=True, array_like=True, tag="grow"):
    """A topic that the group reads has more partitions: ``first`` up to ``end``."""

    topic: str
    first: int
    end: int
    at_ms: int


class OffsetsForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget-offsets"):
    """The stored offsets of these partitions were deleted."""

    partitions: list[StreamPartition]


class Retuned(msgspec.Struct, frozen=True, array_like=True, tag="tune"):
    """The options changed."""

    options: OrderedOptions


OrderedRecord: TypeAlias = (
    Regenerated | OffsetsCommitted | TopicForgotten | TopicGrown | OffsetsForgotten | Retuned
)


class OrderedSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of an ordered group."""

    options: OrderedOptions
    generation: int
    offsets: list[tuple[str, int, StoredOffset]]


class OrderedState:
    """Options, generation and committed offsets, with the journal of their changes."""

    __slots__ = ("generation", "journal", "offsets", "options")

    def __init__(self, options: OrderedOptions) -> None:
        self.options = options
        self.generation = 0
        self.offsets: dict[StreamPartition, StoredOffset] = {}
        self.journal: list[OrderedRecord] = []

    def log(self, record: OrderedRecord) -> None:
        """Make a change and journal it."""
        self.apply(record)
        self.journal.append(record)

    def apply(self, record: OrderedRecord) -> None:
        """Apply a logged change."""
        match record:
            case Regenerated(generation):
                self.generation = generation
            case OffsetsCommitted(offsets, committed_ms):
                for commit in offsets:
                    stored = StoredOffset(
                        commit.offset, commit.metadata, committed_ms, commit.leader_epoch,
                        commit.is_ahead,
                    )  # fmt: skip
                    self.offsets[commit.topic, commit.partition] = stored
            case TopicForgotten(topic):
                self.offsets = {at: kept for at, kept in self.offsets.items() if at[0] != topic}
            case TopicGrown(topic, first, end, at_ms):
                for number in range(first, end):
                    self.offsets.setdefault((topic, number), StoredOffset(-1, "", at_ms))
            case OffsetsForgotten(partitions):
                for at in partitions:
                    self.offsets.pop(at, None)
            case Retuned(options):
                self.options = options

    def snapshot(self) -> OrderedSnapshot:
        offsets = [(topic, number, kept) for (topic, number), kept in sorted(self.offsets.items())]
        return OrderedSnapshot(self.options, self.generation, offsets)

    @classmethod
    def restore(cls, snapshot: OrderedSnapshot) -> OrderedState:
        state = cls(snapshot.options)
        state.generation = snapshot.generation
        state.offsets = {(topic, number): kept for topic, number, kept in snapshot.offsets}
        return state
