# Generated from _async/consumer/message_source.py by tools/unasync.py; edit that file instead.
"""The interface of a consumer to transactions that commit its messages (SPEC H1, H3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nexo.client._sync.stream.transaction import Transaction
from nexo.errors import (
    ClientClosed,
    Conflict,
    ConnectionLost,
    InvalidInput,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
)
from nexo.topics._sync.consumer.reader import NexoReader
from nexo.topics._sync.consumer.subscription import ConsumerSubscription
from nexo.topics.model import Commits, TopicMessage, TopicPartition
from nexo.topics.progress import MessageProgress, last_of


@dataclass(slots=True, eq=False)
class MessageSource:
    """A consumer as transactions see it: the `TopicMessage.source` of its messages.

    ``client.transaction()`` collects messages and calls `commit_within` and `ended_within`; a
    transaction of an exactly-once context collects offsets and calls the others.
    """

    group_id: str
    _subscription: ConsumerSubscription
    _progress: MessageProgress[Any]
    _doubts: Doubts

    def commit_within(self, transaction: Transaction, messages: list[TopicMessage[Any]]) -> None:
        """Commit these with the transaction."""
        self.give_commits(transaction, last_of(messages))

    def ended_within(self, messages: list[TopicMessage[Any]], *, committed: bool) -> None:
        commits = last_of(messages)
        if committed:
            self.committed(commits)
        else:
            self.rolled_back(messages, commits)

    def doubt(self, transaction: Doubted) -> None:
        """The outcome is unknown, so nothing may be delivered yet."""
        self._doubts.add(transaction)

    def give_commits(self, transaction: Transaction, commits: Commits) -> None:
        """Add offsets to a transaction of the stream broker."""
        reader = self._subscription.reader
        if reader is None:
            raise Conflict("the consumer is closed, or has not joined its group yet")
        if not isinstance(reader, NexoReader):
            raise InvalidInput("a message of a Kafka cluster cannot be committed on a Nexo server")
        reader.commit_within(transaction, commits)

    def committed(self, commits: Commits) -> None:
        """A transaction has committed these."""
        self._progress.committed_within(commits)

    def rolled_back(
        self, messages: Sequence[TopicMessage[Any]], partitions: Collection[TopicPartition]
    ) -> None:
        """Deliver these again, and what the user holds of ``partitions``: it is not committed."""
        held = [each for each in self._progress.held if each.topic_partition in partitions]
        first = self._progress.take_back([*messages, *held])
        if self._subscription.reader is not None:
            self._subscription.reader.unread(first)


class Doubted(Protocol):
    """A transaction whose outcome is unknown."""

    def settle(self, wait_s: float) -> None:
        """Find the outcome and inform its consumers; `TransactionAborted` if it was rolled back."""


class Doubts:
    """Transactions in doubt that have messages of one consumer."""

    def __init__(self) -> None:
        self._doubted: list[Doubted] = []

    def __len__(self) -> int:
        return len(self._doubted)

    def add(self, transaction: Doubted) -> None:
        """Add one; the same one counts once."""
        if transaction not in self._doubted:
            self._doubted.append(transaction)

    def clear(self) -> None:
        self._doubted.clear()

    def settled(self, wait_s: float) -> bool:
        """Whether the outcome of all of them is known by now."""
        while self._doubted:
            try:
                self._doubted[0].settle(wait_s)
            except ClientClosed:
                raise
            except (ConnectionLost, RequestTimeout, Unavailable):
                return False
            except TransactionAborted:
                pass  # its messages are delivered again
            del self._doubted[0]
        return True
