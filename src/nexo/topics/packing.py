"""Messages on their way: which partition each is for, its bytes, its batch, and its failure."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from nexo.batch.partitions import partition_of
from nexo.client.stream_records import Outgoing, content_of, headers_bytes, key_bytes
from nexo.errors import InvalidInput, InvalidOption
from nexo.topics.model import ProducerRecord, TopicPartition

log = logging.getLogger("nexo.topics")

D = TypeVar("D")
"""Reports to whoever sent a message what became of it."""
_MOST_KEPT = 100
"""Failures kept for `close`; all of them are logged."""


Partitioner: TypeAlias = Callable[[bytes, int], int]
"""``partitioner(key, partition_count)``."""


def partitioner_named(given: str | Partitioner) -> Partitioner:
    """``'murmur2'``, which is Kafka's, or a function."""
    if callable(given):
        return given
    if given != "murmur2":
        raise InvalidOption(f"partitioner {given!r} is not known: use 'murmur2' or a function")
    return partition_of


class Chooser:
    """Chooses the partition of each message of a producer."""

    def __init__(self, partitioner: Partitioner) -> None:
        self._partitioner = partitioner
        self._turns: dict[str, int] = {}

    def partition_of(self, topic: str, given: int | None, key: bytes | None, count: int) -> int:
        """One of the ``count`` that the topic has; errors are also those of the partitioner."""
        if given is not None:
            return _existing(topic, given, count)
        if key is not None:
            return _existing(topic, self._partitioner(key, count), count)
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return turn % count


def _existing(topic: str, partition: object, count: int) -> int:
    """A partition that the topic has."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidInput(f"partition {partition!r} of {topic!r} is not a whole number")
    if not 0 <= partition < count:
        raise InvalidInput(f"partition {partition} does not exist: {topic!r} has {count}, from 0")
    return partition


class Packed(Generic[D]):
    """One message, encoded."""

    __slots__ = ("content", "delivery", "headers", "key", "kind", "partition", "size_bytes")

    def __init__(self, record: ProducerRecord, delivery: D) -> None:
        self.kind, content = (0, None) if record.value is None else content_of(record.value)
        self.content: bytes | None = content
        self.key = key_bytes(record.key)
        self.headers = headers_bytes(record.headers)
        self.partition = record.partition
        self.delivery = delivery
        self.size_bytes = len(content or b"") + len(self.key or b"") + len(self.headers)
        if content is None and self.key is None:
            raise InvalidInput("a message without a value deletes its key, so it needs one")


@dataclass(slots=True, eq=False)
class PartitionBacklog(Generic[D]):
    """The messages that wait for one partition."""

    at: TopicPartition
    waiting: deque[Packed[D]] = field(default_factory=deque)
    first_s: float = 0.0
    """Since when the first of them waits."""
    busy: bool = False
    count: int = 0
    """How many partitions the topic had when they were placed."""


def batch_of(packed: Sequence[Packed[Any]]) -> Outgoing:
    records = Outgoing()
    for each in packed:
        records.add(each.kind, each.content, each.key, each.headers)
    return records


class PendingDelivery(Protocol):
    """A message in flight."""

    asked: bool
    """Whether anybody has asked for its result."""

    def fail(self, error: BaseException) -> None:
        """It was not stored."""


class FailedSends:
    """Failed sends whose result nobody asked for: they are logged, and `close` raises one."""

    def __init__(self) -> None:
        self._unasked: list[tuple[PendingDelivery, BaseException]] = []

    def add(self, deliveries: Sequence[PendingDelivery], error: BaseException) -> None:
        """Fail these, and remember those that nobody has asked for."""
        for delivery in deliveries:
            delivery.fail(error)
        unasked = [delivery for delivery in deliveries if not delivery.asked]
        if unasked:
            log.warning(
                "messages not stored, their result not asked for (%d): %s", len(unasked), error
            )
            room = _MOST_KEPT - len(self._unasked)
            self._unasked += [(delivery, error) for delivery in unasked[:room]]

    def raise_unasked(self) -> None:
        """Raise a failure that nobody has asked for by now."""
        failed, self._unasked = self._unasked, []
        for delivery, error in failed:
            if not delivery.asked:
                raise error
