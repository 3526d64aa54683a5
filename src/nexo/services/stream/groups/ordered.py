"""Ordered groups as use cases: membership, heartbeats, offsets (SPEC G5, G6).

A member belongs to the connection it joined on: only that connection sends its heartbeats,
commits its offsets and makes it leave. A transaction may be on another connection of the same
user, as that of an exactly-once context is. A request that also affects other members, such as
a join or a seek, needs permission on every stream that the group reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from nexo.access.permit import ADMIN, READ
from nexo.brokers.stream.groups.assignment import TopicPartition
from nexo.brokers.stream.groups.deadlines import KeyDeadlines
from nexo.brokers.stream.groups.ordered import (
    STANDALONE,
    Assignment,
    OrderedGroup,
    check_topics,
)
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, OrderedOptions, StoredOffset
from nexo.brokers.stream.survey import ordered_lag, streams_of
from nexo.errors import Conflict, InvalidOption, NotFound, OffsetOutOfRange
from nexo.model import Persistence
from nexo.services.connection import Connection, Done
from nexo.services.stream.bounds import MAX_WAIT_MS
from nexo.services.stream.core import Core, safest
from nexo.services.stream.groups.bindings import Bindings, not_member
from nexo.services.stream.permits import (
    permit_everything,
    permit_group,
    permit_offsets,
    permit_ordered,
)
from nexo.services.waiting import Wait

MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 1_000, 86_400_000
"""Bounds of a group's two timeouts. A join changes them for every member, so one that no
member could meet would remove all of them.
"""

ORDERED = "ordered"
"""The channels of ordered groups are ``(ORDERED, name)``; streams have numbers there."""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """A member and its assignment."""

    member: str
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class OrderedView:
    """The public state of a group: all of it, or what concerns one stream."""

    name: str
    group: OrderedGroup
    owners: list[tuple[TopicPartition, str]]
    offsets: list[tuple[TopicPartition, StoredOffset]]
    lags: dict[str, int]


class Ordered:
    """The requests of a member of an ordered group."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._joined = 0
        self._bindings = Bindings()
        self._deadlines: KeyDeadlines[str] = KeyDeadlines()
        self.is_taken: Callable[[str], bool] = lambda _group: False
        """Whether a group has members of another protocol."""
        self.on_gone: Callable[[str, str], None] = lambda _group, _member: None
        """Called with the group and name of a member that is no longer one."""

    # -- membership ------------------------------------------------------------------

    def join(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        done: Done[MemberAssignment],
        *,
        member: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        """Become a member of a group over topics; a name is generated unless one is given."""
        core = self._core
        check_topics(topics)
        permit_ordered(connection, group, core.engine.ordered.get(group), topics)
        partitions = {name: core.engine.streams.get(name).options.partitions for name in topics}
        if self.is_taken(group):
            raise Conflict(f"group {group!r} has Kafka clients as members: use another name")
        member = member or self._name(connection)
        self._check_free(connection, group, member)
        found = self._found_or_new(group)
        found.check_join(member)
        found = self._ensure(group, options or {})
        assignment = found.join(member, partitions, core.now_ms)
        self._unbind(group, member)
        self._bindings.bind(connection, group, member)
        self.changed(group, found)
        self._done_when_written(done, member, assignment)

    def _check_free(self, connection: Connection, group: str, member: str) -> None:
        """A name in use may be taken over by the same user, as after a reconnect."""
        if self._bindings.takes_over(connection, group, member):
            self._core.waits.fail(_member_channel(group, member), not_member(member))

    def _unbind(self, group: str, member: str) -> None:
        if self._bindings.unbind(group, member):
            self.on_gone(group, member)

    def roam(self, connection: Connection, group: str, member: str) -> None:
        """Let a member change its connection: it stays until it leaves or times out."""
        self._unbind(group, member)
        self._bindings.roam(connection, group, member)

    def check_member(self, connection: Connection, group: str, member: str) -> None:
        """Raise `NotMember` unless the member joined on this connection."""
        self._bindings.check(connection, group, member)

    def _ensure(self, name: str, given: dict[str, Any]) -> OrderedGroup:
        _check_timeouts(given)
        known = self._core.engine.ordered.get(name)
        if known is None:
            return self._core.engine.make_ordered(name, ordered_options(given))
        wanted = ordered_options(msgspec.to_builtins(known.options) | given)
        if wanted != known.options:
            known.tune(wanted, self._core.now_ms)
        return known

    def ensure(self, name: str, options: dict[str, Any] | None = None) -> OrderedGroup:
        """Create a group unless it exists, with these options or the default ones."""
        found = self._ensure(name, options or {})
        self._core.end_turn_soon()
        return found

    def let_go(self, name: str, member: str) -> None:
        """Make a member leave that was checked by the caller."""
        found = self._core.engine.ordered.get(name)
        if found is not None:
            self._leave(name, member, found)

    def has_members(self, name: str) -> bool:
        """Whether a group has live members."""
        found = self._core.engine.ordered.get(name)
        return found is not None and bool(found.members)

    def _found_or_new(self, name: str) -> OrderedGroup:
        """The group to check a request against; a rejected request must not create one."""
        return self._core.engine.ordered.get(name) or OrderedGroup()

    def _name(self, connection: Connection) -> str:
        self._joined += 1
        return f"m{self._core.started_ms:x}-{connection.id:x}-{self._joined:x}"

    def heartbeat(
        self,
        connection: Connection,
        ticket: Hashable,
        group: str,
        member: str,
        generation: int,
        done: Done[MemberAssignment],
        *,
        wait_ms: int = 0,
        known: int = 0,
    ) -> None:
        """Keep a member alive; confirms ``generation``.

        Answers on a change (another generation, or a number of owned partitions other than
        ``known``), or after ``wait_ms``.
        """
        found = self._group_of(connection, group, member)
        self.check_member(connection, group, member)
        found.heartbeat(member, generation, self._core.now_ms)
        self.changed(group, found)

        def is_news(now: Assignment) -> bool:
            return now.generation != generation or len(now.owned) != known

        def attempt() -> Assignment | None:
            now = found.assignment(member)
            return now if is_news(now) else None

        def answer(now: Assignment | Any) -> None:
            if not isinstance(now, Assignment):
                done(now)
            elif is_news(now):
                self._done_when_written(done, member, now)
            else:
                done(MemberAssignment(member, now))  # it knows that already (SPEC I7)

        def nothing() -> Assignment:
            return found.assignment(member)

        due_ms = self._core.now_ms + min(wait_ms, MAX_WAIT_MS)
        channels = ((ORDERED, group), _member_channel(group, member))
        self._core.answer_or_wait(
            Wait(connection, ticket, channels, due_ms, attempt, answer, nothing, each=True)
        )

    def _done_when_written(
        self, done: Done[MemberAssignment], member: str, assignment: Assignment
    ) -> None:
        self._core.done_when_safe(
            Persistence.FILE_ASYNC, done, MemberAssignment(member, assignment)
        )

    def leave(self, connection: Connection, group: str, member: str, done: Done[None]) -> None:
        """Free what a member owns; leaving twice is fine."""
        found = self._group_of(connection, group, member)
        if found.has(member):
            self.check_member(connection, group, member)
            self._leave(group, member, found)
        self._core.done_when_safe(Persistence.FILE_ASYNC, done, None)

    def _leave(self, name: str, member: str, group: OrderedGroup) -> None:
        self._unbind(name, member)
        if group.leave(member, self._core.now_ms):
            self.changed(name, group)
        self._core.waits.fail(_member_channel(name, member), not_member(member))

    def connection_closed(self, connection: Connection) -> None:
        """The members of a closed connection leave at once."""
        for name, member in self._bindings.of(connection):
            group = self._core.engine.ordered.get(name)
            if group is None:
                self._unbind(name, member)
            else:
                self._leave(name, member, group)

    def _group_of(self, connection: Connection, name: str, member: str) -> OrderedGroup:
        """The group of a member, which was permitted when it joined; others are checked here."""
        if not self._bindings.joined_on(connection, name, member):
            permit_ordered(connection, name, self._core.engine.ordered.get(name))
        return self._core.engine.find_ordered(name)

    # -- offsets ---------------------------------------------------------------------

    def commit(
        self,
        connection: Connection,
        group: str,
        offsets: Sequence[OffsetCommit],
        done: Done[None],
        *,
        member: str = "",
        generation: int = STANDALONE,
        rewind: bool = False,
        checked: bool = False,
    ) -> None:
        """Store offsets, all or none; by a member, or `STANDALONE` without membership.

        ``checked`` says that the caller knows the member that commits without naming itself.
        """
        core, new = self._core, self._found_or_new(group)
        self._permit_commit(connection, group, offsets, member)
        if generation != STANDALONE and self._has(group, member):
            self.check_member(connection, group, member)
        new.check(member, generation, offsets, rewind=rewind, checked=checked)
        self._check_there(offsets)
        found = self._ensure(group, {})
        found.commit(member, generation, offsets, core.now_ms, rewind=rewind, checked=checked)
        self.changed(group, found)
        core.done_when_safe(self._mode(offsets), done, None)

    def _permit_commit(
        self, connection: Connection, group: str, offsets: Iterable[OffsetCommit], member: str
    ) -> None:
        """Raise `Forbidden` unless the client may store these; its members were permitted."""
        known = self._core.engine.ordered.get(group)
        own = self._bindings.is_own(connection, group, member)
        topics = [commit.topic for commit in offsets]
        permit_offsets(connection, group, None if own else known, topics)

    def _has(self, group: str, member: str) -> bool:
        known = self._core.engine.ordered.get(group)
        return known is not None and known.has(member)

    def commits(
        self,
        connection: Connection,
        group: str,
        rows: Iterable[tuple[str, int, int, str]],
        member: str,
        generation: int,
    ) -> list[OffsetCommit]:
        """``topic, partition, offset, metadata`` as offsets to commit with a transaction."""
        found = [OffsetCommit(*row) for row in rows]
        self._permit_commit(connection, group, found, member)
        others = generation != STANDALONE and not self._bindings.is_own(connection, group, member)
        if others and self._has(group, member):
            raise not_member(member)
        self._check_there(found)
        return found

    def _check_there(self, commits: Iterable[OffsetCommit]) -> None:
        for commit in commits:
            stream = self._core.engine.streams.get(commit.topic)
            end = stream.partition(commit.partition).next_offset
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
    ) -> list[tuple[TopicPartition, StoredOffset]]:
        """Stored offsets, of all topics or one; an unknown group has none."""
        found = self._core.engine.ordered.get(group)
        if topic is not None:
            permit_group(connection, topic, group)
        else:
            permit_ordered(connection, group, found)
        return _stored(found, topic) if found is not None else []

    def committed_in(
        self, connection: Connection, group: str, topics: Iterable[str]
    ) -> Mapping[TopicPartition, StoredOffset]:
        """All stored offsets of a group, for a client that asks for those of some topics."""
        for topic in topics:
            permit_group(connection, topic, group)
        found = self._core.engine.ordered.get(group)
        return found.offsets if found is not None else {}

    def seek(
        self,
        connection: Connection,
        group: str,
        offsets: Sequence[OffsetCommit],
        done: Done[int],
    ) -> None:
        """Overwrite stored offsets; owners give up their partitions and start again from them."""
        known = self._core.engine.ordered.get(group)
        permit_offsets(connection, group, known, [commit.topic for commit in offsets])
        self._check_there(offsets)
        self._found_or_new(group).check_reset(offsets)
        found = self._ensure(group, {})
        found.reset(offsets, self._core.now_ms)
        self.changed(group, found)
        self._core.done_when_safe(self._mode(offsets), done, found.generation)

    def forget_offsets(
        self,
        connection: Connection,
        group: str,
        partitions: Sequence[TopicPartition],
        done: Done[None],
    ) -> None:
        """Delete stored offsets of topics that no member reads."""
        found = self._core.engine.find_ordered(group)
        permit_offsets(connection, group, found, [topic for topic, _ in partitions])
        for topic, _ in partitions:
            if found.subscribes(topic):
                raise Conflict(f"a member of group {group!r} reads {topic!r}: let it leave first")
        found.forget_offsets(list(partitions))
        self.changed(group, found)
        self._core.done_when_safe(Persistence.FILE_ASYNC, done, None)

    # -- administration --------------------------------------------------------------

    def groups(
        self, connection: Connection, group: str | None = None, stream: str | None = None
    ) -> list[OrderedView]:
        """All groups, one, or those that read a stream (then only what concerns that stream)."""
        if stream is None:
            permit_everything(connection, READ)
        else:
            permit_group(connection, stream, group)
        engine = self._core.engine
        if group is not None:
            found = {group: engine.find_ordered(group)}
        elif stream is not None:
            found = {name: each for name, each in engine.ordered.items() if stream in each.topics}
        else:
            found = engine.ordered
        return [self._view(name, each, stream) for name, each in found.items()]

    def _view(self, name: str, group: OrderedGroup, only: str | None) -> OrderedView:
        read = streams_of(self._core.engine, group)
        return OrderedView(
            name,
            group,
            [(at, who) for at, who in sorted(group.owners.items()) if only in (None, at[0])],
            _stored(group, only),
            {each.name: ordered_lag(group, each) for each in read if only in (None, each.name)},
        )

    def delete(self, connection: Connection, group: str, done: Done[None]) -> None:
        """Delete a group; answers its waiting heartbeats."""
        permit_everything(connection, ADMIN)
        core = self._core
        for member in core.engine.find_ordered(group).members:
            self._unbind(group, member)
        core.engine.drop_ordered(group)
        core.waits.fail((ORDERED, group), NotFound(f"group {group!r} was deleted"))
        core.done_when_safe(Persistence.FILE_ASYNC, done, None)

    def stream_deleted(self) -> None:
        """Notify the members of every group that read a
        deleted stream: partitions may have moved.
        """
        for name, group in self._core.engine.ordered.items():
            self._plan(name, group)
        self._core.waits.wake_under(ORDERED)

    # -- time ------------------------------------------------------------------------

    def changed(self, name: str, group: OrderedGroup) -> None:
        """Journal what changed, plan the next deadline, and wake who waits for a change."""
        core = self._core
        core.engine.reordered(name, group)
        core.end_turn_soon()
        self._plan(name, group)
        core.waits.wake((ORDERED, name))

    def _plan(self, name: str, group: OrderedGroup) -> None:
        deadline_ms = group.next_deadline()
        if deadline_ms is not None:
            self._deadlines.plan(name, deadline_ms)
            self._core.runtime.wake_at(deadline_ms)

    def tick(self, now_ms: int) -> None:
        """Remove members that timed out."""
        for name in self._deadlines.due(now_ms):
            group = self._core.engine.ordered.get(name)
            if group is None:
                continue
            for member in group.expire(now_ms):
                self._unbind(name, member)
            self.changed(name, group)
        if (due_ms := self._deadlines.next_ms()) is not None:
            self._core.runtime.wake_at(due_ms)


def _member_channel(group: str, member: str) -> str:
    return f"{group}\n{member}"


def _check_timeouts(given: dict[str, Any]) -> None:
    """Check only what is given: a group keeps its other options."""
    for name in ("session_timeout_ms", "rebalance_timeout_ms"):
        value = given.get(name, MIN_TIMEOUT_MS)
        if isinstance(value, int) and not MIN_TIMEOUT_MS <= value <= MAX_TIMEOUT_MS:
            raise InvalidOption(
                f"{name} = {value}: must be from {MIN_TIMEOUT_MS:,} to {MAX_TIMEOUT_MS:,}"
            )


def ordered_options(given: dict[str, Any]) -> OrderedOptions:
    """Checked options; `InvalidOption` names what is wrong."""
    try:
        return msgspec.convert(given, OrderedOptions)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"group options: {error}") from None


def _stored(group: OrderedGroup, only: str | None) -> list[tuple[TopicPartition, StoredOffset]]:
    rows = sorted(group.offsets.items())
    return [(at, kept) for at, kept in rows if only in (None, at[0])]
