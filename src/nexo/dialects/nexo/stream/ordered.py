"""Requests of ordered groups; `nexo.protocol.stream_ordered` says what they look like."""

from __future__ import annotations

from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_ok, reply_packed, returning, waiting
from nexo.protocol import stream_ordered as wire
from nexo.protocol.messages import unpack
from nexo.protocol.ops import Op
from nexo.services.stream.groups.offsets import GroupOffsets
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.groups.overview import GroupOverview


class OrderedRequests:
    """Handlers of the S_ORDERED_ commands, heartbeats and commits."""

    def __init__(self, ordered: Ordered, offsets: GroupOffsets, overview: GroupOverview) -> None:
        self._offsets = offsets
        self.handlers: dict[int, Handler] = {
            Op.S_ORDERED_JOIN: calling(wire.OrderedJoin, ordered.join),
            Op.S_ORDERED_LEAVE: calling(wire.OrderedLeave, ordered.leave, reply_ok),
            Op.S_HEARTBEAT: waiting(wire.Heartbeat, ordered.heartbeat),
            Op.S_COMMIT: self.commit,
            Op.S_COMMITTED: returning(wire.CommittedAsk, offsets.committed),
            Op.S_ORDERED_SEEK: self.seek,
            Op.S_ORDERED_GROUPS: returning(wire.OrderedAsk, overview.groups),
            Op.S_ORDERED_DELETE: calling(wire.OrderedName, ordered.delete, reply_ok),
        }

    def commit(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Commit, payload)
        self._offsets.commit(
            peer,
            ask.group,
            [OffsetCommit(*row) for row in ask.offsets],
            reply_ok(peer, request_id),
            member=ask.member,
            generation=ask.generation,
            rewind=ask.rewind,
        )

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedSeek, payload)
        offsets = [OffsetCommit(*row) for row in ask.offsets]
        self._offsets.seek(peer, ask.group, offsets, reply_packed(peer, request_id, int))
