"""An ordered group: members that own partitions, and the offsets they commit (SPEC G5-G6).

`nexo.brokers.stream.groups.ordered_members` says who owns what. The caller makes what `drain`
returns durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nexo.brokers.stream.groups.limits import MAX_METADATA, check_length
from nexo.brokers.stream.groups.ordered_members import OrderedMembership
from nexo.brokers.stream.groups.ordered_state import (
    OffsetCommit,
    OffsetsCommitted,
    OffsetsForgotten,
    OrderedRecord,
    OrderedSnapshot,
    OrderedState,
    Retuned,
    StoredOffset,
    TopicForgotten,
    TopicGrown,
)
from nexo.errors import Fenced, InvalidInput, NotFound, NotOwner
from nexo.model.stream import StreamPartition
from nexo.options.stream import OrderedOptions

STANDALONE = -1
"""The generation a consumer without membership commits with."""


class OrderedGroup(OrderedMembership):
    """One group: its members, and the offsets stored for it."""

    __slots__ = ()

    def __init__(self, options: OrderedOptions | None = None) -> None:
        self._take_over(OrderedState(options or OrderedOptions()))

    # -- offsets ---------------------------------------------------------------

    def check(
        self,
        member: str,
        generation: int,
        offsets: Sequence[OffsetCommit],
        *,
        rewind: bool = False,
        checked: bool = False,
    ) -> None:
        """Raise what `commit` would raise."""
        if generation == STANDALONE:
            if self._members and not checked:
                raise Fenced("the group has live members: join it to commit")
        else:
            self._known(member)
            if generation != self.generation:
                raise Fenced(
                    f"generation {generation} is over, the group is at {self.generation}: "
                    "send a heartbeat and commit what is still owned"
                )
        for commit in offsets:
            begun = (commit.topic, commit.partition) in self._state.offsets
            owner = member if generation != STANDALONE else None
            self._check_offset(commit, owner, lowest=0 if begun and not rewind else -1)

    def _check_offset(self, commit: OffsetCommit, member: str | None, *, lowest: int) -> None:
        at = commit.topic, commit.partition
        check_length("commit metadata", commit.metadata, MAX_METADATA)
        if commit.partition < 0 or commit.offset < lowest:
            raise InvalidInput(f"{commit.topic}/{commit.partition} at {commit.offset}: below 0")
        if member is not None and (self._owners.get(at) != member or at in self._recalled):
            raise NotOwner(f"{commit.topic}/{commit.partition} is not owned by {member!r}")

    def commit(
        self,
        member: str,
        generation: int,
        offsets: Sequence[OffsetCommit],
        now_ms: int,
        *,
        rewind: bool = False,
        checked: bool = False,
    ) -> None:
        """Store the last processed offsets of partitions the member owns, all or none.

        An offset below the stored one is ignored unless the member sought back (``rewind``). While
        nothing is stored, or with ``rewind``, -1 says that nothing is processed. A consumer without
        membership commits with `STANDALONE` while the group has no members, or for a member that
        was ``checked`` before.
        """
        self.check(member, generation, offsets, rewind=rewind, checked=checked)
        if not rewind:
            offsets = [commit for commit in offsets if self._advances(commit)]
        if offsets:
            self._state.log(OffsetsCommitted(list(offsets), now_ms))

    def _advances(self, commit: OffsetCommit) -> bool:
        stored = self.committed(commit.topic, commit.partition)
        return stored is None or commit.offset >= stored.offset

    def committed(self, topic: str, partition: int) -> StoredOffset | None:
        """The stored offset, its metadata and its time."""
        return self._state.offsets.get((topic, partition))

    @property
    def offsets(self) -> Mapping[StreamPartition, StoredOffset]:
        """Every stored offset."""
        return self._state.offsets

    def check_reset(self, offsets: Sequence[OffsetCommit]) -> None:
        """Raise what `reset` would raise."""
        for commit in offsets:
            self._check_offset(commit, None, lowest=-1)

    def reset(self, offsets: Sequence[OffsetCommit], now_ms: int) -> None:
        """Overwrite stored offsets; owners give up their partitions and start again from them.

        -1 means that nothing was processed: the partition is read from its beginning.
        """
        self.check_reset(offsets)
        self._state.log(OffsetsCommitted(list(offsets), now_ms))
        reset = {(commit.topic, commit.partition) for commit in offsets}
        self._recalled |= reset & self._owners.keys()
        self._rebalance(now_ms)

    # -- administration --------------------------------------------------------

    def forget(self, topic: str, now_ms: int) -> None:
        """Drop the offsets of a deleted topic; nobody owns its partitions any more."""
        self._state.log(TopicForgotten(topic))
        self._free([at for at in self._owners if at[0] == topic])
        if self._partitions.pop(topic, None) is not None:
            self._rebalance(now_ms)

    def grow(self, topic: str, first: int, end: int, now_ms: int) -> None:
        """A topic has more partitions, from ``first`` up to ``end``: its members share them.

        They are read from their beginning, wherever members without an offset start: nothing that
        is written before a member learns of them is skipped.
        """
        if topic in self.topics:
            self._state.log(TopicGrown(topic, first, end, now_ms))
        if topic in self._partitions:
            self._partitions[topic] = end
            self._rebalance(now_ms)

    def forget_offsets(self, partitions: list[StreamPartition]) -> None:
        """Delete stored offsets, as if nothing had been committed."""
        self._state.log(OffsetsForgotten(partitions))

    def tune(self, options: OrderedOptions, now_ms: int) -> None:
        """Change the options; another strategy moves partitions."""
        self._state.log(Retuned(options))
        self._rebalance(now_ms)

    def drain(self) -> list[OrderedRecord]:
        """The records since the last call; make them durable in this order."""
        records, self._state.journal = self._state.journal, []
        return records

    def apply(self, record: OrderedRecord) -> None:
        """Apply a logged change during recovery, before any member joins."""
        self._state.apply(record)

    def snapshot(self) -> OrderedSnapshot:
        """The durable state; records drained before it are no longer needed."""
        return self._state.snapshot()

    @classmethod
    def restore(cls, snapshot: OrderedSnapshot) -> OrderedGroup:
        """The group as of a snapshot, without members."""
        group = cls.__new__(cls)
        group._take_over(OrderedState.restore(snapshot))
        return group


def no_group(name: str) -> NotFound:
    """The error for a group that does not exist, or that a client must not learn of."""
    return NotFound(f"group {name!r} not found: join it first")
