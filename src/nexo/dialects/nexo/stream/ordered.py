"""Requests of ordered groups; `nexo.protocol.stream_ordered` says what they look like."""

from __future__ import annotations

from nexo.dialects.nexo.handlers import Handler
from nexo.dialects.nexo.replies import calling, reply_ok, returning, waiting
from nexo.protocol import stream_ordered as wire
from nexo.protocol.ops import Op
from nexo.services.stream.groups.offsets import GroupOffsets
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.groups.overview import GroupOverview


def ordered_handlers(
    ordered: Ordered, offsets: GroupOffsets, overview: GroupOverview
) -> dict[int, Handler]:
    """Of the S_ORDERED_ commands, heartbeats and commits."""
    return {
        Op.S_ORDERED_JOIN: calling(wire.OrderedJoin, ordered.join),
        Op.S_ORDERED_LEAVE: calling(wire.OrderedLeave, ordered.leave, reply_ok),
        Op.S_HEARTBEAT: waiting(wire.Heartbeat, ordered.heartbeat),
        Op.S_COMMIT: calling(wire.Commit, offsets.commit, reply_ok),
        Op.S_COMMITTED: returning(wire.CommittedAsk, offsets.committed),
        Op.S_ORDERED_SEEK: calling(wire.OrderedSeek, offsets.seek),
        Op.S_ORDERED_GROUPS: returning(wire.OrderedAsk, overview.groups),
        Op.S_ORDERED_DELETE: calling(wire.OrderedName, ordered.delete, reply_ok),
    }
