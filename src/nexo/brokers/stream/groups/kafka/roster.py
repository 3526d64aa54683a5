"""The members of a classic group, and who may join; see `coordinator`."""

from __future__ import annotations

from collections.abc import Hashable

from nexo.brokers.stream.groups.kafka.model import (
    GroupError,
    GroupMember,
    Join,
    choose_protocol,
)

MIN_SESSION_MS, MAX_SESSION_MS = 6_000, 1_800_000
NEW_MEMBER_MS = 300_000
"""How long a new member may wait for the first generation it takes part in."""


class Roster:
    """The members of a group, its static members by instance, and assigned ids."""

    def __init__(self, max_members: int) -> None:
        self.members: dict[str, GroupMember] = {}
        """In the order they joined."""
        self.static: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending: dict[str, int] = {}
        """Ids assigned to clients that have not joined with them yet, and when each lapses."""
        self._max_members = max_members

    # -- checking ----------------------------------------------------------------

    def check_join(self, ask: Join) -> GroupError | None:
        """Why a join is rejected, before anything changes."""
        if not MIN_SESSION_MS <= ask.session_timeout_ms <= MAX_SESSION_MS:
            return GroupError.INVALID_SESSION_TIMEOUT
        if self._is_full_for(ask):
            return GroupError.GROUP_MAX_SIZE_REACHED
        if not self._fits(ask):
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if not ask.member_id or (ask.member_id in self.pending and ask.instance_id is None):
            return None
        return self.check(ask.member_id, ask.instance_id)

    def _is_full_for(self, ask: Join) -> bool:
        known = {*self.members, *self.pending}
        new = ask.member_id not in known and ask.instance_id not in self.static
        return new and len(known) >= self._max_members

    def _fits(self, ask: Join) -> bool:
        """Whether all others have its type and know an assignor that it knows."""
        if not ask.protocols or not ask.protocol_type:
            return False
        own = {ask.member_id, self.static.get(ask.instance_id or "")}
        others = [member for member in self.members.values() if member.id not in own]
        newcomer = GroupMember("", ask, 0)
        return not others or (
            others[0].join.protocol_type == ask.protocol_type
            and choose_protocol([newcomer, *others]) is not None
        )

    def check(self, member_id: str, instance_id: str | None) -> GroupError | None:
        """Why a member's request is rejected."""
        if instance_id is not None and instance_id in self.static:
            known = self.static[instance_id]
            return None if known == member_id else GroupError.FENCED_INSTANCE_ID
        if instance_id is not None or member_id not in self.members:
            return GroupError.UNKNOWN_MEMBER_ID
        return None

    # -- joining and leaving -------------------------------------------------------

    def add(self, ticket: Hashable, ask: Join, member_id: str, now_ms: int) -> GroupMember:
        """A new member, whose join waits."""
        self.pending.pop(member_id, None)
        member = GroupMember(member_id, ask, now_ms + NEW_MEMBER_MS, joining=ticket)
        self.members[member_id] = member
        if ask.instance_id is not None:
            self.static[ask.instance_id] = member_id
        return member

    def restore(self, member: GroupMember) -> None:
        """Put back a member that was kept."""
        self.members[member.id] = member
        if member.join.instance_id is not None:
            self.static[member.join.instance_id] = member.id

    def replace(self, ask: Join, new_id: str, now_ms: int) -> tuple[GroupMember, GroupMember]:
        """Give a static member a new id; returns the old and the new member."""
        assert ask.instance_id is not None
        old = self.members.pop(self.static[ask.instance_id])
        new = GroupMember(new_id, ask, now_ms, old.assignment, synced=old.synced, took_part=True)
        self.members[new_id] = new
        self.static[ask.instance_id] = new_id
        return old, new

    def drop(self, member: GroupMember) -> None:
        del self.members[member.id]
        if member.join.instance_id is not None:
            self.static.pop(member.join.instance_id, None)
