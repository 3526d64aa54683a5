"""Use cases of Kafka's newer consumer groups (KIP-848): the broker assigns the partitions.

Such a group is an ordered group. The answers to a member's heartbeats have its *epoch*, the last
generation that it has confirmed, and what it owns. A heartbeat confirms a generation unless the
member has to give something up: then it keeps its epoch until a heartbeat no longer lists that.
A member belongs to no connection and is not durable: after a restart it joins again.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nexo.access.grants import Extent
from nexo.access.permit import READ, visible
from nexo.brokers.stream.groups.kafka.model import Caller, GroupError
from nexo.brokers.stream.groups.kafka.topic_pattern import TopicPattern
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.model import Broker, Persistence, check_name
from nexo.model.names import text_of
from nexo.model.stream import Assigned, StreamPartition
from nexo.options.stream import MAX_TIMEOUT_MS, MIN_TIMEOUT_MS, Strategy
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.groups.kafka_classic import Classic
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.permits import permit_ordered

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
"""Epochs in heartbeats that join or leave; a static member may leave for a while."""
_SESSION_MS = 45_000
_PATTERNS = 100


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat; what is None has not changed since the last."""

    member: str
    epoch: int
    instance: str | None = None
    topics: Sequence[str] | None = None
    owned: Collection[StreamPartition] | None = None
    rebalance_ms: int = -1
    strategy: Strategy | None = None
    client_id: str = ""
    client_host: str = ""
    pattern: TopicPattern | None = None
    """Of topics that the member reads too; an empty one for none any more."""


@dataclass(frozen=True, slots=True)
class BeatReply:
    """The answer to a heartbeat; ``owned`` is None if nothing has changed."""

    member: str
    epoch: int
    owned: list[StreamPartition] | None = None
    is_settled: bool = True
    """Whether every member has what it is to own."""


@dataclass(slots=True)
class AssignedMember:
    """A member as its clients know it."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    topics: Sequence[str] = ()
    """The topics it subscribes to, existing or not."""
    pattern: TopicPattern | None = None
    matched: tuple[Hashable, frozenset[str]] = (None, frozenset())
    """The streams that match, and of which state of the broker that is true."""
    is_away: bool = False
    """A static member that may come back."""
    last_answer: list[StreamPartition] | None = None
    """What it owned according to the last answer; None if that may be lost."""

    @property
    def name(self) -> str:
        """Its name in the ordered group, which a static member keeps."""
        return self.id if self.instance is None else f"static {self.instance}"


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member, and where its partitions are."""

    consumer: AssignedMember
    epoch: int
    owned: list[StreamPartition]
    target: list[StreamPartition]


BeatDone: TypeAlias = Done[BeatReply | GroupError]


class Consumers:
    """The requests of members of a group whose partitions the broker assigns."""

    def __init__(self, core: Core, ordered: Ordered, classic: Classic) -> None:
        self._core = core
        self._ordered = ordered
        self._classic = classic
        self._known: dict[tuple[str, str], AssignedMember] = {}
        """Members by group and by their name in the ordered group."""
        self._names: dict[tuple[str, str], str] = {}
        """That name, by group and member id."""
        self._patterns: dict[str, tuple[Hashable, Collection[str]]] = {}
        """The streams that match, by pattern."""
        ordered.on_gone = self._gone

    def _gone(self, group: str, name: str) -> None:
        known = self._known.pop((group, name), None)
        if known is not None:
            self._names.pop((group, known.id), None)

    # -- membership --------------------------------------------------------------------

    def heartbeat(self, connection: Connection, group: str, beat: Beat, done: BeatDone) -> None:
        """Join, stay or leave; answers what the member owns now."""
        if not self._may_use(connection, group, beat):
            done(GroupError.UNKNOWN_MEMBER_ID)
            return
        found = self._core.engine.ordered.get(group)
        if self._classic.has_members(group):
            done(GroupError.INCONSISTENT_GROUP_PROTOCOL)
        elif beat.epoch == JOIN:
            self._join(connection, group, beat, done)
        else:
            known = self._of(group, beat.member)
            if known is None or found is None:
                done(GroupError.UNKNOWN_MEMBER_ID)
            elif beat.epoch in (LEAVE, LEAVE_FOR_A_WHILE):
                self._leave(group, known, beat, done)
            else:
                self._stay(connection, group, found, known, beat, done)

    def _may_use(self, connection: Connection, group: str, beat: Beat) -> bool:
        """Whether the client may use the group; it does not learn of one that it may not use.

        `Forbidden` if it may not read the topics it names, or not join.
        """
        permit_ordered(connection, group, None, beat.topics or ())
        if self._is_own(connection, group, beat.member):
            return True
        if beat.epoch == JOIN:
            self._ordered.permit(connection, group)
        return self._classic.may_use(connection, group)

    def _is_own(self, connection: Connection, group: str, member: str) -> bool:
        """Whether a member joined as the client's user."""
        known = self._of(group, member)
        bindings = self._ordered.bindings
        return known is not None and bindings.is_own(connection, group, known.name)

    def _of(self, group: str, member: str) -> AssignedMember | None:
        return self._known.get((group, self._names.get((group, member), "")))

    def _join(self, connection: Connection, group: str, beat: Beat, done: BeatDone) -> None:
        new = AssignedMember(
            beat.member, beat.instance, beat.client_id, beat.client_host, beat.topics or (),
            beat.pattern,
        )  # fmt: skip
        self._match(connection, new)
        old = self._known.get((group, new.name))
        if old is not None and old.id != new.id and not old.is_away:
            done(GroupError.UNRELEASED_INSTANCE_ID)
            return
        check_name(group, "group")
        found = self._ordered.ensure(group, _options(beat))
        if old is None or not old.is_away:
            found.join(new.name, self._counts(new), self._core.now_ms)
        self._ordered.roam(connection, group, new.name)
        self._known[group, new.name] = new
        self._names[group, new.id] = new.name
        self._answer(group, found, new, None, done, joined=True)

    def _counts(self, known: AssignedMember) -> dict[str, int]:
        streams, names = self._core.engine.streams, {*known.topics, *known.matched[1]}
        return {name: streams.get(name).options.partitions for name in names if name in streams}

    def _match(self, connection: Connection, known: AssignedMember) -> None:
        """Find the streams that a member's pattern names, if there may be others than before."""
        if known.pattern is None or not known.pattern.text:
            known.matched = None, frozenset()
            return
        streams = self._core.engine.streams
        state = streams.next_id, len(streams), known.pattern.text
        if known.matched[0] == state:
            return
        may_read = visible(connection.identity, Broker.STREAM, READ, Extent.NAME)
        known.matched = state, frozenset(filter(may_read, self._named_by(known.pattern, state)))

    def _named_by(self, pattern: TopicPattern, state: Hashable) -> Collection[str]:
        """The streams that match, found once for all members of all groups."""
        kept, found = self._patterns.get(pattern.text, (None, ()))
        if kept != state:
            streams = (stream for stream in self._core.engine.streams if not stream.is_system)
            found = [each.name for each in streams if pattern.matches(text_of(each.name))]
            if len(self._patterns) >= _PATTERNS:
                self._patterns.clear()
            self._patterns[pattern.text] = state, found
        return found

    def _stay(
        self,
        connection: Connection,
        group: str,
        found: OrderedGroup,
        known: AssignedMember,
        beat: Beat,
        done: BeatDone,
    ) -> None:
        epoch = found.confirmed(known.name)
        has = {at for at, owner in found.owners.items() if owner == known.name}
        repeats = beat.owned is not None and beat.epoch < epoch and has.issuperset(beat.owned)
        if beat.epoch != epoch and not repeats:
            done(GroupError.FENCED_MEMBER_EPOCH)
            return
        if beat.topics is not None:
            known.topics = beat.topics
        known.pattern = beat.pattern or known.pattern
        self._match(connection, known)
        if beat.owned is not None:
            known.last_answer = None
        known.is_away = False
        self._answer(group, found, known, beat.owned, done)

    def _answer(
        self,
        group: str,
        found: OrderedGroup,
        known: AssignedMember,
        owned: Collection[StreamPartition] | None,
        done: BeatDone,
        *,
        joined: bool = False,
    ) -> None:
        """Confirm the generation for a member that has nothing to give up, and answer it."""
        name, now_ms = known.name, self._core.now_ms
        before = found.generation, found.confirmed(name)
        found.resubscribe(name, self._counts(known), now_ms)
        now = found.heartbeat(name, found.confirmed(name), now_ms)
        if now.generation != found.confirmed(name) and _is_free(now, owned):
            now = found.heartbeat(name, now.generation, now_ms)
        epoch = found.confirmed(name)
        self._ordered.changed(group, found)
        news = None if now.owned == known.last_answer else now.owned
        known.last_answer = now.owned
        reply = BeatReply(known.id, epoch, news, found.stable)
        if before == (found.generation, epoch) and not joined:
            done(reply)
        else:
            self._core.done_when_safe(Persistence.FILE_ASYNC, done, reply)

    def _leave(self, group: str, known: AssignedMember, beat: Beat, done: BeatDone) -> None:
        if beat.epoch == LEAVE_FOR_A_WHILE and known.instance is not None:
            known.is_away = True
        else:
            self._ordered.let_go(group, known.name)
        done(BeatReply(beat.member, beat.epoch))

    # -- offsets -----------------------------------------------------------------------

    def check_commit(self, connection: Connection, group: str, caller: Caller) -> GroupError | None:
        """Why offsets are rejected, of a member of either kind or of a client that is no member.

        The client must be allowed to use the group, or learns nothing of it.
        """
        found = self._core.engine.ordered.get(group)
        if found is None or not found.leader:
            return self._classic.check_commit(connection, group, caller)
        known, own = self._of(group, caller.member), self._is_own(connection, group, caller.member)
        if known is None or not (own or self._classic.may_use(connection, group)):
            return GroupError.UNKNOWN_MEMBER_ID
        matches = caller.generation == found.confirmed(known.name)
        return None if matches else GroupError.STALE_MEMBER_EPOCH

    def topics_read(self, group: str) -> set[str]:
        """The topics that members of a group read."""
        found = self._core.engine.ordered.get(group)
        return set() if found is None else {name for name in found.topics if found.subscribes(name)}

    def client(self, group: str, member: str) -> AssignedMember | None:
        """The Kafka client that is this member of an ordered group."""
        return self._known.get((group, member))

    # -- administration ----------------------------------------------------------------

    def views(self, connection: Connection, group: str) -> tuple[OrderedGroup, list[MemberView]]:
        """A group and its members; `NotFound` if there is none."""
        found = self._core.engine.find_ordered(group)
        self._ordered.permit(connection, group)
        views = []
        for name in found.members:
            known = self._known.get((group, name)) or AssignedMember(
                name, None, "", "", found.topics
            )
            now = found.assignment(name)
            owned = sorted([*now.owned, *now.revoked])
            target = sorted([*now.owned, *now.awaited])
            views.append(MemberView(known, found.confirmed(name), owned, target))
        return found, views


def _is_free(now: Assigned, owned: Collection[StreamPartition] | None) -> bool:
    """Whether a member has nothing to give up, or says that it has given it up."""
    return not now.revoked or (owned is not None and not set(now.revoked).intersection(owned))


def _options(beat: Beat) -> dict[str, object]:
    options: dict[str, object] = {"session_timeout_ms": _SESSION_MS}
    if beat.rebalance_ms > 0:
        bounded = min(max(beat.rebalance_ms, MIN_TIMEOUT_MS), MAX_TIMEOUT_MS)
        options["rebalance_timeout_ms"] = bounded
    if beat.strategy is not None:
        options["strategy"] = beat.strategy
    return options
