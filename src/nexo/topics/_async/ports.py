"""What `nexo.topics` asks of a cluster: Nexo's streams offer it, and so does a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nexo.topics._async.producer.delivery import Delivery
from nexo.topics.model import (
    Commits,
    Committed,
    GroupDescription,
    Message,
    ProducerRecord,
    ReaderOptions,
    RecordMetadata,
    SenderOptions,
    TopicDescription,
    TopicPartition,
)


class Sender(Protocol):
    """Gathers messages into batches and sends them."""

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """Add a message to a batch; the result tells where it went."""
        ...

    async def send_together(
        self, topic: str, records: Sequence[ProducerRecord]
    ) -> list[RecordMetadata]:
        """Send messages of which all are stored or none."""
        ...

    async def flush(self) -> None:
        """Return once everything sent so far is stored, or has failed."""
        ...

    async def close(self) -> None:
        """Flush, and send nothing more."""
        ...


class Rebalanced(Protocol):
    """Whom a reader tells about its partitions."""

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These are about to go: what was processed may still be committed."""
        ...

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These have come."""
        ...


class Reader(Protocol):
    """A member of a group that reads the partitions it owns."""

    @property
    def member(self) -> str:
        """What the group calls it; empty before it joined."""
        ...

    @property
    def generation(self) -> int:
        """The generation it works in."""
        ...

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """The partitions it owns."""
        ...

    async def join(self) -> None:
        """Become a member, and own what is free for it."""
        ...

    async def fetch(self, max_records: int, timeout_s: float) -> list[Message[Any]]:
        """Ask for the next messages: those handed out before are done with."""
        ...

    async def commit(self, commits: Commits) -> None:
        """Store what was processed, all or none."""
        ...

    async def committed(self, at: TopicPartition) -> Committed | None:
        """What the group has stored."""
        ...

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on reading there."""
        ...

    def unread(self, positions: Mapping[TopicPartition, int]) -> None:
        """Hand out again what lies from these offsets on."""
        ...

    async def bounds(self, at: TopicPartition) -> tuple[int, int]:
        """The first offset, and the one behind the last."""
        ...

    async def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        """Of the first message at that time or later."""
        ...

    def pause(self, partitions: Sequence[TopicPartition], *, paused: bool) -> None:
        """Hand out nothing of these, or again."""
        ...

    def interrupt(self) -> None:
        """Have a fetch that waits return."""
        ...

    async def close(self) -> None:
        """Leave the group."""
        ...


class TopicsBackend(Protocol):
    """A cluster with topics."""

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create a topic; `AlreadyExists` if there is one of that name."""
        ...

    async def list_topics(self) -> list[str]:
        """The names of all topics, in order."""
        ...

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic; `NotFound` if there is none."""
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and what groups have stored for it."""
        ...

    async def compact_topic(self, name: str) -> int:
        """Compact now; returns the bytes freed."""
        ...

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group; `NotFound` if there is none."""
        ...

    async def newest(
        self, topic: str, key: bytes | None, type_: type[Any] | None
    ) -> dict[str | bytes, Message[Any]]:
        """The newest message of a key, or of every key, but those deleted."""
        ...

    def sender(self, options: SenderOptions, partitioner: Any) -> Sender:
        """For a producer."""
        ...

    def reader(self, options: ReaderOptions, told: Rebalanced, type_: Any) -> Reader:
        """For a consumer."""
        ...

    async def close(self) -> None:
        """End the connections that were opened for it."""
        ...
