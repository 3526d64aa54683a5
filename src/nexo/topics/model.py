"""Values that users of topics hold: messages, places, descriptions, events; for both clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

from nexo.client.checks import text
from nexo.client.stream_records import Headers, Key, Record
from nexo.errors import InvalidInput
from nexo.options.stream import Strategy
from nexo.options.units import Duration
from nexo.protocol.stream_ordered import CommittedAt

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")  # defaults come with Python 3.13

Reset: TypeAlias = Literal["earliest", "latest"]


class ConsumerOptions(TypedDict, total=False):
    """Options of a consumer, and of a group for all its members."""

    auto_commit: bool
    auto_commit_interval: Duration
    max_poll_records: int
    session_timeout: Duration
    rebalance_timeout: Duration
    rebalance_strategy: Strategy
    auto_offset_reset: Reset


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Position(NamedTuple):
    """A message's place."""

    topic: str
    partition: int
    offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition it is in."""
        return TopicPartition(self.topic, self.partition)


class TopicMessage(Record[T]):
    """One message of a topic, as a consumer gets it."""

    __slots__ = ("source", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        row: Sequence[Any],
        type_: type[T] | None = None,
    ) -> None:
        super().__init__(partition, row, type_)
        self.topic = topic
        self.source: object = None
        """What a transaction that commits it knows the consumer by."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition it is in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def position(self) -> Position:
        """Topic, partition and offset."""
        return Position(self.topic, self.partition, self.offset)

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"({self.topic!r}, ", 1)


_ENVELOPE = frozenset({"value", "key", "headers", "partition"})


def _is_envelope(given: Mapping[str, Any]) -> bool:
    """Whether a mapping is a message rather than the value of one; `InvalidInput` if unclear."""
    if not given or given.keys() - _ENVELOPE:
        return False
    if "value" not in given:
        raise InvalidInput(
            f"{[*given]} looks like a message without its 'value'; if it is the value, "
            "pass ProducerRecord(value)"
        )
    return True


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A message on its way; everything that sends takes one in place of a value."""

    value: Any
    key: Key = None
    headers: Headers = None
    partition: int | None = None

    @classmethod
    def of(cls, given: ProducerRecord | Mapping[str, Any]) -> ProducerRecord:
        """From an envelope ``{'value': …, 'key': …, 'headers': …}``, or as it is."""
        if isinstance(given, ProducerRecord):
            return given
        if not isinstance(given, Mapping):
            raise InvalidInput(f"a message is a mapping with 'value', not {given!r}")
        if given.keys() - _ENVELOPE or "value" not in given:
            raise InvalidInput(
                f"a message has 'value' and may have 'key', 'headers', 'partition'; got {[*given]}"
            )
        return cls(**given)

    @classmethod
    def made(
        cls, value: Any, key: Key = None, headers: Headers = None, partition: int | None = None
    ) -> ProducerRecord:
        """From the arguments of `send` and `produce`: a value and the rest, or a whole message.

        A mapping of nothing but ``value``, ``key``, ``headers`` and ``partition`` is a message, as
        in a batch, unless one of these is also an argument: then it is the value.
        """
        is_alone = key is None and headers is None and partition is None
        if isinstance(value, ProducerRecord):
            if not is_alone:
                raise InvalidInput("a ProducerRecord has its key, headers and partition within")
            return value
        if is_alone and isinstance(value, Mapping) and _is_envelope(value):
            return cls.of(value)
        return cls(value, key, headers, partition)

    @classmethod
    def several(cls, given: Iterable[ProducerRecord | Mapping[str, Any]]) -> list[ProducerRecord]:
        """A list of what `of` takes."""
        if isinstance(given, Mapping | ProducerRecord | str) or not isinstance(given, Iterable):
            raise InvalidInput(f"a batch is a list of messages, not {given!r}")
        return [cls.of(each) for each in given]


class RecordMetadata(Position):
    """Where a message was stored."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The stored position of a group in a partition."""

    offset: int
    """The last message that was processed; -1 if the group has begun but processed none."""
    metadata: str = ""
    committed_at: datetime | None = None
    """When; None where the cluster does not say."""


def committed_of(rows: Iterable[CommittedAt]) -> dict[TopicPartition, Committed]:
    """The stored positions of a group, by partition."""
    return {
        TopicPartition(row.topic, row.partition): Committed(
            row.offset, row.metadata, datetime.fromtimestamp(row.committed_ms / 1000, UTC)
        )
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as `describe_topic` shows it."""

    partition: int
    earliest_offset: int
    next_offset: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic as `describe_topic` shows it; ``config`` in Kafka's words."""

    name: str
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group as it is now."""

    group_id: str
    generation: int
    leader: str
    members: tuple[str, ...]
    assignment: Mapping[TopicPartition, str]
    """Who owns each partition; one without an owner at the moment is missing."""
    committed: Mapping[TopicPartition, Committed]
    lag: int
    """Messages after what is committed, in all partitions of the topics it reads."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Partitions that were assigned to a member or revoked; what is revoked is reported first."""

    kind: Literal["revoked", "assigned"]
    partitions: tuple[TopicPartition, ...]
    assignment: tuple[TopicPartition, ...]
    """Everything the member owns after this."""
    member: str
    generation: int


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How a member of a group reads."""

    topics: tuple[str, ...]
    group_id: str
    strategy: Strategy | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    reset: Reset = "earliest"
    max_bytes: int = 4 * 1024**2

    def group_options(self) -> dict[str, Any]:
        """The options sent to the group; it keeps those that were not given."""
        given = {
            "strategy": self.strategy,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """How a producer sends."""

    compression: str | None = None
    batch_size: int = 100
    linger_ms: float = 10.0
    idempotent: bool = True
    name: str = ""
    """A producer started later under the same name fences this one."""
    delivery_timeout_s: float = 30.0
    """How long a batch is sent again before it counts as failed."""


Commits: TypeAlias = Mapping[TopicPartition, tuple[int, str]]
"""The last processed offset per partition, and metadata."""


def topic_names(topics: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several; each once, in the order given."""
    given = (topics,) if isinstance(topics, str) or not isinstance(topics, Iterable) else topics
    names = tuple(dict.fromkeys(text(name, "a topic's name") for name in given))
    if not names:
        raise InvalidInput("name at least one topic")
    return names
