"""The coordinator of one classic Kafka group: it passes blobs between members (SPEC L2).

Members join; once all have, or the rebalance timeout has passed, a new *generation* begins.
Its leader receives all subscriptions, assigns the partitions, and sends each member's
assignment with its sync; the others wait for theirs. Members then send heartbeats until one
joins, leaves or times out, and all join again. Subscriptions and assignments are bytes that
only clients understand, so eager and cooperative assignors work alike.

Pure: time is an argument, a waiting request is a ticket, and every call returns the answers
to send. The owner calls `expire` at `next_deadline`. A planned restart keeps the members
(`kept`); after a crash they are unknown and join again. Committed offsets are those of the
`OrderedGroup` of the same name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.stream.groups.kafka.model import (
    Answer,
    Caller,
    GroupError,
    GroupMember,
    Join,
    Joined,
    JoinRefused,
    KeptGroup,
    KeptMember,
    RebalanceState,
    Synced,
    choose_protocol,
)
from nexo.brokers.stream.groups.kafka.roster import Roster
from nexo.brokers.stream.groups.limits import MAX_CONSUMERS

Answers = list[Answer]


class Coordinator:
    """The members of one group and the state of its rebalance."""

    def __init__(self, max_members: int = MAX_CONSUMERS, delay_ms: int = 0) -> None:
        """An empty group waits ``delay_ms`` after each member that joins for further ones."""
        self.state = RebalanceState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self._roster = Roster(max_members)
        self._members = self._roster.members
        self._pending = self._roster.pending
        self._deadlines: KeyDeadlines[str] = KeyDeadlines()
        self._phase_due_ms: int | None = None
        """When the join or sync phase ends, even if members are missing."""
        self._delay_ms = delay_ms
        self._latest_ms: int | None = None
        """Until when an empty group waits for its first members at most."""

    @property
    def members(self) -> Mapping[str, GroupMember]:
        """By id, in the order they joined."""
        return self._members

    @property
    def is_unused(self) -> bool:
        """Whether there are no members and none is joining."""
        return not self._members and not self._pending

    # -- planned restarts --------------------------------------------------------

    def kept(self) -> KeptGroup | None:
        """What is kept for the next start; None if there has been no generation."""
        members = tuple(
            KeptMember(member.id, member.join, member.assignment)
            for member in self._members.values()
            if member.took_part
        )
        if not members:
            return None
        return KeptGroup(
            self.generation, self.protocol_type, self.protocol, self.leader,
            self.state is RebalanceState.STABLE, members,
        )  # fmt: skip

    def restore(self, kept: KeptGroup, now_ms: int) -> None:
        """Go on with the members of before, as if all had just sent a heartbeat."""
        self.generation, self.leader = kept.generation, kept.leader
        self.protocol_type, self.protocol = kept.protocol_type, kept.protocol
        for each in kept.members:
            member = GroupMember(
                each.id, each.join, 0, each.assignment, synced=kept.is_stable, took_part=True
            )
            self._roster.restore(member)
            self._refresh(member, now_ms)
        self.state = RebalanceState.STABLE if kept.is_stable else RebalanceState.PREPARING
        self._phase_due_ms = None if kept.is_stable else now_ms + self._longest_rebalance_ms()

    # -- joining ---------------------------------------------------------------

    def join(self, ticket: Hashable, ask: Join, new_id: str, now_ms: int) -> Answers:
        """Become a member, or join the next generation; ``new_id`` is for a new member."""
        error = self._roster.check_join(ask)
        if error is not None:
            return [Answer(ticket, JoinRefused(error, ask.member_id))]
        if ask.member_id:
            return self._join_known(ticket, ask, now_ms)
        if ask.instance_id in self._roster.static:
            return self._replace(ticket, ask, new_id, now_ms)
        if ask.asks_for_id and ask.instance_id is None:
            self._pending[new_id] = now_ms + ask.session_timeout_ms
            self._deadlines.plan(new_id, self._pending[new_id])
            return [Answer(ticket, JoinRefused(GroupError.MEMBER_ID_REQUIRED, new_id))]
        return self._add(ticket, ask, new_id, now_ms)

    def _add(self, ticket: Hashable, ask: Join, member_id: str, now_ms: int) -> Answers:
        member = self._roster.add(ticket, ask, member_id, now_ms)
        self._deadlines.plan(member_id, member.due_ms)
        self.protocol_type = ask.protocol_type
        return self._rebalance(now_ms)

    def _join_known(self, ticket: Hashable, ask: Join, now_ms: int) -> Answers:
        if ask.member_id in self._pending:
            return self._add(ticket, ask, ask.member_id, now_ms)
        member = self._members[ask.member_id]
        same = member.join.protocols == ask.protocols
        stays = same and (
            self.state is RebalanceState.COMPLETING
            or (self.state is RebalanceState.STABLE and member.id != self.leader)
        )
        if stays:  # its reply was lost, or it missed a rebalance that is over
            self._refresh(member, now_ms)
            return [Answer(ticket, self._joined(member))]
        answers = _superseded(member)
        member.join, member.joining = ask, ticket
        self.protocol_type = ask.protocol_type
        return answers + self._rebalance(now_ms)

    def _replace(self, ticket: Hashable, ask: Join, new_id: str, now_ms: int) -> Answers:
        """A static member returned under a new id: it takes the old one's place."""
        old, member = self._roster.replace(ask, new_id, now_ms)
        answers = _refused(old, GroupError.FENCED_INSTANCE_ID)
        led = self.leader == old.id
        self._refresh(member, now_ms)
        if led:
            self.leader = new_id
        same = old.metadata.get(self.protocol) == member.metadata.get(self.protocol)
        if self.state is RebalanceState.STABLE and same and self._chosen() == self.protocol:
            return [*answers, Answer(ticket, self._rejoined(member, old.id if led else None))]
        member.joining = ticket
        return answers + self._rebalance(now_ms)

    def _rejoined(self, member: GroupMember, was_leader: str | None) -> Joined:
        """The same generation again: there is nothing to assign, though it may lead."""
        if was_leader is None:
            return self._joined(member)
        if member.join.skips_assignment:
            return replace(self._joined(member), skip_assignment=True)
        # An older client that found itself leader would assign again: let it follow.
        return Joined(self.generation, self.protocol, was_leader, member.id)

    # -- the join phase ----------------------------------------------------------

    def _rebalance(self, now_ms: int) -> Answers:
        """Start the join phase, or check whether it is over."""
        answers: Answers = []
        if self.state is not RebalanceState.PREPARING:
            for member in self._members.values():
                if member.syncing is not None:
                    refused = JoinRefused(GroupError.REBALANCE_IN_PROGRESS)
                    answers.append(Answer(member.syncing, refused))
                    member.syncing = None
                    self._refresh(member, now_ms)
            latest_ms = now_ms + self._longest_rebalance_ms()
            if self.state is RebalanceState.EMPTY and self._delay_ms:
                self._latest_ms = latest_ms
            self.state = RebalanceState.PREPARING
            self._phase_due_ms = latest_ms
        if self._latest_ms is not None:
            self._phase_due_ms = min(now_ms + self._delay_ms, self._latest_ms)
        return answers + self._join_if_all(now_ms)

    def _join_if_all(self, now_ms: int) -> Answers:
        missing = any(member.joining is None for member in self._members.values())
        waits = self._pending or self._latest_ms is not None
        if missing or (waits and self._members):
            return []
        return self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> Answers:
        """Start a new generation, without dynamic members that did not join in time."""
        self._latest_ms = None
        for member in list(self._members.values()):
            if member.joining is None and member.join.instance_id is None:
                self._drop(member)
        if self._members and all(member.joining is None for member in self._members.values()):
            self._phase_due_ms = now_ms + self._longest_rebalance_ms()
            return []  # only static members are left, and none has returned yet
        self.generation += 1
        if not self._members:
            self._empty()
            return []
        self._elect()
        self.state = RebalanceState.COMPLETING
        self._phase_due_ms = now_ms + self._longest_rebalance_ms()
        return self._announce(now_ms)

    def _empty(self) -> None:
        self.state = RebalanceState.EMPTY
        self.leader = self.protocol = ""
        self._phase_due_ms = None

    def _elect(self) -> None:
        joined = [member for member in self._members.values() if member.joining is not None]
        if self.leader not in self._members or self._members[self.leader].joining is None:
            self.leader = joined[0].id
        self.protocol = self._chosen()

    def _announce(self, now_ms: int) -> Answers:
        answers: Answers = []
        for member in self._members.values():
            member.synced, member.took_part = False, True
            member.assignment = b""
            if member.joining is not None:
                answers.append(Answer(member.joining, self._joined(member)))
                member.joining = None
            self._refresh(member, now_ms)
        return answers

    def _joined(self, member: GroupMember) -> Joined:
        rows = tuple(
            (each.id, each.join.instance_id, each.metadata[self.protocol])
            for each in self._members.values()
            if member.id == self.leader
        )
        return Joined(self.generation, self.protocol, self.leader, member.id, rows)

    def _chosen(self) -> str:
        """The assignor of the next generation; the leader breaks a tie."""
        leader_first = sorted(self._members.values(), key=lambda member: member.id != self.leader)
        return choose_protocol(leader_first) or ""

    def _longest_rebalance_ms(self) -> int:
        return max((m.join.rebalance_timeout_ms for m in self._members.values()), default=0)

    # -- syncing, living, leaving --------------------------------------------------

    def sync(
        self,
        ticket: Hashable,
        caller: Caller,
        assignments: Mapping[str, bytes],
        now_ms: int,
        protocol: str | None = None,
    ) -> Answers:
        """Ask for the member's assignment; the leader sends everybody's."""
        error = self._check(caller)
        if error is None and protocol is not None and protocol != self.protocol:
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        if error is None and self.state is RebalanceState.PREPARING:
            error = GroupError.REBALANCE_IN_PROGRESS
        if error is not None:
            return [Answer(ticket, JoinRefused(error))]
        member = self._members[caller.member]
        answers = _superseded(member)
        member.synced = True
        self._refresh(member, now_ms)
        if self.state is RebalanceState.COMPLETING:
            member.syncing = ticket
            return answers + (self._assign(assignments, now_ms) if member.id == self.leader else [])
        return [*answers, Answer(ticket, Synced(self.protocol, member.assignment))]

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> Answers:
        self.state = RebalanceState.STABLE
        answers: Answers = []
        for member in self._members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                answers.append(Answer(member.syncing, Synced(self.protocol, member.assignment)))
                member.syncing = None
                self._refresh(member, now_ms)
        if all(member.synced for member in self._members.values()):
            self._phase_due_ms = None
        return answers

    def heartbeat(self, caller: Caller, now_ms: int) -> GroupError | None:
        """Keep a member alive; an error says what it must do."""
        return self._check(caller) or self._lives(caller, now_ms, RebalanceState.PREPARING)

    def check_commit(self, caller: Caller, now_ms: int) -> GroupError | None:
        """Whether offsets may be committed; without a generation, only in an empty group."""
        if caller.generation < 0 and not self._members:
            return None  # a client that chose its partitions may name itself nevertheless
        return self._check(caller) or self._lives(caller, now_ms, RebalanceState.COMPLETING)

    def _lives(self, caller: Caller, now_ms: int, wait: RebalanceState) -> GroupError | None:
        """Keep a member alive; an error if it has to ``wait`` for the rebalance."""
        self._refresh(self._members[caller.member], now_ms)
        return GroupError.REBALANCE_IN_PROGRESS if self.state is wait else None

    def _check(self, caller: Caller) -> GroupError | None:
        error = self._roster.check(caller.member, caller.instance)
        if error is None and caller.generation != self.generation:
            error = GroupError.ILLEGAL_GENERATION
        return error

    def leave(
        self, leaving: Iterable[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[GroupError | None], Answers]:
        """Remove members, by id or, for static ones, by instance id alone."""
        results: list[GroupError | None] = []
        gone: list[GroupMember] = []
        for member_id, instance_id in leaving:
            if self._pending.pop(member_id, None) is not None:
                results.append(None)
                continue
            named = member_id or self._roster.static.get(instance_id or "", "")
            error = self._roster.check(named, instance_id)
            results.append(error)
            if error is None:
                gone.append(self._members[named])
                self._drop(gone[-1])
        return results, self._without(gone, now_ms)

    # -- time ------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `expire` may have something to do."""
        due = (self._deadlines.next_ms(), self._phase_due_ms)
        return min((ms for ms in due if ms is not None), default=None)

    def expire(self, now_ms: int) -> Answers:
        """Remove timed-out members, and end a join or sync phase that took too long."""
        gone = [m for key in self._deadlines.due(now_ms) if (m := self._silent(key, now_ms))]
        for member in gone:
            self._drop(member)
        answers = self._without(gone, now_ms)
        if self._phase_due_ms is None or now_ms < self._phase_due_ms:
            return answers
        if self.state is RebalanceState.PREPARING:
            return answers + self._complete_join(now_ms)
        return answers + self._end_sync(now_ms)

    def _end_sync(self, now_ms: int) -> Answers:
        """Remove members that got this generation and never asked for an assignment."""
        self._phase_due_ms = None
        late = [member for member in self._members.values() if not member.synced]
        for member in late:
            self._drop(member)
        return self._without(late, now_ms)

    def _silent(self, member_id: str, now_ms: int) -> GroupMember | None:
        """The member if it has timed out; otherwise plans its deadline again."""
        if member_id in self._pending:
            if self._pending[member_id] <= now_ms:
                del self._pending[member_id]
                return None
            self._deadlines.plan(member_id, self._pending[member_id])
        member = self._members.get(member_id)
        if member is None:
            return None
        if member.due_ms > now_ms or member.lives:
            later_ms = now_ms + member.join.session_timeout_ms
            self._deadlines.plan(member_id, max(member.due_ms, later_ms if member.lives else 0))
            return None
        return member

    def _refresh(self, member: GroupMember, now_ms: int) -> None:
        member.due_ms = now_ms + member.join.session_timeout_ms
        self._deadlines.plan(member.id, member.due_ms)

    # -- removing --------------------------------------------------------------------

    def _drop(self, member: GroupMember) -> None:
        self._roster.drop(member)
        if self.leader == member.id:
            self.leader = ""

    def _without(self, gone: list[GroupMember], now_ms: int) -> Answers:
        """Answer the waiting requests of removed members, and rebalance the rest."""
        unknown = GroupError.UNKNOWN_MEMBER_ID
        answers = [answer for member in gone for answer in _refused(member, unknown)]
        if gone and self.state is not RebalanceState.EMPTY:
            answers += self._rebalance(now_ms)
        elif self.state is RebalanceState.PREPARING:
            answers += self._join_if_all(now_ms)
        return answers


def _refused(member: GroupMember, error: GroupError) -> Answers:
    """Reject the waiting requests of a member."""
    waiting = (member.joining, member.syncing)
    return [Answer(ticket, JoinRefused(error)) for ticket in waiting if ticket is not None]


def _superseded(member: GroupMember) -> Answers:
    """Reject waiting requests that a later one of the member replaces."""
    answers = _refused(member, GroupError.REBALANCE_IN_PROGRESS)
    member.joining = member.syncing = None
    return answers
