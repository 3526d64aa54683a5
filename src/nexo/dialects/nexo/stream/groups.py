"""Requests of shared groups; `nexo.protocol.stream` says what they look like."""

from __future__ import annotations

from functools import partial

import msgspec

from nexo.brokers.stream.groups.flight import Refusal
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import (
    calling,
    reply_headed,
    reply_ok,
    reply_packed,
    reply_parts,
)
from nexo.model import Buffer
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.stream.groups.parked import ParkedService
from nexo.services.stream.groups.shared import Groups, JoinedConsumer, TakenRecords


class GroupRequests:
    """Handlers of the S_GROUP_ and S_PARKED commands, S_TAKE and S_SETTLE."""

    def __init__(self, groups: Groups, parked: ParkedService) -> None:
        self._groups = groups
        self.handlers: dict[int, Handler] = {
            Op.S_TAKE: self.take,
            Op.S_SETTLE: self.settle,
            Op.S_GROUP_JOIN: calling(
                wire.GroupJoin, groups.join, partial(reply_packed, encode=_joined)
            ),
            Op.S_GROUP_LEAVE: calling(wire.GroupLeave, groups.leave, reply_ok),
            Op.S_GROUP_SEEK: calling(wire.GroupSeek, groups.seek),
            Op.S_GROUP_DELETE: calling(wire.GroupName, groups.delete, reply_ok),
            Op.S_PARKED: calling(wire.ListParked, parked.show, reply_headed),
            Op.S_PARKED_SETTLE: calling(wire.ParkedSettle, parked.settle),
        }

    def take(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        said = wire.unpack(wire.Take, payload)
        self._groups.take(
            peer, request_id, said.stream, said.group, said.consumer, said.limit, said.wait_ms,
            reply_parts(peer, request_id, _taken), max_bytes=said.max_bytes, begins=said.begins,
        )  # fmt: skip

    def settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        done = reply_packed(peer, request_id, _refused)
        self._groups.settle(peer, wire.unpack(wire.SettleRecords, payload), done)


def _taken(taken: TakenRecords) -> tuple[Buffer, ...]:
    rows = [(d.partition, d.first, d.end, d.attempt, d.expires_ms) for d in taken.deliveries]
    head = wire.TakeReply(taken.generation, rows, taken.found.partitions)
    return wire.pack_headed(head), *taken.found.parts


def _joined(joined: JoinedConsumer) -> wire.GroupJoined:
    return msgspec.convert(joined, wire.GroupJoined, from_attributes=True)


def _refused(refusals: list[Refusal]) -> list[wire.RefusedRange]:
    return [
        wire.RefusedRange(r.partition, r.first, r.end, r.error.code, r.error.message)
        for r in refusals
    ]
