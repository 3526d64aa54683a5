"""The offsets of ordered groups as use cases (SPEC G6).

A member commits on the connection it joined on. A transaction, such as one of an exactly-once
context, may be on another connection of the same user. A seek also affects other members, so it
needs permission on every stream that the group reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from nexo.access.grants import Extent
from nexo.access.permit import READ, visible
from nexo.brokers.stream.groups.ordered import STANDALONE, OrderedGroup
from nexo.brokers.stream.groups.ordered_members import not_member
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, StoredOffset
from nexo.errors import Conflict, OffsetOutOfRange
from nexo.model import Broker, Persistence
from nexo.model.stream import CommittedAt, OffsetRow, StreamPartition, TxOffsets
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core, safest
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.permits import in_group, permit_group, permit_ordered


class GroupOffsets:
    """Stores, returns and moves the offsets of ordered groups."""

    def __init__(self, core: Core, groups: Ordered) -> None:
        self._core, self._groups = core, groups

    def commit(
        self,
        connection: Connection,
        group: str,
        offsets: Iterable[OffsetRow | OffsetCommit],
        done: Done[None],
        *,
        member: str = "",
        generation: int = STANDALONE,
        rewind: bool = False,
        checked: bool = False,
    ) -> None:
        """Store offsets, all or none; by a member, or `STANDALONE` without membership.

        ``checked``: the caller has checked the member, which is not named here, and that the
        client may use the group. Then offsets may lie beyond the end, as Kafka's clients expect.
        """
        core, new = self._core, self._groups.found_or_new(group)
        commits = [row if isinstance(row, OffsetCommit) else OffsetCommit(*row) for row in offsets]
        if checked:
            permit_ordered(connection, group, None, {commit.topic for commit in commits})
        else:
            self._permit_commit(connection, group, commits, member)
        if generation != STANDALONE and self._has(group, member):
            self._groups.bindings.check(connection, group, member)
        new.check(member, generation, commits, rewind=rewind, checked=checked)
        if checked:
            commits = self.placed(commits)
        else:
            self._check_there(commits)
        found = self._groups.ensure(group)
        found.commit(member, generation, commits, core.now_ms, rewind=rewind, checked=checked)
        self._groups.changed(group, found)
        core.done_when_safe(self._mode(commits), done, None)

    def _permit_commit(
        self, connection: Connection, group: str, offsets: Iterable[OffsetCommit], member: str
    ) -> None:
        """Raise `Forbidden` unless the client may store these; a join was permitted before."""
        topics = [commit.topic for commit in offsets]
        if self._groups.bindings.is_own(connection, group, member):
            permit_ordered(connection, group, None, topics)
        else:
            self.permit(connection, group, topics)

    def permit(self, connection: Connection, group: str, topics: Iterable[str]) -> None:
        """Raise `Forbidden` unless the client may store offsets of a group it is no member of.

        Without members, and in streams that the group reads already, only those streams matter.
        """
        topics, known = set(topics), self._core.engine.ordered.get(group)
        has_members = self._groups.has_members(group) or self._groups.is_taken(group)
        if known is not None and not has_members and topics <= set(known.topics):
            permit_ordered(connection, group, None, topics)
        else:
            self._groups.permit(connection, group, topics)

    def _has(self, group: str, member: str) -> bool:
        known = self._core.engine.ordered.get(group)
        return known is not None and known.has(member)

    def commits(self, connection: Connection, ask: TxOffsets) -> list[OffsetCommit]:
        """Offsets to commit with a transaction."""
        found = [OffsetCommit(*row) for row in ask.offsets]
        self._permit_commit(connection, ask.group, found, ask.member)
        own = self._groups.bindings.is_own(connection, ask.group, ask.member)
        if ask.generation != STANDALONE and not own and self._has(ask.group, ask.member):
            raise not_member(ask.member)
        self._check_there(found)
        return found

    def placed(self, commits: Iterable[OffsetCommit]) -> list[OffsetCommit]:
        """Commits of Kafka's clients, which may lie beyond the end, with a note if they do."""
        return [replace(one, is_ahead=one.offset >= self._end(one)) for one in commits]

    def _end(self, commit: OffsetCommit) -> int:
        """Where the partition ends."""
        stream = self._core.engine.streams.get(commit.topic)
        return stream.partition(commit.partition).next_offset

    def _check_there(self, commits: Iterable[OffsetCommit]) -> None:
        for commit in commits:
            end = self._end(commit)
            if commit.offset >= end:
                raise OffsetOutOfRange(
                    f"offset {commit.offset} of {commit.topic!r}, partition {commit.partition}, "
                    f"is not there yet: the next one is {end}"
                )

    def _mode(self, commits: Iterable[OffsetCommit]) -> Persistence:
        get = self._core.engine.streams.get
        return safest(get(commit.topic) for commit in commits)

    def committed(
        self, connection: Connection, group: str, topic: str | None = None
    ) -> list[CommittedAt]:
        """Stored offsets, of all topics or one; an unknown group has none."""
        found = self._permitted(connection, group, None if topic is None else [topic])
        return stored_offsets(found, topic) if found is not None else []

    def committed_in(
        self, connection: Connection, group: str, topics: Iterable[str] | None
    ) -> Mapping[StreamPartition, StoredOffset]:
        """Stored offsets of a group; the client must be able to read these topics.

        Without topics, those that it may read.
        """
        found = self._core.engine.ordered.get(group)
        stored = found.offsets if found is not None else {}
        if topics is not None:
            self._permitted(connection, group, topics)
            return stored
        permit_ordered(connection, group)
        shows = visible(connection.identity, Broker.STREAM, READ, Extent.NAME)
        return {at: kept for at, kept in stored.items() if shows(in_group(at[0], group))}

    def _permitted(
        self, connection: Connection, group: str, topics: Iterable[str] | None
    ) -> OrderedGroup | None:
        """The group, if there is one and the client may read it in these topics, or in all."""
        found = self._core.engine.ordered.get(group)
        if topics is None:
            self._groups.permit(connection, group)
        for topic in topics or ():
            permit_group(connection, topic, group)
        return found

    def seek(
        self,
        connection: Connection,
        group: str,
        offsets: Iterable[OffsetRow],
        done: Done[int],
    ) -> None:
        """Overwrite stored offsets; owners give up their partitions and start again from them."""
        commits = [OffsetCommit(*row) for row in offsets]
        self.permit(connection, group, [commit.topic for commit in commits])
        self._check_there(commits)
        self._groups.found_or_new(group).check_reset(commits)
        found = self._groups.ensure(group)
        found.reset(commits, self._core.now_ms)
        self._groups.changed(group, found)
        self._core.done_when_safe(self._mode(commits), done, found.generation)

    def forget_offsets(
        self,
        connection: Connection,
        group: str,
        partitions: Sequence[StreamPartition],
        done: Done[None],
    ) -> None:
        """Delete stored offsets of topics that no member reads."""
        found = self._core.engine.find_ordered(group)
        self.permit(connection, group, [topic for topic, _ in partitions])
        for topic, _ in partitions:
            if found.subscribes(topic):
                raise Conflict(f"a member of group {group!r} reads {topic!r}: let it leave first")
        found.forget_offsets(list(partitions))
        self._groups.changed(group, found)
        self._core.done_when_safe(Persistence.FILE_ASYNC, done, None)


def stored_offsets(group: OrderedGroup, only: str | None) -> list[CommittedAt]:
    """Stored offsets of all topics, or of one."""
    return [
        CommittedAt(
            topic=topic,
            partition=partition,
            offset=kept.offset,
            metadata=kept.metadata,
            committed_ms=kept.committed_ms,
        )
        for (topic, partition), kept in sorted(group.offsets.items())
        if only in (None, topic)
    ]
