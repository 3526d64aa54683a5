"""Requests about streams and groups as a whole."""

from __future__ import annotations

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_ok, reply_packed, returning
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.survey import SurveyAsk
from nexo.services.stream.admin import StreamAdmin


class AdminRequests:
    """S_MAKE, S_DESCRIBE and the like."""

    def __init__(self, admin: StreamAdmin) -> None:
        self._admin = admin
        self.handlers: dict[int, Handler] = {
            Op.S_MAKE: calling(wire.Make, admin.create),
            Op.S_DESCRIBE: returning(wire.StreamName, admin.describe),
            Op.S_UPDATE: self.update,
            Op.S_LIST: returning(wire.ListAsk, admin.names),
            Op.S_GROUPS: returning(wire.GroupsAsk, admin.groups),
            Op.S_SURVEY: self.survey,
            Op.S_TIERED: calling(wire.TieredTo, admin.tiered, reply_ok),
            Op.S_RETAIN: returning(wire.StreamName, admin.retain),
        }

    def update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Change options."""
        ask = wire.unpack(wire.Make, payload)
        self._admin.update(peer, ask.stream, ask.options, reply_packed(peer, request_id))

    def survey(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a page of all streams and groups with their lag."""
        ask = wire.unpack(SurveyAsk, payload)
        peer.data(request_id, wire.pack(self._admin.survey(peer, ask.position, ask.limit)))
