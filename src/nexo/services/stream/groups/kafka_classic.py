"""Use cases of Kafka's classic groups: the coordinator with a clock and durable offsets.

`nexo.brokers.stream.groups.kafka.coordinator` knows the members, in memory only: a planned restart
keeps them, after a crash they join again. Offsets are those of the ordered group of the same name,
so that it may be used by Kafka clients now and by `nexo.topics` later, but not by both at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nexo.access.permit import READ
from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.stream.groups.kafka.coordinator import Coordinator
from nexo.brokers.stream.groups.kafka.model import (
    Answer,
    Caller,
    GroupError,
    GroupMember,
    Join,
    JoinRefused,
    KeptGroup,
    MemberReply,
    RebalanceState,
)
from nexo.brokers.stream.groups.limits import MAX_GROUPS, check_number
from nexo.errors import Forbidden, InvalidName
from nexo.model import check_name
from nexo.model.names import name_of
from nexo.services.connection import Connection, Done, user_of
from nexo.services.stream.core import Core
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.permits import permit_everything, permit_ordered
from nexo.services.ticking import for_each_due


@dataclass(frozen=True, slots=True)
class ClassicView:
    """The public state of a group."""

    name: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[GroupMember, ...] = ()
    is_classic: bool = True
    """Whether its members assign the partitions themselves."""


class Classic:
    """The requests of a member of a classic group."""

    def __init__(self, core: Core, ordered: Ordered) -> None:
        self._core = core
        self._ordered = ordered
        self._groups: dict[str, Coordinator] = {}
        """Groups that have members, or clients about to join."""
        self._types: dict[str, str] = {}
        """What groups without members were for, until a restart."""
        self._waiting: dict[int, Done[MemberReply]] = {}
        """The waiting requests, by ticket."""
        self._tickets = 0
        self._deadlines: KeyDeadlines[str] = KeyDeadlines(core.runtime.wake_at)
        core.who_is_member = self._kept

    # -- planned restarts --------------------------------------------------------------

    def open(self) -> None:
        """Go on with the groups of before a planned stop, so that no commit is refused."""
        for name, kept in self._core.kept_groups.items():
            self._new(name).restore(kept, self._core.now_ms)
            self._answer(name, [])

    def _kept(self) -> dict[str, KeptGroup]:
        return {name: kept for name, group in self._groups.items() if (kept := group.kept())}

    def _new(self, name: str) -> Coordinator:
        delay_ms = self._core.runtime.settings.kafka_rebalance_delay_ms
        made = self._groups[name] = Coordinator(delay_ms=delay_ms)
        return made

    # -- views -------------------------------------------------------------------------

    def has_members(self, group: str) -> bool:
        """Whether Kafka clients are members of this group."""
        return self.group(group) is not None

    def group(self, name: str) -> Coordinator | None:
        """A group that has Kafka clients as members."""
        found = self._groups.get(name)
        return found if found is not None and found.members else None

    def live(self) -> Iterator[tuple[str, Coordinator]]:
        """The groups that have Kafka clients as members."""
        return ((name, found) for name, found in self._groups.items() if found.members)

    # -- membership --------------------------------------------------------------------

    def join(
        self, connection: Connection, group: str, ask: Join, new_id: str, done: Done[MemberReply]
    ) -> None:
        """Become a member, or join the next generation; answers `Joined` or `JoinRefused`."""
        self._permit_join(connection, group, ask)
        if self._ordered.has_members(group):
            done(JoinRefused(GroupError.INCONSISTENT_GROUP_PROTOCOL))
            return
        found = self._groups.get(group)
        if found is None:
            check_name(group, "group")
            check_number("groups of Kafka clients", len(self._groups), MAX_GROUPS)
            found = self._new(group)
        answers = found.join(self._ticket(done), ask, new_id, self._core.now_ms)
        self._answer(group, answers)

    def sync(
        self,
        connection: Connection,
        group: str,
        caller: Caller,
        assignments: Mapping[str, bytes],
        done: Done[MemberReply],
        protocol: str | None = None,
    ) -> None:
        """Ask for an assignment; answers `Synced` or `JoinRefused`."""
        answers = self._visible(connection, group, [caller.member]).sync(
            self._ticket(done), caller, assignments, self._core.now_ms, protocol
        )
        self._answer(group, answers)

    def heartbeat(self, connection: Connection, group: str, caller: Caller) -> GroupError | None:
        """Keep a member alive."""
        found = self._visible(connection, group, [caller.member])
        error = found.heartbeat(caller, self._core.now_ms)
        self._answer(group, [])
        return error

    def leave(
        self, connection: Connection, group: str, leaving: Iterable[tuple[str, str | None]]
    ) -> list[GroupError | None]:
        """Remove members, by id or, for static ones, by instance id alone."""
        leaving = list(leaving)
        found = self._visible(connection, group, [member for member, _ in leaving])
        results, answers = found.leave(leaving, self._core.now_ms)
        self._answer(group, answers)
        return results

    # -- whose it is -------------------------------------------------------------------

    def read_by_members(self, connection: Connection, group: str) -> set[str]:
        """The streams that members read; `Forbidden` for those who may not use their group.

        A member that names no streams, as those of Kafka Connect, shares its group with clients
        of its user alone, and with those who may read everything.
        """
        found = self._groups.get(group)
        joins = [member.join for member in found.members.values()] if found is not None else []
        if any(not join.topics and join.user != user_of(connection) for join in joins):
            permit_everything(connection, READ)
        return {name for join in joins for name in _names(join.topics)}

    def _permit_join(self, connection: Connection, group: str, ask: Join) -> None:
        if self._is_own(connection, group, [ask.member_id]):
            permit_ordered(connection, group, None, _names(ask.topics))
        else:
            self._ordered.permit(connection, group, _names(ask.topics))

    def _is_own(self, connection: Connection, group: str, members: Iterable[str]) -> bool:
        """Whether these members joined as the client's user."""
        found, user = self._groups.get(group), user_of(connection)
        known = found.members if found is not None else {}
        return all(member in known and known[member].join.user == user for member in members)

    def _visible(
        self, connection: Connection, group: str, members: Iterable[str] | None = None
    ) -> Coordinator:
        """The coordinator of a group, for a member's user or for who may read all that it reads.

        To others it looks as if there was none: they do not learn that there is one.
        """
        own = members is not None and self._is_own(connection, group, members)
        if not own and not self.may_use(connection, group):
            permit_ordered(connection, group)
            return Coordinator()
        return self._groups.get(group) or Coordinator()

    def may_use(self, connection: Connection, group: str) -> bool:
        """Whether the client may read all that a group reads."""
        try:
            self._ordered.permit(connection, group)
        except Forbidden:
            return False
        return True

    def _ticket(self, done: Done[MemberReply]) -> int:
        self._tickets += 1
        self._waiting[self._tickets] = done
        return self._tickets

    def _answer(self, group: str, answers: Sequence[Answer]) -> None:
        """Answer requests, and schedule the group's next deadline."""
        found = self._groups.get(group)
        if found is not None:
            due_ms = found.next_deadline()
            if found.state is RebalanceState.EMPTY and found.is_unused:
                del self._groups[group]
                self._remember(group, found.protocol_type)
            elif due_ms is not None:
                self._deadlines.plan(group, due_ms)
        for answer in answers:
            assert isinstance(answer.ticket, int)
            self._waiting.pop(answer.ticket)(answer.reply)

    def _remember(self, group: str, protocol_type: str) -> None:
        self._types.pop(group, None)
        self._types[group] = protocol_type
        if len(self._types) > MAX_GROUPS:
            del self._types[next(iter(self._types))]

    def tick(self, now_ms: int) -> None:
        """Remove timed-out members, and end phases that took too long."""
        for_each_due(self._deadlines, now_ms, lambda name: self._expire(name, now_ms))

    def _expire(self, name: str, now_ms: int) -> None:
        found = self._groups.get(name)
        if found is not None:
            self._answer(name, found.expire(now_ms))

    # -- offsets -----------------------------------------------------------------------

    def check_commit(self, connection: Connection, group: str, caller: Caller) -> GroupError | None:
        """Why offsets are rejected; see `Coordinator.check_commit`."""
        found = self._visible(connection, group, [caller.member] if caller.member else None)
        return found.check_commit(caller, self._core.now_ms)

    # -- administration ----------------------------------------------------------------

    def views(self, connection: Connection) -> list[ClassicView]:
        """All groups with members or offsets that the client may read."""
        names = sorted({*self._groups, *self._core.engine.ordered})
        return [self._view(name) for name in names if self.may_use(connection, name)]

    def view(self, connection: Connection, group: str) -> ClassicView:
        """One group; an unknown one is ``Dead``, and so is one that the client may not use."""
        permit_ordered(connection, group)
        return self._view(group) if self.may_use(connection, group) else ClassicView(group, "Dead")

    def _view(self, name: str) -> ClassicView:
        found = self._groups.get(name)
        if found is None:
            known = self._core.engine.ordered.get(name)
            if known is None:
                return ClassicView(name, "Dead")
            if not known.members:
                assigned = known.generation > 0
                kind = "consumer" if assigned else self._types.get(name, "")
                return ClassicView(name, "Empty", kind, is_classic=not assigned)
            state = "Stable" if known.stable else "Reconciling"
            return ClassicView(name, state, "consumer", is_classic=False)
        return ClassicView(
            name, found.state.value, found.protocol_type, found.protocol,
            tuple(found.members.values()),
        )  # fmt: skip


def _names(topics: Iterable[str]) -> set[str]:
    """The streams that topics are; one that can be none is nobody's."""
    found: set[str] = set()
    for topic in topics:
        with suppress(InvalidName):
            found.add(name_of(topic))
    return found
