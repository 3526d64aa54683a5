"""Ordered groups on the wire: membership, heartbeats, offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from nexo.brokers.stream.groups.ordered import Assignment, OrderedGroup, check_topics
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, OrderedOptions
from nexo.brokers.stream.survey import ordered_lag, streams_of
from nexo.errors import InvalidOption, NotMember, OffsetOutOfRange
from nexo.model import Persistence
from nexo.protocol import stream_ordered as wire
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.services.service import Handler, Peer
from nexo.services.stream.bounds import MAX_WAIT_MS
from nexo.services.stream.core import Core, safest
from nexo.services.stream.waits import ORDERED, Wait


class Ordered:
    """Everything a member of an ordered group asks for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._joined = 0
        self._members: dict[int, set[tuple[str, str]]] = {}
        self.handlers: dict[int, Handler] = {
            Op.S_ORDERED_JOIN: self.join,
            Op.S_ORDERED_LEAVE: self.leave,
            Op.S_HEARTBEAT: self.heartbeat,
            Op.S_COMMIT: self.commit,
            Op.S_COMMITTED: self.committed,
            Op.S_ORDERED_SEEK: self.seek,
            Op.S_ORDERED_GROUPS: self.groups,
            Op.S_ORDERED_DELETE: self.delete,
        }

    # -- membership ------------------------------------------------------------------

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Become a member of a group over topics."""
        ask, core = unpack(wire.OrderedJoin, payload), self._core
        check_topics(ask.topics)
        topics = {name: core.engine.streams.get(name).options.partitions for name in ask.topics}
        group = self._ensure(ask.group, ask.options)
        member = ask.member or self._name(peer)
        assignment = group.join(member, topics, core.now_ms)
        self._members.setdefault(peer.id, set()).add((ask.group, member))
        self._after(ask.group, group)
        self._show(peer, request_id, member, assignment)

    def _ensure(self, name: str, given: dict[str, Any]) -> OrderedGroup:
        _check_timeouts(given)
        known = self._core.engine.ordered.get(name)
        if known is None:
            return self._core.engine.make_ordered(name, ordered_options(given))
        wanted = ordered_options(msgspec.to_builtins(known.options) | given)
        if wanted != known.options:
            known.tune(wanted, self._core.now_ms)
        return known

    def _found_or_new(self, name: str) -> OrderedGroup:
        """What to check a request against, so that a refused one leaves no group behind."""
        return self._core.engine.ordered.get(name) or OrderedGroup()

    def _name(self, peer: Peer) -> str:
        self._joined += 1
        return f"m{self._core.started_ms:x}-{peer.id:x}-{self._joined:x}"

    def heartbeat(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Note a sign of life; the reply says what changed."""
        ask = unpack(wire.Heartbeat, payload)
        group = self._core.engine.find_ordered(ask.group)
        assignment = group.heartbeat(ask.member, ask.generation, self._core.now_ms)
        self._after(ask.group, group)
        if ask.wait_ms <= 0 or _is_news(ask, assignment):
            self._beat(peer, request_id, ask, assignment)
        else:
            self._wait(peer, request_id, ask, group)

    def _wait(self, peer: Peer, request_id: int, ask: wire.Heartbeat, group: OrderedGroup) -> None:
        def give_up() -> None:
            try:
                self._beat(peer, request_id, ask, group.assignment(ask.member))
            except NotMember as error:
                peer.fail(request_id, error)

        def attempt() -> bool:
            news = _is_news(ask, group.assignment(ask.member))
            if news:
                give_up()
            return news

        due_ms = self._core.now_ms + min(ask.wait_ms, MAX_WAIT_MS)
        channels = [(ORDERED, ask.group)]
        self._core.waits.add(Wait(peer, request_id, channels, due_ms, attempt, give_up))
        self._core.runtime.wake_at(due_ms)

    def _beat(self, peer: Peer, request_id: int, ask: wire.Heartbeat, found: Assignment) -> None:
        """Answer a heartbeat; what its member knows already waits for no disk (SPEC I7)."""
        if _is_news(ask, found):
            self._show(peer, request_id, ask.member, found)
        else:
            peer.data(request_id, pack(_assigned(ask.member, found)))

    def _show(self, peer: Peer, request_id: int, member: str, found: Assignment) -> None:
        reply = pack(_assigned(member, found))
        self._core.data_when_safe(Persistence.FILE_ASYNC, peer, request_id, reply)

    def leave(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Free what a member owns."""
        ask = unpack(wire.OrderedLeave, payload)
        group = self._core.engine.find_ordered(ask.group)
        self._members.get(peer.id, set()).discard((ask.group, ask.member))
        group.leave(ask.member, self._core.now_ms)
        self._after(ask.group, group)
        self._core.ok_when_safe(Persistence.FILE_ASYNC, peer, request_id)

    def peer_closed(self, peer: Peer) -> None:
        """The members of a cut connection leave at once."""
        for name, member in self._members.pop(peer.id, ()):
            group = self._core.engine.ordered.get(name)
            if group is not None and group.leave(member, self._core.now_ms):
                self._after(name, group)

    # -- offsets ---------------------------------------------------------------------

    def commit(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store offsets."""
        ask, core = unpack(wire.Commit, payload), self._core
        commits = [OffsetCommit(*row) for row in ask.offsets]
        self._found_or_new(ask.group).check(ask.member, ask.generation, commits)
        self._check_there(commits)
        group = self._ensure(ask.group, {})
        group.commit(ask.member, ask.generation, commits, core.now_ms, rewind=ask.rewind)
        self._after(ask.group, group)
        core.ok_when_safe(self._mode(commits), peer, request_id)

    def commits(self, rows: Iterable[wire.OffsetRow]) -> list[OffsetCommit]:
        """Offsets that there are."""
        found = [OffsetCommit(*row) for row in rows]
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

    def committed(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show stored offsets."""
        ask = unpack(wire.CommittedAsk, payload)
        group = self._core.engine.ordered.get(ask.group)
        peer.data(request_id, pack(_stored(group, ask.topic) if group is not None else []))

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Reset stored offsets."""
        ask = unpack(wire.OrderedSeek, payload)
        commits = self.commits(ask.offsets)
        self._found_or_new(ask.group).check_reset(commits)
        group = self._ensure(ask.group, {})
        group.reset(commits, self._core.now_ms)
        self._after(ask.group, group)
        reply = pack(group.generation)
        self._core.data_when_safe(self._mode(commits), peer, request_id, reply)

    # -- administration --------------------------------------------------------------

    def groups(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show groups."""
        ask = unpack(wire.OrderedAsk, payload)
        engine = self._core.engine
        if ask.group is not None:
            found = {ask.group: engine.find_ordered(ask.group)}
        elif ask.stream is not None:
            found = {n: group for n, group in engine.ordered.items() if ask.stream in group.topics}
        else:
            found = engine.ordered
        infos = [self._info(name, group, ask.stream) for name, group in found.items()]
        peer.data(request_id, pack(infos))

    def _info(self, name: str, group: OrderedGroup, only: str | None) -> wire.OrderedInfo:
        read = streams_of(self._core.engine, group)
        lags = {s.name: ordered_lag(group, s) for s in read if only in (None, s.name)}
        owners = sorted(group.owners.items())
        return wire.OrderedInfo(
            name=name,
            generation=group.generation,
            leader=group.leader,
            members=group.members,
            stable=group.stable,
            options=msgspec.to_builtins(group.options),
            owners=[(topic, i, who) for (topic, i), who in owners if only in (None, topic)],
            offsets=_stored(group, only),
            lag=sum(lags.values()),
            lags=lags,
        )

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Forget a group."""
        ask = unpack(wire.OrderedName, payload)
        self._core.engine.drop_ordered(ask.group)
        self._core.ok_when_safe(Persistence.FILE_ASYNC, peer, request_id)

    # -- time ------------------------------------------------------------------------

    def _after(self, name: str, group: OrderedGroup) -> None:
        core = self._core
        core.engine.reordered(name, group)
        core.end_turn_soon()
        deadline = group.next_deadline()
        if deadline is not None:
            core.runtime.wake_at(deadline)
        core.waits.wake_channel(ORDERED, name)

    def tick(self, now_ms: int) -> None:
        """Put out silent members."""
        for name, group in self._core.engine.ordered.items():
            deadline = group.next_deadline()
            if deadline is None:
                continue
            if deadline <= now_ms:
                group.expire(now_ms)
                self._after(name, group)
            else:
                self._core.runtime.wake_at(deadline)


def _assigned(member: str, found: Assignment) -> wire.Assigned:
    return wire.Assigned(
        member=member,
        generation=found.generation,
        leader=found.leader,
        owned=found.owned,
        revoked=found.revoked,
        awaited=found.awaited,
    )


def _is_news(ask: wire.Heartbeat, found: Assignment) -> bool:
    return found.generation != ask.generation or len(found.owned) != ask.known


def _check_timeouts(given: dict[str, Any]) -> None:
    """Only what is asked for: a group keeps what it has."""
    for name in ("session_timeout_ms", "rebalance_timeout_ms"):
        value = given.get(name, wire.MIN_TIMEOUT_MS)
        if isinstance(value, int) and not wire.MIN_TIMEOUT_MS <= value <= wire.MAX_TIMEOUT_MS:
            raise InvalidOption(
                f"{name} = {value}: must be from {wire.MIN_TIMEOUT_MS:,} to {wire.MAX_TIMEOUT_MS:,}"
            )


def ordered_options(given: dict[str, Any]) -> OrderedOptions:
    """Checked options; `InvalidOption` names what is wrong."""
    try:
        return msgspec.convert(given, OrderedOptions)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"group options: {error}") from None


def _stored(group: OrderedGroup, only: str | None) -> list[wire.CommittedAt]:
    """Of one topic, or of all."""
    return [
        wire.CommittedAt(
            topic=topic,
            partition=partition,
            offset=kept.offset,
            metadata=kept.metadata,
            committed_ms=kept.committed_ms,
        )
        for (topic, partition), kept in sorted(group.offsets.items())
        if only in (None, topic)
    ]
