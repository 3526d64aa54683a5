"""Groups as `nexo.xstreams` sees them: named consumers that keep what they were given."""

from __future__ import annotations

from typing import Any

from nexo.brokers.stream.delivery import Gathered, gather
from nexo.brokers.stream.groups.claims import Claims
from nexo.brokers.stream.groups.flight import Delivery
from nexo.brokers.stream.groups.lane import NO_END
from nexo.brokers.stream.groups.records import CountedSpan, SharedOptions
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.messages import MessageLog
from nexo.brokers.stream.registry import Stream
from nexo.errors import Conflict, InvalidInput, NexoError
from nexo.model import check_name
from nexo.protocol import xstreams as wire
from nexo.protocol.messages import pack, pack_headed, unpack
from nexo.protocol.ops import Op
from nexo.protocol.stream import DEFAULT_BYTES
from nexo.services.service import Handler, Peer
from nexo.services.stream.bounds import MAX_WAIT_MS
from nexo.services.stream.core import Core
from nexo.services.stream.publish import Publishing
from nexo.services.stream.waits import Wait
from nexo.services.stream.xmessages import XMessages, following, spans_of


class XGroups:
    """All requests of `nexo.xstreams.NexoStreamBroker`."""

    def __init__(self, core: Core, publishing: Publishing) -> None:
        self._core = core
        self._messages = XMessages(core, publishing)
        self.handlers: dict[int, Handler] = {
            **self._messages.handlers,
            Op.S_X_GROUP: self.make_group,
            Op.S_X_READ: self.read,
            Op.S_X_ACK: self.ack,
            Op.S_X_PENDING: self.pending,
            Op.S_X_CLAIM: self.claim,
            Op.S_X_RENEW: self.renew,
            Op.S_X_CONSUMER_DELETE: self.delete_consumer,
            Op.S_X_INFO: self.info,
        }

    # -- finding -----------------------------------------------------------------------

    def _find(self, stream: str, group: str) -> tuple[Stream, SharedGroup, Claims]:
        found, shared = self._core.engine.find(stream, group)
        if shared.claims is None:
            raise Conflict(
                f"group {group!r} of stream {stream!r} has leases that expire: use "
                f"client.stream, or another group"
            )
        return found, shared, shared.claims

    def _reply_when_safe(self, peer: Peer, request_id: int, stream: Stream, reply: Any) -> None:
        mode = stream.options.persistence
        self._core.data_when_safe(mode, peer, request_id, pack(reply))

    # -- groups ------------------------------------------------------------------------

    def make_group(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Create a group unless it is there."""
        ask = unpack(wire.MakeGroup, payload)
        check_name(ask.group, "group")
        stream = self._messages.made(ask.stream)
        log = self._messages.log(stream)
        is_new = ask.group not in stream.groups
        if is_new:
            at = log.end if ask.start is None else log.offset_from(following(ask.start))
            behind = ask.start if ask.start is not None and log.is_ahead(ask.start) else None
            options = SharedOptions(release="claim")
            self._core.engine.make_group(stream, ask.group, {0: at}, options, behind)
        else:
            self._find(ask.stream, ask.group)
        self._reply_when_safe(peer, request_id, stream, is_new)

    def delete_consumer(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Forget a consumer and what it holds."""
        ask = unpack(wire.ConsumerName, payload)
        stream, group, claims = self._find(ask.stream, ask.group)
        count = claims.dismiss(ask.consumer)
        self._after(stream, ask.group, group)
        self._reply_when_safe(peer, request_id, stream, count)

    def info(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The stream's length and its groups."""
        ask = unpack(wire.Name, payload)
        stream = self._core.engine.streams.get(ask.stream)
        log = self._messages.log(stream)
        self._messages.pass_over(stream, log)
        groups = [
            _group_info(log, name, group.claims)
            for name, group in sorted(stream.groups.items())
            if group.claims is not None
        ]
        peer.data(request_id, pack(wire.Info(len(log), groups)))

    # -- consuming ---------------------------------------------------------------------

    def read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Deliver new messages; wait for some if there are none."""
        ask = unpack(wire.ReadGroup, payload)
        _at_least_one(ask.count)
        stream, _, _ = self._find(ask.stream, ask.group)

        def attempt() -> bool:
            return self._deliver(peer, request_id, stream, ask)

        def give_up() -> None:
            peer.data(request_id, pack_headed(wire.Messages([])))

        if attempt():
            return
        if ask.wait_ms <= 0:
            give_up()
            return
        due_ms = self._core.now_ms + min(ask.wait_ms, MAX_WAIT_MS)
        # A channel each: one who may have no more must not stand in the way of the others.
        channel = f"{ask.group}\n{ask.consumer}"
        self._core.waits.add(
            Wait(peer, request_id, [(stream.id, channel)], due_ms, attempt, give_up)
        )
        self._core.runtime.wake_at(due_ms)

    def _deliver(self, peer: Peer, request_id: int, stream: Stream, ask: wire.ReadGroup) -> bool:
        """Answer with new messages if there are any."""
        _, group, claims = self._find(ask.stream, ask.group)
        log, now_ms = self._messages.log(stream), self._core.now_ms
        if claims.behind is not None:
            self._messages.pass_over(stream, log)
        while True:
            end = log.fitting(claims.position(0), ask.count, DEFAULT_BYTES)
            found = claims.deliver(ask.consumer, ask.count, [end], now_ms, ask.max_pending)
            self._core.changed(stream, ask.group, group)
            if not found:
                return False
            parts = gather(stream, found, NO_END)
            if parts.gaps:
                group.skip(parts.gaps)
            if parts.parts:
                break
        spans = [(each.first, each.end, each.attempt) for each in found]
        self._send_when_safe(peer, request_id, stream, spans, parts)
        return True

    def _send_when_safe(
        self,
        peer: Peer,
        request_id: int,
        stream: Stream,
        spans: list[tuple[int, int, int]],
        found: Gathered,
    ) -> None:
        """Who holds what must survive before it is told."""
        head = pack_headed(wire.Messages(spans))

        def safe(error: NexoError | None) -> None:
            if error is not None:
                peer.fail(request_id, error)
            else:
                peer.data(request_id, head, *found.parts)

        self._core.when_safe(stream.options.persistence, safe)

    def ack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Finish messages, whoever holds them."""
        ask = unpack(wire.Ids, payload)
        stream, group, claims = self._find(ask.stream, ask.group)
        count = claims.ack(spans_of(self._messages.log(stream).genuine(ask.ids)))
        self._after(stream, ask.group, group)
        self._reply_when_safe(peer, request_id, stream, count)

    def pending(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """A page of what is held."""
        ask = unpack(wire.PendingAsk, payload)
        stream, _, claims = self._find(ask.stream, ask.group)
        rows = [
            (offset, lease)
            for _, first, end, lease in claims.held(ask.consumer)
            for offset in range(max(first, ask.offset), end)
        ][: wire.PAGE]
        now_ms, log = self._core.now_ms, self._messages.log(stream)
        stamps = log.timestamps([offset for offset, _ in rows])
        reply = [
            wire.Pending(
                stamps.get(offset, 0), offset, lease.member.name,
                max(0, now_ms - lease.since_ms), lease.attempt,
            )
            for offset, lease in rows
        ]  # fmt: skip
        peer.data(request_id, pack(reply))

    def claim(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Deliver to a consumer what another, or it, has held for long."""
        ask = unpack(wire.Claim, payload)
        _at_least_one(ask.count)
        stream, group, claims = self._find(ask.stream, ask.group)
        now_ms = self._core.now_ms
        stale = claims.stale(ask.min_idle_ms, ask.count, now_ms)
        parts = gather(stream, [_as_delivery(span) for span in stale], DEFAULT_BYTES)
        if parts.unsent:
            first_unsent = min(first for _, first, _ in parts.unsent)
            stale = _before(stale, first_unsent)
        claims.take_over(ask.consumer, stale, now_ms)
        if parts.gaps:
            group.skip(parts.gaps)
        self._core.changed(stream, ask.group, group)
        spans = [(first, end, attempt) for _, first, end, attempt in stale]
        self._send_when_safe(peer, request_id, stream, spans, parts)

    def renew(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Let the idle time of what a consumer holds start anew."""
        ask = unpack(wire.Renew, payload)
        stream, group, claims = self._find(ask.stream, ask.group)
        offsets = self._messages.log(stream).genuine(ask.ids)
        held = claims.renew(ask.consumer, spans_of(offsets), self._core.now_ms)
        self._core.changed(stream, ask.group, group)
        kept = {offset for _, first, end in held for offset in range(first, end)}
        still = [each for each in dict.fromkeys(ask.ids) if each[1] in kept]
        self._reply_when_safe(peer, request_id, stream, still)

    def _after(self, stream: Stream, name: str, group: SharedGroup) -> None:
        self._core.changed(stream, name, group)
        self._core.touched(stream)


def _at_least_one(count: int) -> None:
    if count < 1:
        raise InvalidInput(f"count = {count}: must be at least 1")


def _as_delivery(span: CountedSpan) -> Delivery:
    partition, first, end, attempt = span
    return Delivery(partition, first, end, attempt, 0, 0)


def _before(spans: list[CountedSpan], offset: int) -> list[CountedSpan]:
    """What of ascending spans lies before an offset."""
    return [
        (partition, first, min(end, offset), attempt)
        for partition, first, end, attempt in spans
        if first < offset
    ]


def _group_info(log: MessageLog, name: str, claims: Claims) -> wire.Group:
    consumers = sorted(claims.members.values(), key=lambda keeper: keeper.name)
    return wire.Group(
        name,
        claims.behind or log.id_at(claims.position(0) - 1),
        sum(keeper.held for keeper in consumers),
        claims.unread([log.end]),
        claims.trimmed_unread,
        [wire.Consumer(keeper.name, keeper.held, keeper.seen_ms) for keeper in consumers],
    )
