"""Requests of shared groups; `nexo.protocol.stream` says what they look like."""

from __future__ import annotations

from nexo.brokers.stream.groups.flight import Refusal
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_ok, reply_packed
from nexo.errors import NexoError
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.stream.groups.parked import ParkedRecords, ParkedService
from nexo.services.stream.groups.shared import (
    Groups,
    JoinedConsumer,
    RecordSettlement,
    TakenRecords,
)


class GroupRequests:
    """Handlers of the S_GROUP_ and S_PARKED commands, S_TAKE and S_SETTLE."""

    def __init__(self, groups: Groups, parked: ParkedService) -> None:
        self._groups = groups
        self._parked = parked
        self.handlers: dict[int, Handler] = {
            Op.S_TAKE: self.take,
            Op.S_SETTLE: self.settle,
            Op.S_GROUP_JOIN: self.join,
            Op.S_GROUP_LEAVE: self.leave,
            Op.S_GROUP_SEEK: self.seek,
            Op.S_GROUP_DELETE: self.delete,
            Op.S_PARKED: self.show_parked,
            Op.S_PARKED_SETTLE: self.settle_parked,
        }

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.GroupJoin, payload)
        self._groups.join(
            peer,
            ask.stream,
            ask.group,
            reply_packed(peer, request_id, _joined),
            options=ask.options,
            start=ask.start,
            start_ms=ask.start_ms,
            reports_starts=ask.reports_starts,
        )

    def leave(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.GroupLeave, payload)
        done = reply_ok(peer, request_id)
        self._groups.leave(peer, ask.stream, ask.group, ask.consumer, done, unstarted=ask.unstarted)

    def take(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.Take, payload)

        def done(taken: TakenRecords | NexoError) -> None:
            if isinstance(taken, NexoError):
                peer.fail(request_id, taken)
                return
            rows = [
                (d.partition, d.first, d.end, d.attempt, d.expires_ms) for d in taken.deliveries
            ]
            head = wire.TakeReply(taken.generation, rows, taken.found.partitions)
            peer.data(request_id, wire.pack_headed(head), *taken.found.parts)

        self._groups.take(
            peer,
            request_id,
            ask.stream,
            ask.group,
            ask.consumer,
            ask.limit,
            ask.wait_ms,
            done,
            max_bytes=ask.max_bytes,
            begins=ask.begins,
        )

    def settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.SettleRecords, payload)
        said = RecordSettlement(
            ask.consumer,
            ask.generation,
            ask.verb,
            ask.spans,
            ask.delay_ms,
            ask.reason,
            ask.begins,
        )
        done = reply_packed(peer, request_id, _refused)
        self._groups.settle(peer, ask.stream, ask.group, said, done)

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.GroupSeek, payload)
        done = reply_packed(peer, request_id, int)
        self._groups.seek(peer, ask.stream, ask.group, done, to=ask.to, to_ms=ask.to_ms)

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.GroupName, payload)
        self._groups.delete(peer, ask.stream, ask.group, reply_ok(peer, request_id))

    def show_parked(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.ListParked, payload)

        def done(parked: ParkedRecords | NexoError) -> None:
            if isinstance(parked, NexoError):
                peer.fail(request_id, parked)
            else:
                head = wire.pack_headed(_parked(parked))
                peer.data(request_id, head, *parked.found.parts)

        self._parked.show(peer, ask.stream, ask.group, done, limit=ask.limit, skip=ask.skip)

    def settle_parked(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.ParkedSettle, payload)
        done = reply_packed(peer, request_id, int)
        self._parked.settle(peer, ask.stream, ask.group, ask.verb, ask.spans, done)


def _joined(joined: JoinedConsumer) -> wire.GroupJoined:
    return wire.GroupJoined(
        consumer=joined.consumer, generation=joined.generation, ack_wait_ms=joined.ack_wait_ms
    )


def _refused(refusals: list[Refusal]) -> list[wire.RefusedRange]:
    return [
        wire.RefusedRange(r.partition, r.first, r.end, r.error.code, r.error.message)
        for r in refusals
    ]


def _parked(parked: ParkedRecords) -> wire.ParkedList:
    rows = [
        wire.ParkedInfo(
            row.partition, row.first, row.end, row.parking.deliveries, row.parking.parked_ms,
            row.parking.reason,
        )
        for row in parked.rows
    ]  # fmt: skip
    return wire.ParkedList(rows, parked.found.partitions)
