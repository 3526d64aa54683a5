"""Requests of `nexo.xstreams`; `nexo.protocol.xstreams` says what they look like."""

from __future__ import annotations

from functools import partial

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_headed, reply_packed, returning, waiting
from nexo.errors import InvalidInput
from nexo.protocol import xstreams as wire
from nexo.protocol.messages import unpack, unpack_headed
from nexo.protocol.ops import Op
from nexo.protocol.values import ValueType
from nexo.services.connection import Done
from nexo.services.stream.groups.xgroups import XGroups
from nexo.services.stream.groups.xmessages import XMessages


class XRequests:
    """Handlers of the S_X_ commands."""

    def __init__(self, messages: XMessages, groups: XGroups) -> None:
        self._messages = messages
        self.handlers: dict[int, Handler] = {
            Op.S_X_ADD: self.add,
            Op.S_X_RANGE: returning(wire.RangeAsk, messages.range, reply_headed),
            Op.S_X_DELETE: self.delete,
            Op.S_X_TRIM: calling(wire.Trim, messages.trim),
            Op.S_X_GROUP: calling(wire.MakeGroup, groups.make_group),
            Op.S_X_READ: waiting(wire.ReadGroup, groups.read, reply_headed),
            Op.S_X_ACK: calling(wire.Ids, groups.ack),
            Op.S_X_PENDING: returning(wire.PendingAsk, partial(groups.pending, limit=wire.PAGE)),
            Op.S_X_CLAIM: calling(wire.XClaim, groups.claim, reply_headed),
            Op.S_X_RENEW: calling(wire.XRenew, groups.renew),
            Op.S_X_CONSUMER_DELETE: calling(wire.ConsumerName, groups.delete_consumer),
            Op.S_X_INFO: returning(wire.XName, groups.info),
        }

    def add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask, value = unpack_headed(wire.Add, payload)
        if not value or value[0] not in tuple(ValueType):
            raise InvalidInput("a message needs a value: a type byte and its content")
        done: Done[wire.Id] = reply_packed(peer, request_id)
        self._messages.add(peer, ask.stream, value[0], bytes(value[1:]), ask.max_length, done)

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Ids, payload)
        self._messages.delete(peer, ask.stream, ask.ids, reply_packed(peer, request_id, int))
