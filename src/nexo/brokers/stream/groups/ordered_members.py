"""Who owns which partition of an ordered group (SPEC G6).

A change of membership starts a new *generation* with a new target for every partition, but
a partition changes its owner in two steps, so that no two members ever own it:

1. its owner learns from a heartbeat that it is *revoked*, stops, commits what it processed
   (it still owns it), and sends a heartbeat with the new generation: now it is free;
2. a member that has confirmed the generation and is the partition's target becomes its owner.

An owner that does not confirm in time is removed from the group. The caller passes the time,
and calls `expire` at `next_deadline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from nexo.brokers.stream.groups.assignment import assign
from nexo.brokers.stream.groups.limits import MAX_NAME, check_length, check_number
from nexo.brokers.stream.groups.ordered_state import OrderedState, Regenerated
from nexo.errors import Fenced, NotMember
from nexo.model.stream import Assigned, StreamPartition
from nexo.options.stream import OrderedOptions

MAX_MEMBERS = 1_000
"""Live members of one group; every rebalance visits all of them."""


class _Member:
    __slots__ = ("confirmed", "seen_ms", "stale_since_ms", "topics")

    def __init__(self, topics: frozenset[str], now_ms: int) -> None:
        self.topics = topics
        self.seen_ms = now_ms
        self.confirmed = 0
        self.stale_since_ms = now_ms
        """Since when it owes a confirmation; moves on with every generation it confirms late."""


class OrderedMembership:
    """The members of one group over the topics they subscribe to, and what each owns."""

    __slots__ = (
        "_deadlines", "_members", "_owners", "_partitions", "_recalled", "_state", "_target",
    )  # fmt: skip

    def _take_over(self, state: OrderedState) -> None:
        self._state = state
        self._members: dict[str, _Member] = {}
        self._partitions: dict[str, int] = {}
        self._target: dict[StreamPartition, str] = {}
        self._owners: dict[StreamPartition, str] = {}
        self._recalled: set[StreamPartition] = set()
        self._deadlines: list[tuple[int, str]] = []
        """A heap of the earliest time at which each member may expire."""

    # -- what is shown ---------------------------------------------------------

    @property
    def generation(self) -> int:
        """Rises with every join, leave, expiry and reset."""
        return self._state.generation

    @property
    def options(self) -> OrderedOptions:
        """How partitions are assigned; see `tune`."""
        return self._state.options

    @property
    def members(self) -> list[str]:
        """The live members in the order they joined."""
        return list(self._members)

    def has(self, member: str) -> bool:
        return member in self._members

    @property
    def leader(self) -> str:
        """The member that joined first; empty without members."""
        return next(iter(self._members), "")

    @property
    def owners(self) -> Mapping[StreamPartition, str]:
        """The owner of each partition; one that is changing owners may have none."""
        return self._owners

    @property
    def topics(self) -> list[str]:
        """Topics that members read, or have read before."""
        read = {topic for member in self._members.values() for topic in member.topics}
        return sorted(read | {topic for topic, _ in self._state.offsets})

    @property
    def stable(self) -> bool:
        """Whether every partition is where it should be."""
        return not self._recalled and self._owners == self._target

    # -- membership ------------------------------------------------------------

    def join(self, member: str, topics: Mapping[str, int], now_ms: int) -> Assigned:
        """Subscribe a member to topics, given with their partition counts.

        A member that joins again starts over: it owns nothing of what it had.
        """
        self.check_join(member)
        self._put_out(member)
        self._partitions.update(topics)
        self._members[member] = _Member(frozenset(topics), now_ms)
        self._rebalance(now_ms)
        return self._confirm(member, now_ms)

    def resubscribe(self, member: str, topics: Mapping[str, int], now_ms: int) -> None:
        """Change a member's topics; it owns what it has until it confirms."""
        known = self._known(member)
        if known.topics != topics.keys():
            known.topics = frozenset(topics)
            self._partitions.update(topics)
            self._rebalance(now_ms)

    def confirmed(self, member: str) -> int:
        """The last generation that the member has confirmed."""
        return self._known(member).confirmed

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(topic in known.topics for known in self._members.values())

    def check_join(self, member: str) -> None:
        """Raise what `join` would raise for the member."""
        check_length("member name", member, MAX_NAME)
        if member not in self._members:
            check_number("members", len(self._members), MAX_MEMBERS)

    def leave(self, member: str, now_ms: int) -> bool:
        """Free what a member owns, at once; returns whether it was a member."""
        if not self._put_out(member):
            return False
        self._rebalance(now_ms)
        return True

    def heartbeat(self, member: str, generation: int, now_ms: int) -> Assigned:
        """Keep a member alive. With the current generation it confirms: ``revoked`` is given up."""
        known = self._known(member)
        if generation > self.generation:
            raise Fenced(f"generation {generation} is unknown here: join the group again")
        known.seen_ms = now_ms
        if generation == self.generation:
            return self._confirm(member, now_ms)
        if generation > known.confirmed:
            known.confirmed, known.stale_since_ms = generation, now_ms
        return self.assignment(member)

    def assignment(self, member: str) -> Assigned:
        """What the member owns, gives up and waits for now."""
        self._known(member)
        mine = sorted(at for at, owner in self._owners.items() if owner == member)
        shall = sorted(at for at, target in self._target.items() if target == member)
        return Assigned(
            member=member,
            generation=self.generation,
            leader=self.leader,
            owned=[at for at in mine if not self._is_revoked(at)],
            revoked=[at for at in mine if self._is_revoked(at)],
            awaited=[at for at in shall if self._owners.get(at) != member],
        )

    def expire(self, now_ms: int) -> list[str]:
        """Remove members that timed out or did not give up revoked partitions; returns them."""
        out = []
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            member = heappop(self._deadlines)[1]
            self._put_out(member)
            out.append(member)
        if out:
            self._rebalance(now_ms)
        return out

    def next_deadline(self) -> int | None:
        """When `expire` may have something to do."""
        heap = self._deadlines
        while heap:
            planned_ms, member = heap[0]
            if member not in self._members:
                heappop(heap)
            elif (actual_ms := self._deadline(member)) > planned_ms:
                heapreplace(heap, (actual_ms, member))
            else:
                return planned_ms
        return None

    def _deadline(self, member: str) -> int:
        known = self._members[member]
        silent_ms = known.seen_ms + self.options.session_timeout_ms
        if known.confirmed < self.generation and self._holds_revoked(member):
            return min(silent_ms, known.stale_since_ms + self.options.rebalance_timeout_ms)
        return silent_ms

    def _known(self, member: str) -> _Member:
        known = self._members.get(member)
        if known is None:
            raise not_member(member)
        return known

    # -- ownership -------------------------------------------------------------

    def _is_revoked(self, at: StreamPartition) -> bool:
        return at in self._recalled or self._target.get(at) != self._owners[at]

    def _holds_revoked(self, member: str) -> bool:
        return any(owner == member and self._is_revoked(at) for at, owner in self._owners.items())

    def _put_out(self, member: str) -> bool:
        self._free([at for at, owner in self._owners.items() if owner == member])
        return self._members.pop(member, None) is not None

    def _free(self, partitions: list[StreamPartition]) -> None:
        for at in partitions:
            del self._owners[at]
            self._recalled.discard(at)

    def _rebalance(self, now_ms: int) -> None:
        for known in self._members.values():
            if known.confirmed == self.generation:
                known.stale_since_ms = now_ms
        self._state.log(Regenerated(self.generation + 1))
        subscriptions = {name: known.topics for name, known in self._members.items()}
        self._target = assign(self.options.strategy, subscriptions, self._partitions)
        self._plan()

    def _plan(self) -> None:
        """Plan every deadline at its earliest; `next_deadline` checks again when one is near.

        Until the next rebalance deadlines only move later, as heartbeats arrive.
        """
        session_ms, rebalance_ms = (
            self.options.session_timeout_ms,
            self.options.rebalance_timeout_ms,
        )
        self._deadlines = [
            (min(known.seen_ms + session_ms, known.stale_since_ms + rebalance_ms), name)
            for name, known in self._members.items()
        ]
        heapify(self._deadlines)

    def _confirm(self, member: str, now_ms: int) -> Assigned:
        known = self._members[member]
        known.confirmed, known.seen_ms = self.generation, now_ms
        mine = [at for at, owner in self._owners.items() if owner == member]
        self._free([at for at in mine if self._is_revoked(at)])
        self._grant()
        return self.assignment(member)

    def _grant(self) -> None:
        """Give free partitions to targets that have confirmed."""
        for at, member in self._target.items():
            if at not in self._owners and self._members[member].confirmed == self.generation:
                self._owners[at] = member


def not_member(member: str) -> NotMember:
    """The error for a name that is not, or no longer, a member."""
    return NotMember(f"{member!r} is not a member of the group: join it first")
