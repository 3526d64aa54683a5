"""Requests about streams and groups as a whole."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import asdict

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_ok, reply_packed, returning
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.survey import StreamSurvey, SurveyAsk
from nexo.services.stream.admin import SharedGroupDescription, StreamAdmin, StreamDescription


class AdminRequests:
    """S_MAKE, S_DESCRIBE and the like."""

    def __init__(self, admin: StreamAdmin) -> None:
        self._admin = admin
        info = partial(reply_packed, encode=_stream_info)
        self.handlers: dict[int, Handler] = {
            Op.S_MAKE: calling(wire.Make, admin.create, info),
            Op.S_DESCRIBE: returning(wire.StreamName, admin.describe, info),
            Op.S_UPDATE: self.update,
            Op.S_LIST: returning(wire.ListAsk, admin.names),
            Op.S_GROUPS: returning(
                wire.GroupsAsk, admin.groups, partial(reply_packed, encode=_group_infos)
            ),
            Op.S_SURVEY: self.survey,
            Op.S_TIERED: calling(wire.TieredTo, admin.tiered, reply_ok),
            Op.S_RETAIN: returning(wire.StreamName, admin.retain),
        }

    def update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Change options."""
        ask = wire.unpack(wire.Make, payload)
        done = reply_packed(peer, request_id, _stream_info)
        self._admin.update(peer, ask.stream, ask.options, done)

    def survey(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a page of all streams and groups with their lag."""
        ask = wire.unpack(SurveyAsk, payload)
        page = self._admin.survey(peer, ask.position, ask.limit)
        reply = msgspec.convert(page, StreamSurvey, from_attributes=True)
        peer.data(request_id, wire.pack(reply))


def _stream_info(found: StreamDescription) -> wire.StreamInfo:
    return wire.StreamInfo(
        name=found.name,
        created_ms=found.created_ms,
        options=msgspec.to_builtins(found.options),
        partitions=msgspec.convert(
            found.partitions, list[wire.PartitionInfo], from_attributes=True
        ),
        groups=found.groups,
    )


def _group_infos(found: list[SharedGroupDescription]) -> list[wire.GroupInfo]:
    return [_group_info(group) for group in found]


def _group_info(found: SharedGroupDescription) -> wire.GroupInfo:
    partitions = [
        wire.PartitionProgress(**asdict(each), next_offset=next_offset)
        for each, next_offset in found.partitions
    ]
    return wire.GroupInfo(
        name=found.name,
        generation=found.generation,
        options=msgspec.to_builtins(found.options),
        consumers=found.consumers,
        lag=sum(each.lag for each in partitions),
        partitions=partitions,
        record=msgspec.convert(found.record, wire.RecordState | None, from_attributes=True),
    )
