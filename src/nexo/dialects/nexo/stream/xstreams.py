"""Requests of `nexo.xstreams`; `nexo.protocol.xstreams` says what they look like."""

from __future__ import annotations

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_packed
from nexo.errors import InvalidInput, NexoError
from nexo.protocol import xstreams as wire
from nexo.protocol.messages import pack, pack_headed, unpack, unpack_headed
from nexo.protocol.ops import Op
from nexo.protocol.values import ValueType
from nexo.services.connection import Done
from nexo.services.stream.groups.xgroups import XGroups, XGroupView, XMessagesFound
from nexo.services.stream.groups.xmessages import XMessages


class XRequests:
    """Handlers of the S_X_ commands."""

    def __init__(self, messages: XMessages, groups: XGroups) -> None:
        self._messages = messages
        self._groups = groups
        self.handlers: dict[int, Handler] = {
            Op.S_X_ADD: self.add,
            Op.S_X_RANGE: self.range,
            Op.S_X_DELETE: self.delete,
            Op.S_X_TRIM: self.trim,
            Op.S_X_GROUP: self.make_group,
            Op.S_X_READ: self.read,
            Op.S_X_ACK: self.ack,
            Op.S_X_PENDING: self.pending,
            Op.S_X_CLAIM: self.claim,
            Op.S_X_RENEW: self.renew,
            Op.S_X_CONSUMER_DELETE: self.delete_consumer,
            Op.S_X_INFO: self.info,
        }

    # -- messages ----------------------------------------------------------------------

    def add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask, value = unpack_headed(wire.Add, payload)
        if not value or value[0] not in tuple(ValueType):
            raise InvalidInput("a message needs a value: a type byte and its content")
        done: Done[wire.Id] = reply_packed(peer, request_id)
        self._messages.add(peer, ask.stream, value[0], bytes(value[1:]), ask.max_length, done)

    def range(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.RangeAsk, payload)
        page = self._messages.range(peer, ask.stream, ask.first, ask.last, ask.count, ask.offset)
        head = pack_headed(wire.XPage(page.first, page.end, page.following))
        peer.data(request_id, head, *page.entries)

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Ids, payload)
        self._messages.delete(peer, ask.stream, ask.ids, reply_packed(peer, request_id, int))

    def trim(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Trim, payload)
        done = reply_packed(peer, request_id, int)
        self._messages.trim(peer, ask.stream, ask.max_length, done)

    # -- groups ------------------------------------------------------------------------

    def make_group(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.MakeGroup, payload)
        done = reply_packed(peer, request_id, bool)
        self._groups.make_group(peer, ask.stream, ask.group, ask.start, done)

    def delete_consumer(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.ConsumerName, payload)
        done = reply_packed(peer, request_id, int)
        self._groups.delete_consumer(peer, ask.stream, ask.group, ask.consumer, done)

    def info(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.XName, payload)
        length, groups = self._groups.info(peer, ask.stream)
        peer.data(request_id, pack(wire.XInfo(length, [_group(group) for group in groups])))

    def read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.ReadGroup, payload)
        self._groups.read(
            peer,
            request_id,
            ask.stream,
            ask.group,
            ask.consumer,
            ask.count,
            ask.wait_ms,
            ask.max_pending,
            _reply_messages(peer, request_id),
        )

    def ack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Ids, payload)
        done = reply_packed(peer, request_id, int)
        self._groups.ack(peer, ask.stream, ask.group, ask.ids, done)

    def pending(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.PendingAsk, payload)
        rows = self._groups.pending(
            peer, ask.stream, ask.group, ask.consumer, ask.offset, wire.PAGE
        )
        reply = [
            wire.XPending(*row.id, row.consumer, row.idle_ms, row.delivery_count) for row in rows
        ]
        peer.data(request_id, pack(reply))

    def claim(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.XClaim, payload)
        done = _reply_messages(peer, request_id)
        self._groups.claim(
            peer, ask.stream, ask.group, ask.consumer, ask.min_idle_ms, ask.count, done
        )

    def renew(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.XRenew, payload)
        done: Done[list[wire.Id]] = reply_packed(peer, request_id)
        self._groups.renew(peer, ask.stream, ask.group, ask.consumer, ask.ids, done)


def _reply_messages(peer: Peer, request_id: int) -> Done[XMessagesFound]:
    def done(messages: XMessagesFound | NexoError) -> None:
        if isinstance(messages, NexoError):
            peer.fail(request_id, messages)
        else:
            head = pack_headed(wire.XDelivered(messages.ranges))
            peer.data(request_id, head, *messages.found.parts)

    return done


def _group(view: XGroupView) -> wire.XGroup:
    return wire.XGroup(
        view.name,
        view.last_id,
        view.pending,
        view.lag,
        view.trimmed_unread,
        [wire.XConsumer(each.name, each.pending, each.seen_ms) for each in view.consumers],
    )
