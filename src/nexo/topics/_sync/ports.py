# Generated from _async/ports.py by tools/unasync.py; edit that file instead.
"""What `nexo.topics` needs from a cluster: Nexo's streams offer it, and so does a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nexo.client.stream_records import Record
from nexo.topics._sync.producer.delivery import Delivery
from nexo.topics.model import (
    Commits,
    Committed,
    GroupDescription,
    ProducerRecord,
    ReaderOptions,
    RecordMetadata,
    SenderOptions,
    TopicDescription,
    TopicMessage,
    TopicPartition,
)


class Sender(Protocol):
    """Gathers messages into batches and sends them."""

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """Add a message to a batch; the result is its place."""

    def send_together(self, topic: str, records: Sequence[ProducerRecord]) -> list[RecordMetadata]:
        """Send messages that are all stored, or none."""

    def flush(self) -> None:
        """Wait until everything sent so far is stored, or has failed."""

    def close(self) -> None:
        """Flush, and send nothing more."""


class Rebalanced(Protocol):
    """Receives a reader's rebalances."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These are about to be revoked: what was processed may still be committed."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These were assigned."""


class GroupReader(Protocol):
    """A member of a group that reads the partitions it owns."""

    @property
    def member(self) -> str:
        """What the group calls it; empty before it joined."""

    @property
    def generation(self) -> int:
        """The generation it works in."""

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """The partitions it owns."""

    def join(self) -> None:
        """Become a member, and own what is free for it."""

    def fetch(self, max_records: int, timeout_s: float) -> list[TopicMessage[Any]]:
        """Request the next messages: those delivered before are processed."""

    def is_up(self) -> bool:
        """Whether there is a connection."""

    def commit(self, commits: Commits) -> None:
        """Commit what was processed, all or none."""

    def committed(self, at: TopicPartition) -> Committed | None:
        """The committed offset of the group."""

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue reading there."""

    def unread(self, positions: Mapping[TopicPartition, int]) -> None:
        """Deliver again what lies from these offsets on."""

    def bounds(self, at: TopicPartition) -> tuple[int, int]:
        """The first offset, and one past the last."""

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        """The offset of the first message at that time or later."""

    def pause(self, partitions: Sequence[TopicPartition], *, paused: bool) -> None:
        """Pause or resume delivery of these."""

    def interrupt(self) -> None:
        """Let a waiting fetch return."""

    def close(self) -> None:
        """Leave the group."""


class TopicsBackend(Protocol):
    """A cluster with topics."""

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create a topic; `AlreadyExists` if there is one of that name."""

    def list_topics(self) -> list[str]:
        """The names of all topics, in order."""

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic; `NotFound` if there is none."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic and what groups have stored for it."""

    def compact_topic(self, name: str) -> int:
        """Compact now; returns the bytes freed."""

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group; `NotFound` if there is none."""

    def newest(
        self, topic: str, key: bytes | None, type_: type[Any] | None
    ) -> Mapping[str | bytes, Record[Any]]:
        """The newest message of a key, or of every key, except deleted ones."""

    def sender(self, options: SenderOptions, partitioner: Any) -> Sender:
        """For a producer."""

    def reader(self, options: ReaderOptions, listener: Rebalanced, type_: Any) -> GroupReader:
        """For a consumer."""

    def close(self) -> None:
        """End the connections that were opened for it."""
