"""Requests about streams and groups as a whole."""

from __future__ import annotations

import msgspec

from nexo.brokers.stream.groups.status import RecordStatus
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_data, reply_ok
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.survey import StreamSurvey, SurveyAsk
from nexo.services.stream.admin import SharedGroupDescription, StreamAdmin, StreamDescription


class AdminRequests:
    """S_MAKE, S_DESCRIBE and the like."""

    def __init__(self, admin: StreamAdmin) -> None:
        self._admin = admin
        self.handlers: dict[int, Handler] = {
            Op.S_MAKE: self.make,
            Op.S_DESCRIBE: self.describe,
            Op.S_UPDATE: self.update,
            Op.S_LIST: self.names,
            Op.S_GROUPS: self.groups,
            Op.S_SURVEY: self.survey,
            Op.S_TIERED: self.tiered,
            Op.S_RETAIN: self.retain,
        }

    def make(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Create a stream."""
        ask = wire.unpack(wire.Make, payload)
        done = reply_data(peer, request_id, _pack_stream)
        self._admin.create(peer, ask.stream, ask.options, done, fresh=ask.fresh)

    def update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Change options."""
        ask = wire.unpack(wire.Make, payload)
        done = reply_data(peer, request_id, _pack_stream)
        self._admin.update(peer, ask.stream, ask.options, done)

    def describe(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a stream."""
        found = self._admin.describe(peer, wire.unpack(wire.StreamName, payload).stream)
        peer.data(request_id, _pack_stream(found))

    def names(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """List names in order."""
        ask = wire.unpack(wire.ListAsk, payload)
        found = self._admin.names(peer, ask.prefix, ask.after, ask.limit, tiering=ask.tiering)
        peer.data(request_id, wire.pack(found))

    def survey(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a page of all streams and groups with their lag."""
        ask = wire.unpack(SurveyAsk, payload)
        page = self._admin.survey(peer, ask.position, ask.limit)
        reply = msgspec.convert(page, StreamSurvey, from_attributes=True)
        peer.data(request_id, wire.pack(reply))

    def tiered(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Note what the lake holds."""
        ask = wire.unpack(wire.TieredTo, payload)
        done = reply_ok(peer, request_id)
        self._admin.tiered(peer, ask.stream, ask.partition, ask.offset, done, ask.created_ms)

    def retain(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Apply the limits now."""
        freed = self._admin.retain(peer, wire.unpack(wire.StreamName, payload).stream)
        peer.data(request_id, wire.pack(freed))

    def groups(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show the groups of a stream."""
        ask = wire.unpack(wire.GroupsAsk, payload)
        found = self._admin.groups(peer, ask.stream, ask.group, ask.record)
        peer.data(request_id, wire.pack([_group_info(group) for group in found]))


def _pack_stream(found: StreamDescription) -> bytes:
    info = wire.StreamInfo(
        name=found.name,
        created_ms=found.created_ms,
        options=msgspec.to_builtins(found.options),
        partitions=[
            msgspec.convert(part, wire.PartitionInfo, from_attributes=True)
            for part in found.partitions
        ],
        groups=found.groups,
    )
    return wire.pack(info)


def _group_info(found: SharedGroupDescription) -> wire.GroupInfo:
    partitions = [
        wire.PartitionProgress(
            floor=each.floor,
            next_offset=next_offset,
            lag=each.lag,
            in_flight=each.in_flight,
            to_redeliver=each.to_redeliver,
            parked=each.parked,
        )
        for each, next_offset in found.partitions
    ]
    return wire.GroupInfo(
        name=found.name,
        generation=found.generation,
        options=msgspec.to_builtins(found.options),
        consumers=found.consumers,
        lag=sum(each.lag for each in partitions),
        partitions=partitions,
        record=_record_state(found.record),
    )


def _record_state(found: RecordStatus | None) -> wire.RecordState | None:
    if found is None:
        return None
    return msgspec.convert(found, wire.RecordState, from_attributes=True)
