"""Requests to a classic group coordinator and its answers; see `coordinator`."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nexo.batch.kafka_assignment import subscribed


class GroupError(enum.Enum):
    """Why a request is rejected, in Kafka's terms."""

    UNKNOWN_MEMBER_ID = enum.auto()
    ILLEGAL_GENERATION = enum.auto()
    REBALANCE_IN_PROGRESS = enum.auto()
    INCONSISTENT_GROUP_PROTOCOL = enum.auto()
    MEMBER_ID_REQUIRED = enum.auto()
    FENCED_INSTANCE_ID = enum.auto()
    GROUP_MAX_SIZE_REACHED = enum.auto()
    INVALID_SESSION_TIMEOUT = enum.auto()
    FENCED_MEMBER_EPOCH = enum.auto()
    STALE_MEMBER_EPOCH = enum.auto()
    UNRELEASED_INSTANCE_ID = enum.auto()


class RebalanceState(enum.Enum):
    """The state of a group's rebalance."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    """Waits for all members to join."""
    COMPLETING = "CompletingRebalance"
    """Waits for the leader's assignment."""
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class Join:
    """A request to become, or stay, a member."""

    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignors by name with the member's subscription, the preferred one first."""
    member_id: str = ""
    """Empty for a new member."""
    instance_id: str | None = None
    """Identifies a static member, which keeps its place across restarts."""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    client_id: str = ""
    client_host: str = ""
    asks_for_id: bool = True
    """A new member first gets an id and joins again with it (version 4 on)."""
    skips_assignment: bool = True
    """The client understands a leader that has nothing to assign (version 9 on)."""
    user: str = ""
    """Whose member it is; empty while authentication is off."""

    @property
    def topics(self) -> set[str]:
        """What it subscribes to, by all its assignors; nothing if it is no consumer."""
        if self.protocol_type != "consumer":
            return set()
        return {topic for _, metadata in self.protocols for topic in subscribed(metadata)}


@dataclass(frozen=True, slots=True)
class Caller:
    """The member that a request names as its sender."""

    member: str
    generation: int
    """-1 for a client that is no member."""
    instance: str | None = None
    """Of a static member."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A generation, and what a member needs to know about it."""

    generation: int
    protocol: str
    leader: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: id, instance id and subscription of every member."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """A member's assignment."""

    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """An error, and the id to join with for `GroupError.MEMBER_ID_REQUIRED`."""

    error: GroupError
    member_id: str = ""


MemberReply: TypeAlias = Joined | Synced | JoinRefused


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a request that was given as ``ticket``."""

    ticket: Hashable
    reply: MemberReply


@dataclass(slots=True, eq=False)
class GroupMember:
    """One member; ``joining`` and ``syncing`` are the tickets of requests that wait."""

    id: str
    join: Join
    due_ms: int
    """When it is removed unless it sends a heartbeat."""
    assignment: bytes = b""
    joining: Hashable | None = None
    syncing: Hashable | None = None
    synced: bool = False
    """Asked for its assignment in this generation."""
    took_part: bool = False
    """Took part in a generation."""

    @property
    def metadata(self) -> Mapping[str, bytes]:
        """Its subscription, by assignor."""
        return dict(self.join.protocols)

    @property
    def lives(self) -> bool:
        """Whether one of its requests waits here, so that it need not send heartbeats."""
        return self.syncing is not None or (self.joining is not None and self.took_part)


@dataclass(frozen=True, slots=True)
class KeptMember:
    """A member as it outlives a planned restart."""

    id: str
    join: Join
    assignment: bytes


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """The last generation of a group, as it outlives a planned restart."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    is_stable: bool
    """Whether the members have their assignments; otherwise they join again."""
    members: tuple[KeptMember, ...]


def choose_protocol(members: Sequence[GroupMember]) -> str | None:
    """The assignor that all know and most prefer; on a tie the one the first member prefers."""
    known = [{name for name, _ in member.join.protocols} for member in members]
    shared = set.intersection(*known) if known else set()
    if not shared:
        return None
    votes = dict.fromkeys((name for name, _ in members[0].join.protocols if name in shared), 0)
    for member in members:
        votes[next(name for name, _ in member.join.protocols if name in shared)] += 1
    return max(votes, key=lambda name: votes[name])
