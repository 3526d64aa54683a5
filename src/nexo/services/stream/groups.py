"""Shared groups on the wire: join, take, settle, seek."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from nexo.brokers.stream.groups.flight import Delivery, Refusal
from nexo.brokers.stream.groups.records import SharedOptions
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.registry import Stream
from nexo.errors import InvalidOption, NexoError
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.refusals import in_words
from nexo.services.service import Handler, Peer
from nexo.services.stream.bounds import (
    MAX_READ_BYTES,
    check_limit,
    check_not_negative,
    positions,
)
from nexo.services.stream.core import Core
from nexo.services.stream.leasing import Leasing
from nexo.services.stream.parked import Parked
from nexo.services.stream.polling import Poll, Polling
from nexo.services.stream.times import offsets_at

_FLEETING = frozenset({"extend", "start"})
"""Ways to settle that change leases only. Those are in memory, so no reply waits for the disk."""


class Groups:
    """Everything a consumer of a shared group asks for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._joined = 0
        self._members: dict[int, dict[str, tuple[Stream, str]]] = {}
        self.leasing = Leasing(core)
        self.polling = Polling(core)
        self.handlers: dict[int, Handler] = {
            **Parked(core, self.leasing).handlers,
            Op.S_TAKE: self.take,
            Op.S_SETTLE: self.settle,
            Op.S_GROUP_JOIN: self.join,
            Op.S_GROUP_LEAVE: self.leave,
            Op.S_GROUP_SEEK: self.seek,
        }

    # -- membership ------------------------------------------------------------------

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Become a consumer."""
        ask = wire.unpack(wire.GroupJoin, payload)
        stream = self._core.engine.streams.get(ask.stream)
        if ask.start_ms is None or ask.group in stream.groups:
            self._join(peer, request_id, stream, ask)
            return

        def found(starts: dict[int, int]) -> None:
            self._join(peer, request_id, stream, msgspec.structs.replace(ask, start=starts))

        self._at_time(peer, request_id, stream, ask.start_ms, found)

    def _join(self, peer: Peer, request_id: int, stream: Stream, ask: wire.GroupJoin) -> None:
        group = self.ensure(stream, ask.group, ask.options, ask.start)
        consumer = self.enter(peer, stream, ask.group, reports_starts=ask.reports_starts)
        reply = wire.pack(
            wire.GroupJoined(
                consumer=consumer,
                generation=group.generation,
                ack_wait_ms=group.options.ack_wait_ms,
            )
        )
        self._core.data_when_safe(stream.options.persistence, peer, request_id, reply)

    def ensure(
        self,
        stream: Stream,
        name: str,
        options: dict[str, Any],
        start: wire.Position = "beginning",
    ) -> SharedGroup:
        """The group, made if need be, tuned if options are given."""
        core, group = self._core, stream.groups.get(name)
        if group is None:
            wanted = group_options(options)
            wanted.check_members()
            return self._make(stream, name, positions(core.replay, stream, start), wanted)
        group.options.check_members()
        if options:
            wanted = group_options(msgspec.to_builtins(group.options) | options)
            if wanted != group.options:
                group.tune(wanted, core.now_ms)
                core.changed(stream, name, group)
        return group

    def _make(
        self, stream: Stream, name: str, starts: dict[int, int], options: SharedOptions
    ) -> SharedGroup:
        """A new group, at the beginning of partitions that ``starts`` does not name."""
        starts = positions(self._core.replay, stream, "beginning") | starts
        return self._core.engine.make_group(stream, name, starts, options)

    def enter(self, peer: Peer, stream: Stream, group: str, *, reports_starts: bool = False) -> str:
        """Make the peer a consumer under a name no other had."""
        self._joined += 1
        consumer = f"c{self._core.started_ms:x}-{peer.id:x}-{self._joined:x}"
        stream.group(group).join(consumer, reports_starts=reports_starts)
        self._members.setdefault(peer.id, {})[consumer] = stream, group
        return consumer

    def leave(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Stop being a consumer; what it held goes to others at once."""
        ask = wire.unpack(wire.GroupLeave, payload)
        stream, _ = self._core.engine.find(ask.stream, ask.group)
        self.exit(peer, stream, ask.group, ask.consumer, ask.unstarted)
        self._core.ok_when_safe(stream.options.persistence, peer, request_id)

    def exit(
        self,
        peer: Peer,
        stream: Stream,
        name: str,
        consumer: str,
        unstarted: list[wire.Span] | None = None,
    ) -> None:
        """Release all a consumer holds."""
        self._members.get(peer.id, {}).pop(consumer, None)
        group = stream.groups.get(name)
        if group is not None and group.leave(consumer, self._core.now_ms, unstarted):
            self.leasing.moved(stream, name, group)

    def peer_closed(self, peer: Peer) -> None:
        """Release all the peer's consumers held."""
        for consumer, (stream, name) in self._members.pop(peer.id, {}).items():
            self.exit(peer, stream, name, consumer)

    # -- delivering ------------------------------------------------------------------

    def take(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Lease records; wait for some if there are none."""
        ask = wire.unpack(wire.Take, payload)
        check_limit(ask.limit)
        check_not_negative(ask.wait_ms, "wait_ms")
        check_not_negative(ask.begins, "begins")
        stream, group = self._core.engine.find(ask.stream, ask.group)

        def attempt() -> bool:
            return self._answer(peer, request_id, stream, ask)

        def give_up() -> None:
            peer.data(request_id, wire.pack_headed(wire.Taken(group.generation, [], [])))

        poll = Poll(peer, request_id, stream, ask.group, attempt, give_up)
        self.polling.start(poll, ask.wait_ms)

    def _answer(self, peer: Peer, request_id: int, stream: Stream, ask: wire.Take) -> bool:
        group = stream.group(ask.group)
        deliveries, found = self.leasing.lease(
            stream, ask.group, group, ask.consumer, ask.limit, min(ask.max_bytes, MAX_READ_BYTES)
        )
        if not deliveries:
            return False
        if ask.begins:
            group.start(ask.consumer, group.generation, _first(deliveries, ask.begins))
        rows = [(d.partition, d.first, d.end, d.attempt, d.expires_ms) for d in deliveries]
        head = wire.Taken(group.generation, rows, found.partitions)
        peer.data(request_id, wire.pack_headed(head), *found.parts)
        return True

    # -- settling --------------------------------------------------------------------

    def settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Ack, nack, release, extend or start leased records."""
        ask = wire.unpack(wire.Settle, payload)
        check_not_negative(ask.delay_ms, "delay_ms")
        stream = self._core.engine.streams.get(ask.stream)
        refusals = self.apply(stream, ask)
        reply = wire.pack(
            [
                wire.Refused(r.partition, r.first, r.end, r.error.code, r.error.message)
                for r in refusals
            ]
        )
        if ask.verb in _FLEETING:
            peer.data(request_id, reply)
        else:
            self._core.data_when_safe(stream.options.persistence, peer, request_id, reply)

    def apply(self, stream: Stream, ask: wire.Settle) -> list[Refusal]:
        """Tell the group; returns what was refused."""
        group = stream.group(ask.group)
        if ask.begins:
            group.check(ask.consumer, ask.generation, ask.begins)
        refusals = self._tell(group, ask)
        if ask.begins:
            group.start(ask.consumer, ask.generation, ask.begins)
        self.leasing.moved(stream, ask.group, group)
        return refusals

    def _tell(self, group: SharedGroup, ask: wire.Settle) -> list[Refusal]:
        now_ms, who, generation = self._core.now_ms, ask.consumer, ask.generation
        match ask.verb:
            case "ack":
                return group.ack(who, generation, ask.spans)
            case "nack":
                return group.nack(
                    who,
                    generation,
                    ask.spans,
                    now_ms,
                    delay_ms=ask.delay_ms,
                    reason=ask.reason or "nack",
                )
            case "release":
                return group.release(who, generation, ask.spans)
            case "extend":
                return group.extend(who, generation, now_ms, ask.spans or None)
            case "start":
                group.start(who, generation, ask.spans)
                return []

    # -- seeking ---------------------------------------------------------------------

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Reset a group; it is made if need be."""
        ask = wire.unpack(wire.GroupSeek, payload)
        stream = self._core.engine.streams.get(ask.stream)

        def found(starts: dict[int, int]) -> None:
            reply = wire.pack(self.reset(stream, ask.group, starts))
            self._core.data_when_safe(stream.options.persistence, peer, request_id, reply)

        if ask.to_ms is None:
            found(positions(self._core.replay, stream, ask.to))
        else:
            self._at_time(peer, request_id, stream, ask.to_ms, found)

    def _at_time(
        self,
        peer: Peer,
        request_id: int,
        stream: Stream,
        time_ms: int,
        then: Callable[[dict[int, int]], None],
    ) -> None:
        """Go on with the offsets of a time, once they are found."""

        def done(found: dict[int, int] | NexoError) -> None:
            if peer.closed:
                return
            try:
                if isinstance(found, NexoError):
                    raise found
                self._core.check_there(stream)
                then(found)
            except NexoError as error:
                peer.fail(request_id, error)

        offsets_at(self._core.replay, stream, time_ms, done)

    def reset(self, stream: Stream, name: str, starts: dict[int, int]) -> int:
        """Start a group anew; returns its new generation."""
        group = stream.groups.get(name)
        if group is None:
            group = self._make(stream, name, starts, SharedOptions())
        generation = group.seek(starts)
        self.leasing.moved(stream, name, group)
        return generation


def _first(deliveries: list[Delivery], count: int) -> list[wire.Span]:
    """The first ``count`` messages of what was handed out."""
    spans: list[wire.Span] = []
    for each in deliveries:
        end = min(each.end, each.first + count)
        if end > each.first:
            spans.append((each.partition, each.first, end))
            count -= end - each.first
    return spans


def group_options(given: dict[str, Any]) -> SharedOptions:
    """Checked options; `InvalidOption` names what is wrong."""
    try:
        return msgspec.convert(given, SharedOptions)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"group options: {in_words(error, SharedOptions)}") from None
