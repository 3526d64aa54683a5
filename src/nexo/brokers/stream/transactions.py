"""Transactions: writes to several partitions and their inputs take effect together (SPEC H1).

Open transactions live in memory only. Their batches are in the logs, flagged, past the
stable offset; after a restart, whatever the journal does not commit counts as aborted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.records import Outcomes
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Conflict, OutcomeUnknown, TransactionAborted
from nexo.model.stream import TxAcks, TxOffsets

REMEMBERED = 10_000
"""Ranges of committed ids; a new one begins after each transaction that was not committed."""
_LIFE_BITS = 32
"""The low bits of an id count the transactions of one run of the broker, the high bits its runs."""


class Acks(NamedTuple):
    """Records of a shared group that are finished if the transaction commits."""

    stream: OpenStream
    """The stream of that name when the input was added."""
    ask: TxAcks


class Offsets(NamedTuple):
    """Offsets of an ordered group that are committed if the transaction commits."""

    ask: TxOffsets
    commits: list[OffsetCommit]
    checked: bool
    """Whether the caller knows the member; see `OrderedGroup.commit`."""


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """One open transaction."""

    id: int
    owner: Hashable
    """The id of its connection, whose end rolls it back, or a name."""
    deadline_ms: int
    user: str
    """Who began it; empty while authentication is off."""
    touched: dict[tuple[int, int], OpenStream] = field(default_factory=dict)
    """By stream number and partition: where it wrote."""
    acks: list[Acks] = field(default_factory=list)
    offsets: list[Offsets] = field(default_factory=list)
    ending: bool = False
    """Its commit was asked for."""
    decided: bool = False
    """Its commit is journalled: there is no way back."""

    def postpone(self, deadline_ms: int) -> None:
        """Roll it back later, as it cannot be rolled back now."""
        self.deadline_ms = deadline_ms


class Transactions:
    """The open transactions of the broker, and which of the others were committed."""

    __slots__ = ("_committed", "_forgotten", "_open", "_remembered", "next_id")

    def __init__(self) -> None:
        self._open: dict[int, OpenTransaction] = {}
        self._committed: dict[str, RangeSet] = {}
        """By user."""
        self._remembered = 0
        self._forgotten = 0
        self.next_id = 1

    def started(self) -> None:
        """The broker starts another run: no id of an earlier one is used again."""
        self.next_id = ((self.next_id >> _LIFE_BITS) + 1) << _LIFE_BITS

    def restore(self, next_id: int, outcomes: Outcomes) -> None:
        """Restore a snapshot."""
        self.next_id = next_id
        self._committed = {
            user: RangeSet(ranges)
            for user, ranges in {"": outcomes.committed, **outcomes.by_user}.items()
        }
        self._remembered = sum(map(len, self._committed.values()))
        self._forgotten = outcomes.forgotten

    def outcomes(self) -> Outcomes:
        """For a snapshot."""
        by_user = {user: list(ranges) for user, ranges in self._committed.items()}
        return Outcomes(by_user.pop("", []), self._forgotten, by_user)

    def committed(self, number: int, user: str = "") -> None:
        """Record a commit that the journal has, or is about to have."""
        ranges = self._committed.setdefault(user, RangeSet())
        before = len(ranges)
        ranges.add(number, number + 1)
        self._remembered += len(ranges) - before
        if self._remembered > REMEMBERED:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        user, ranges = min(self._committed.items(), key=lambda item: item[1].head())
        first, end = ranges.head()
        ranges.remove(first, end)
        self._remembered -= 1
        self._forgotten = max(self._forgotten, end)
        if not ranges:
            del self._committed[user]

    def outcome(self, number: int, user: str = "") -> OpenTransaction | None:
        """None if this user committed it, the transaction if it is open; else raises why."""
        found = self._open.get(number)
        if found is not None and found.user == user:
            return found
        if number in self._committed.get(user, ()):
            return None
        if number < self._forgotten:
            raise OutcomeUnknown(f"transaction {number} is too long ago: read what it wrote")
        raise TransactionAborted(f"transaction {number} was rolled back: nothing of it is visible")

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, owner: Hashable, deadline_ms: int, user: str = "") -> OpenTransaction:
        found = OpenTransaction(self.next_id, owner, deadline_ms, user)
        self._open[found.id] = found
        self.next_id += 1
        return found

    def get(self, number: int, owner: Hashable) -> OpenTransaction:
        """An open transaction of this owner; `TransactionAborted` if it is no longer open."""
        found = self._open.get(number)
        if found is None or found.owner != owner:
            raise TransactionAborted(
                f"transaction {number} is not open: it timed out, ended, or the connection was cut"
            )
        if found.ending:
            raise Conflict(f"transaction {number} is being committed")
        return found

    def known(self, number: int | None) -> OpenTransaction | None:
        """A transaction if it is open, whoever's it is."""
        return None if number is None else self._open.get(number)

    def has(self, number: int, owner: Hashable) -> bool:
        """Whether this owner's transaction is open."""
        found = self._open.get(number)
        return found is not None and found.owner == owner

    def is_open(self, transaction: OpenTransaction) -> bool:
        """Whether it has not been rolled back."""
        return self._open.get(transaction.id) is transaction

    def end(self, transaction: OpenTransaction) -> None:
        self._open.pop(transaction.id, None)

    def of(self, owner: Hashable) -> list[OpenTransaction]:
        """What a connection left open; those being committed continue without it."""
        return [tx for tx in self._open.values() if tx.owner == owner and not tx.ending]

    def touching(self, stream: int) -> list[OpenTransaction]:
        """Those that wrote to a stream and can still be rolled back."""
        undecided = [tx for tx in self._open.values() if not tx.decided]
        return [tx for tx in undecided if any(number == stream for number, _ in tx.touched)]

    def pending(self, group: str) -> set[tuple[str, int]]:
        """The partitions whose offsets an open transaction will commit for an ordered group."""
        return {
            (commit.topic, commit.partition)
            for transaction in self._open.values()
            for offsets in transaction.offsets
            if offsets.ask.group == group
            for commit in offsets.commits
        }

    def overdue(self, now_ms: int) -> list[OpenTransaction]:
        """Transactions past their deadline."""
        return [tx for tx in self._open.values() if tx.deadline_ms <= now_ms and not tx.ending]

    def deadlines(self) -> Iterator[int]:
        return (tx.deadline_ms for tx in self._open.values() if not tx.ending)
