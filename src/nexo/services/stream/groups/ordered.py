"""Ordered groups as use cases: membership and heartbeats (SPEC G5); `offsets` has their offsets.

A member belongs to the connection it joined on: only that connection sends its heartbeats,
commits its offsets and makes it leave. A request that also affects other members, such as a join,
needs permission on every stream that the group reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from nexo.access.permit import ADMIN
from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.groups.ordered_members import not_member
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Conflict, InvalidInput, NexoError, NotFound
from nexo.model import Persistence
from nexo.model.stream import Assigned
from nexo.options.described import merged
from nexo.options.stream import OrderedOptions
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.groups.bindings import Bindings
from nexo.services.stream.permits import permit_everything, permit_ordered
from nexo.services.ticking import for_each_due
from nexo.services.waiting import Wait

ORDERED = "ordered"
"""Channels of ordered groups are ``(ORDERED, name)``; those of streams begin with a number."""


class Ordered:
    """The requests of a member of an ordered group."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._joined = 0
        self.bindings = Bindings()
        self._deadlines: KeyDeadlines[str] = KeyDeadlines(core.runtime.wake_at)
        self.is_taken: Callable[[str], bool] = lambda _group: False
        """Whether a group has members of another protocol."""
        self.on_gone: Callable[[str, str], None] = lambda _group, _member: None
        """Called with the group and name of a member that is no longer one."""
        self.read_elsewhere: Callable[[Connection, str], set[str]] = lambda _client, _group: set()
        """The streams that members of another protocol read; `Forbidden` if a client may not use
        their group."""

    def permit(self, connection: Connection, group: str, topics: Iterable[str] = ()) -> None:
        """Raise `Forbidden` unless the client may read ``topics`` and all that the group reads."""
        if connection.identity is not None:
            elsewhere = self.read_elsewhere(connection, group)
            known = self._core.engine.ordered.get(group)
            permit_ordered(connection, group, known, {*topics, *elsewhere})

    def permit_name(self, connection: Connection, group: str) -> None:
        """Raise `Forbidden` if the client may not use groups of this name, whatever they read."""
        permit_ordered(connection, group)

    # -- membership ------------------------------------------------------------------

    def join(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        done: Done[Assigned],
        *,
        member: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        """Become a member of a group over topics; a name is generated unless one is given."""
        core = self._core
        if not topics:
            raise InvalidInput("a member needs at least one topic")
        self.permit(connection, group, topics)
        partitions = {name: core.engine.streams.get(name).options.partitions for name in topics}
        if self.is_taken(group):
            raise Conflict(f"group {group!r} has Kafka clients as members: use another name")
        member = member or self._name(connection)
        self._check_free(connection, group, member)
        found = self.found_or_new(group)
        found.check_join(member)
        found = self.ensure(group, options)
        assignment = found.join(member, partitions, core.now_ms)
        self._unbind(group, member)
        self.bindings.bind(connection, group, member)
        self.changed(group, found)
        core.done_when_safe(Persistence.FILE_ASYNC, done, assignment)

    def _check_free(self, connection: Connection, group: str, member: str) -> None:
        """A name in use may be taken over by the same user, as after a reconnect."""
        if self.bindings.takes_over(connection, group, member):
            self._core.waits.fail(_member_channel(group, member), not_member(member))

    def _unbind(self, group: str, member: str) -> None:
        if self.bindings.unbind(group, member):
            self.on_gone(group, member)

    def roam(self, connection: Connection, group: str, member: str) -> None:
        """Let a member change its connection: it stays until it leaves or times out."""
        self._unbind(group, member)
        self.bindings.roam(connection, group, member)

    def ensure(self, name: str, options: dict[str, Any] | None = None) -> OrderedGroup:
        """Create a group unless it exists, with these options or the default ones."""
        core, given = self._core, options or {}
        core.end_turn_soon()
        known = core.engine.ordered.get(name)
        if known is None:
            return core.engine.make_ordered(name, merged(given, OrderedOptions(), "group"))
        wanted = merged(given, known.options, "group")
        if wanted != known.options:
            known.tune(wanted, core.now_ms)
        return known

    def let_go(self, name: str, member: str) -> None:
        """Make a member leave that was checked by the caller."""
        found = self._core.engine.ordered.get(name)
        if found is None:
            self._unbind(name, member)
        else:
            self._leave(name, member, found)

    def has_members(self, name: str) -> bool:
        """Whether a group has live members."""
        found = self._core.engine.ordered.get(name)
        return found is not None and bool(found.members)

    def found_or_new(self, name: str) -> OrderedGroup:
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
        done: Done[Assigned],
        *,
        wait_ms: int = 0,
        known: int = 0,
    ) -> None:
        """Keep a member alive; confirms ``generation``.

        Answers on a change (another generation, or a number of owned partitions other than
        ``known``), or after ``wait_ms``.
        """
        found = self._group_of(connection, group, member)
        self.bindings.check(connection, group, member)
        found.heartbeat(member, generation, self._core.now_ms)
        self.changed(group, found)

        def is_news(now: Assigned) -> bool:
            return now.generation != generation or len(now.owned) != known

        def attempt() -> Assigned | None:
            now = found.assignment(member)
            return now if is_news(now) else None

        def answer(now: Assigned | NexoError) -> None:
            if isinstance(now, Assigned) and is_news(now):
                self._core.done_when_safe(Persistence.FILE_ASYNC, done, now)
            else:
                done(now)  # it knows that already (SPEC I7)

        def nothing() -> Assigned:
            return found.assignment(member)

        due_ms = self._core.due_ms(wait_ms)
        channels = ((ORDERED, group), _member_channel(group, member))
        self._core.answer_or_wait(
            Wait(connection, ticket, channels, due_ms, attempt, answer, nothing, each=True)
        )

    def leave(self, connection: Connection, group: str, member: str, done: Done[None]) -> None:
        """Free what a member owns; leaving twice is fine."""
        found = self._group_of(connection, group, member)
        if found.has(member):
            self.bindings.check(connection, group, member)
            self._leave(group, member, found)
        self._core.done_when_safe(Persistence.FILE_ASYNC, done, None)

    def _leave(self, name: str, member: str, group: OrderedGroup) -> None:
        self._unbind(name, member)
        if group.leave(member, self._core.now_ms):
            self.changed(name, group)
        self._core.waits.fail(_member_channel(name, member), not_member(member))

    def connection_closed(self, connection: Connection) -> None:
        """The members of a closed connection leave at once."""
        for name, member in self.bindings.of(connection):
            self.let_go(name, member)

    def _group_of(self, connection: Connection, name: str, member: str) -> OrderedGroup:
        """The group of a member, which was permitted when it joined; others are checked here."""
        if not self.bindings.joined_on(connection, name, member):
            self.permit(connection, name)
        return self._core.engine.find_ordered(name)

    # -- administration --------------------------------------------------------------

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
        """Answer waiting heartbeats: partitions of groups that read the stream may have moved."""
        for name, group in self._core.engine.ordered.items():
            self._plan(name, group)
        self._core.waits.wake_under(ORDERED)

    def stream_grown(self, stream: OpenStream) -> None:
        """A stream has more partitions: the members of groups that read it share them."""
        for name, group in self._core.engine.ordered.items():
            if group.subscribes(stream.name):
                self.changed(name, group)

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

    def tick(self, now_ms: int) -> None:
        """Remove members that timed out."""
        for_each_due(self._deadlines, now_ms, lambda name: self._expire(name, now_ms))

    def _expire(self, name: str, now_ms: int) -> None:
        group = self._core.engine.ordered.get(name)
        if group is not None:
            for member in group.expire(now_ms):
                self._unbind(name, member)
            self.changed(name, group)


def _member_channel(group: str, member: str) -> str:
    return f"{group}\n{member}"
