"""How far a consumer is: what the user holds, and what they have processed (SPEC G5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Protocol

from nexo.topics.model import Commits, T, TopicMessage, TopicPartition

_BEYOND = 1 << 63
"""Larger than any offset."""


class MessageProgress(Generic[T]):
    """Delivered messages are held until they are processed, and processed until committed."""

    __slots__ = ("held", "processed", "stored")

    def __init__(self) -> None:
        self.held: list[TopicMessage[T]] = []
        self.processed: dict[TopicPartition, tuple[int, str]] = {}
        """The last offset of each partition, with its metadata, as it is committed."""
        self.stored: dict[TopicPartition, int] = {}
        """The last offset of each partition that was committed while messages are held."""

    def finish(self) -> None:
        """All that is held is processed; what is stored need not be committed again."""
        for message in self.held:
            at = message.topic_partition
            if message.offset > self.stored.get(at, -1):
                self.processed[at] = message.offset, ""
        self.held = []
        self.stored.clear()

    def so_far(self, metadata: str) -> dict[TopicPartition, tuple[int, str]]:
        """The commits if all that is held counts as processed."""
        held = {each.topic_partition: (each.offset, metadata) for each in self.held}
        before = self.processed.items()
        return {at: (offset, metadata or said) for at, (offset, said) in before} | held

    def committed(self, commits: Commits) -> None:
        """These are stored, and need not be again."""
        for at, (offset, _) in commits.items():
            if self.held:
                self.stored[at] = offset
            if at in self.processed and self.processed[at][0] <= offset:
                del self.processed[at]

    def committed_within(self, commits: Commits) -> None:
        """A transaction has stored these, whether they were still held or not."""
        self.held = [
            each
            for each in self.held
            if each.offset > commits.get(each.topic_partition, (-1, ""))[0]
        ]
        self.committed(commits)

    def leave(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Nothing of these is held any more; returns what was processed of them."""
        self.held = [each for each in self.held if each.topic_partition not in partitions]
        for at in partitions:
            self.stored.pop(at, None)
        return {at: self.processed.pop(at) for at in partitions if at in self.processed}

    def take_back(self, messages: Iterable[TopicMessage[Any]]) -> dict[TopicPartition, int]:
        """These and all after them were not processed; returns the first of each partition."""
        first: dict[TopicPartition, int] = {}
        for message in messages:
            at = message.topic_partition
            first[at] = min(message.offset, first.get(at, message.offset))
        self.held = [
            each for each in self.held if each.offset < first.get(each.topic_partition, _BEYOND)
        ]
        for at, offset in first.items():
            if at in self.processed and self.processed[at][0] >= offset:
                del self.processed[at]
        return first


def last_of(messages: Iterable[TopicMessage[Any]]) -> dict[TopicPartition, tuple[int, str]]:
    """The commits that cover these messages."""
    last: dict[TopicPartition, int] = {}
    for message in messages:
        at = message.topic_partition
        last[at] = max(message.offset, last.get(at, message.offset))
    return {at: (offset, "") for at, offset in last.items()}


class Polls(Protocol):
    """Something that wants to know which messages are read while it is open."""

    def polled(self, source: Any, messages: Sequence[TopicMessage[Any]]) -> None:
        """These were delivered; ``source`` is their `TopicMessage.source`."""


current_transaction: ContextVar[Polls | None] = ContextVar("nexo_transaction", default=None)
