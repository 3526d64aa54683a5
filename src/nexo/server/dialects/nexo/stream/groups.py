"""Shared groups on the wire: join, take, settle, seek, parked records."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from nexo.brokers.stream.delivery import Gathered, gather, keys_between, offset_at
from nexo.brokers.stream.groups.flight import Delivery, Refusal
from nexo.brokers.stream.groups.records import SharedOptions
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.registry import Stream
from nexo.errors import Corrupt, InvalidInput, InvalidOption, NexoError
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.server.dialects.nexo.stream.core import Core
from nexo.server.dialects.nexo.stream.waits import Wait
from nexo.server.service import Handler, Peer

MAX_WAIT_MS = 600_000
_ROW = 1024**2
"""How much is shown of one parked range."""
_DAMAGED_MS = 1_000
"""How long after a damaged record was met it is tried again."""


class Groups:
    """Everything a consumer of a shared group asks for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._joined = 0
        self._members: dict[int, dict[str, tuple[Stream, str]]] = {}
        self._timed: dict[tuple[int, str], tuple[Stream, SharedGroup]] = {}
        self.handlers: dict[int, Handler] = {
            Op.S_TAKE: self.take,
            Op.S_SETTLE: self.settle,
            Op.S_GROUP_JOIN: self.join,
            Op.S_GROUP_LEAVE: self.leave,
            Op.S_GROUP_SEEK: self.seek,
            Op.S_PARKED: self.parked,
            Op.S_PARKED_SETTLE: self.settle_parked,
        }

    # -- membership ------------------------------------------------------------------

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Become a consumer."""
        ask = wire.unpack(wire.GroupJoin, payload)
        stream = self._core.engine.streams.get(ask.stream)
        group = self.ensure(stream, ask.group, ask.options, ask.start, ask.start_ms)
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
        start_ms: int | None = None,
    ) -> SharedGroup:
        """The group, made if need be, tuned if options are given."""
        core, group = self._core, stream.groups.get(name)
        if group is None:
            starts = positions(stream, start, start_ms)
            return core.engine.make_group(stream, name, starts, group_options(options))
        if options:
            wanted = group_options(msgspec.to_builtins(group.options) | options)
            if wanted != group.options:
                group.tune(wanted, core.now_ms)
                core.changed(stream, name, group)
        return group

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
            self._after(stream, name, group)

    def peer_closed(self, peer: Peer) -> None:
        """Release all the peer's consumers held."""
        for consumer, (stream, name) in self._members.pop(peer.id, {}).items():
            self.exit(peer, stream, name, consumer)

    # -- delivering ------------------------------------------------------------------

    def take(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Lease records; wait for some if there are none."""
        ask = wire.unpack(wire.Take, payload)
        if ask.limit < 1:
            raise InvalidInput(f"limit = {ask.limit}: must be at least 1")
        stream, group = self._core.engine.find(ask.stream, ask.group)

        def attempt() -> bool:
            return self._answer(peer, request_id, stream, ask)

        if attempt():
            return
        self.wait(
            peer,
            request_id,
            stream,
            ask.group,
            ask.wait_ms,
            attempt,
            lambda: peer.data(request_id, wire.pack_headed(wire.Taken(group.generation, [], []))),
        )

    def wait(
        self,
        peer: Peer,
        request_id: int,
        stream: Stream,
        group: str,
        wait_ms: int,
        attempt: Any,
        give_up: Any,
    ) -> None:
        """Long poll on a group."""
        if wait_ms <= 0:
            give_up()
            return
        due_ms = self._core.now_ms + min(wait_ms, MAX_WAIT_MS)
        self._core.waits.add(Wait(peer, request_id, [(stream.id, group)], due_ms, attempt, give_up))
        self._core.runtime.wake_at(due_ms)

    def _answer(self, peer: Peer, request_id: int, stream: Stream, ask: wire.Take) -> bool:
        group = stream.group(ask.group)
        deliveries, found = self.lease(stream, ask.group, ask.consumer, ask.limit, ask.max_bytes)
        if not deliveries:
            return False
        rows = [(d.partition, d.first, d.end, d.attempt, d.expires_ms) for d in deliveries]
        head = wire.Taken(group.generation, rows, found.partitions)
        peer.data(request_id, wire.pack_headed(head), *found.parts)
        return True

    def lease(
        self, stream: Stream, name: str, consumer: str, limit: int, max_bytes: int
    ) -> tuple[list[Delivery], Gathered]:
        """Lease records and fetch them; ranges that hold no records are stepped over."""
        core, group = self._core, stream.group(name)
        while True:
            deliveries = self._deliver(stream, group, consumer, limit)
            if not deliveries:
                return [], Gathered()
            self._timed[stream.id, name] = stream, group
            core.runtime.wake_at(deliveries[0].expires_ms)
            try:
                found = self._gathered(stream, group, consumer, deliveries, max_bytes)
            except NexoError:
                self._after(stream, name, group)
                raise
            if found.gaps or found.unsent:
                deliveries = self._without(stream, name, consumer, deliveries, found)
            if found.parts and deliveries:
                return deliveries, found

    def _deliver(
        self, stream: Stream, group: SharedGroup, consumer: str, limit: int
    ) -> list[Delivery]:
        keys_of = None
        if group.options.ordered_by is not None:

            def keys_of(index: int, first: int, end: int) -> Any:
                return keys_between(stream.partition(index), first, end)

        return group.deliver(consumer, limit, stream.ends(), self._core.now_ms, keys_of)

    def _gathered(
        self,
        stream: Stream,
        group: SharedGroup,
        consumer: str,
        deliveries: list[Delivery],
        max_bytes: int,
    ) -> Gathered:
        try:
            return gather(stream, deliveries, max_bytes)
        except NexoError as error:
            # Reported, never skipped (SPEC E6). After some tries it is parked, so that it
            # does not take its neighbours along.
            for d in deliveries:
                self._give_back(group, consumer, d, error)
            raise

    def _give_back(
        self, group: SharedGroup, consumer: str, delivery: Delivery, error: NexoError
    ) -> None:
        partition, first, end = delivery.partition, delivery.first, delivery.end
        bad = (0, 0)
        if isinstance(error, Corrupt) and error.offset is not None:
            bad = max(first, error.offset), min(end, error.next_offset or end)
        if bad[0] < bad[1]:
            group.nack(
                consumer,
                group.generation,
                [(partition, *bad)],
                self._core.now_ms,
                delay_ms=_DAMAGED_MS,
                reason=error.message,
            )
            good = [(partition, first, bad[0]), (partition, bad[1], end)]
        else:
            good = [(partition, first, end)]
        group.release(consumer, group.generation, [span for span in good if span[1] < span[2]])

    def _without(
        self,
        stream: Stream,
        name: str,
        consumer: str,
        deliveries: list[Delivery],
        found: Gathered,
    ) -> list[Delivery]:
        """Give back what did not fit, skip what is not there; what is left was delivered."""
        group = stream.group(name)
        if found.unsent:
            group.release(consumer, group.generation, found.unsent)
        if found.gaps:
            group.skip(found.gaps)
            self._core.changed(stream, name, group)
        return [part for d in deliveries for part in _minus(d, found.gaps + found.unsent)]

    # -- settling --------------------------------------------------------------------

    def settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Ack, nack, release, extend or start leased records."""
        ask = wire.unpack(wire.Settle, payload)
        stream = self._core.engine.streams.get(ask.stream)
        refusals = self.apply(stream, ask)
        reply = wire.pack(
            [
                wire.Refused(r.partition, r.first, r.end, r.error.code, r.error.message)
                for r in refusals
            ]
        )
        self._core.data_when_safe(stream.options.persistence, peer, request_id, reply)

    def apply(self, stream: Stream, ask: wire.Settle) -> list[Refusal]:
        """Tell the group; returns what was refused."""
        group = stream.group(ask.group)
        refusals = self._tell(group, ask)
        self._after(stream, ask.group, group)
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

    def _after(self, stream: Stream, name: str, group: SharedGroup) -> None:
        """A group moved: journal it, mind its deadlines, and see who can be served."""
        core = self._core
        core.changed(stream, name, group)
        core.touched(stream)
        deadline = group.next_deadline()
        if deadline is not None:
            self._timed[stream.id, name] = stream, group
            core.runtime.wake_at(deadline)

    # -- seeking and parked records --------------------------------------------------

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Reset a group; it is made if need be."""
        ask = wire.unpack(wire.GroupSeek, payload)
        stream = self._core.engine.streams.get(ask.stream)
        generation = self.reset(stream, ask.group, positions(stream, ask.to, ask.to_ms))
        reply = wire.pack(generation)
        self._core.data_when_safe(stream.options.persistence, peer, request_id, reply)

    def reset(self, stream: Stream, name: str, starts: dict[int, int]) -> int:
        """Start a group anew; returns its new generation."""
        group = stream.groups.get(name)
        if group is None:
            group = self._core.engine.make_group(stream, name, starts, SharedOptions())
        generation = group.seek(starts)
        self._after(stream, name, group)
        return generation

    def parked(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show parked records."""
        ask = wire.unpack(wire.ParkedAsk, payload)
        stream, group = self._core.engine.find(ask.stream, ask.group)
        rows = [
            wire.ParkedInfo(
                r.partition, r.first, r.end, r.parking.deliveries, r.parking.parked_ms,
                r.parking.reason,
            )
            for r in group.parked(ask.limit, ask.skip)
        ]  # fmt: skip
        parts = _records(stream, rows)
        head = wire.ParkedList(rows, parts.partitions)
        peer.data(request_id, wire.pack_headed(head), *parts.parts)

    def settle_parked(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Replay or discard parked records."""
        ask = wire.unpack(wire.ParkedSettle, payload)
        stream, group = self._core.engine.find(ask.stream, ask.group)
        count = group.replay(ask.spans) if ask.verb == "replay" else group.discard(ask.spans)
        self._after(stream, ask.group, group)
        mode = stream.options.persistence
        self._core.data_when_safe(mode, peer, request_id, wire.pack(count))

    # -- time ------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """End leases and delays that are over."""
        for (number, name), (stream, group) in list(self._timed.items()):
            deadline = group.next_deadline()
            if deadline is None or stream.groups.get(name) is not group:
                del self._timed[number, name]
            elif deadline <= now_ms:
                group.expire(now_ms)
                self._after(stream, name, group)
            else:
                self._core.runtime.wake_at(deadline)


def group_options(given: dict[str, Any]) -> SharedOptions:
    """Checked options; `InvalidOption` names what is wrong."""
    try:
        return msgspec.convert(given, SharedOptions)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"group options: {error}") from None


def positions(stream: Stream, to: wire.Position, to_ms: int | None = None) -> dict[int, int]:
    """An offset per partition; what was asked for is moved into what the partition holds."""
    parts = stream.partitions()
    if to_ms is not None:
        return {i: offset_at(part, to_ms) for i, part in enumerate(parts)}
    if to == "beginning":
        return {i: part.start_offset for i, part in enumerate(parts)}
    if to == "end":
        return {i: part.next_offset for i, part in enumerate(parts)}
    wanted = to if isinstance(to, dict) else dict.fromkeys(range(len(parts)), int(to))
    for index in wanted:
        stream.partition(index)
    return {
        i: min(max(wanted.get(i, part.start_offset), part.start_offset), part.next_offset)
        for i, part in enumerate(parts)
    }


def _minus(delivery: Delivery, spans: list[wire.Span]) -> list[Delivery]:
    """What of a delivery lies outside ``spans``."""
    left = [(delivery.first, delivery.end)]
    for partition, first, end in spans:
        if partition == delivery.partition:
            left = [
                piece
                for a, b in left
                for piece in ((a, min(b, first)), (max(a, end), b))
                if piece[0] < piece[1]
            ]
    return [msgspec.structs.replace(delivery, first=a, end=b) for a, b in left]


def _records(stream: Stream, rows: list[wire.ParkedInfo]) -> Gathered:
    """The records of parked ranges; some may be damaged, or gone by retention."""
    found = Gathered()
    for row in rows:
        first = max(row.first, stream.partition(row.partition).start_offset)
        if first < row.end:
            with suppress(Corrupt):
                part = gather(stream, [Delivery(row.partition, first, row.end, 0, 0, 0)], _ROW)
                found.parts += part.parts
                found.partitions += part.partitions
    return found
