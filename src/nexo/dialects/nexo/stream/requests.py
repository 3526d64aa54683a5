"""Our own stream requests: bytes to use cases of `nexo.services.stream` and back.

`nexo.protocol.stream`, `stream_publishing`, `stream_ordered`, `stream_transactions` and `xstreams`
say what they look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from nexo.brokers.stream.groups.flight import Refusal
from nexo.brokers.stream.producers import ProducerSession
from nexo.brokers.stream.publishing import Placed
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import (
    calling,
    reply_data,
    reply_headed,
    reply_ok,
    reply_packed,
    reply_parts,
    returning,
    waiting,
)
from nexo.dialects.nexo.stream.classic import ClassicRequests
from nexo.errors import Corrupt, InvalidInput, NexoError
from nexo.model import Buffer
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol import xstreams
from nexo.protocol.frames import FieldReader
from nexo.protocol.ops import Op
from nexo.protocol.server import SurveyAsk
from nexo.protocol.stream_publishing import PLACE, TxBegin, TxInputs, pack_refused, read_publish
from nexo.protocol.values import ValueType, check_value
from nexo.services.connection import Done
from nexo.services.stream.groups.shared import JoinedConsumer
from nexo.services.stream.groups.taking import TakenRecords
from nexo.services.stream.keyed import KeyedRecord
from nexo.services.stream.publish import PublishOutcome
from nexo.services.stream.reading import ReadFrom, RecordSlice
from nexo.services.stream.service import StreamService
from nexo.storage.header import Flags, claimed_flags, parse

_KAFKA = int(Flags.KAFKA)


def _read_batch(payload: memoryview) -> tuple[str, int, int, bytes]:
    """`read_publish`, for a batch of our own: Kafka's are checked where they come in."""
    found = read_publish(payload)
    if claimed_flags(found[3]) & _KAFKA:
        with suppress(Corrupt):  # the broker says so, to those who may publish
            parse(found[3])
            raise InvalidInput("a batch of Kafka's must be sent through Kafka's protocol")
    return found


class StreamRequests:
    """Handlers of every stream request, the existing client's included."""

    def __init__(self, service: StreamService) -> None:
        self._publishing = service.publishing
        self._flush = service.publishing.gathering.flush
        admin = self._admin = service.admin
        reading = self._reading = service.reading
        transact = self._transact = service.transact
        groups = self._groups = service.groups
        self._taking = service.taking
        messages = self._messages = service.xmessages
        keyed, parked, offsets = service.keyed, service.parked, service.offsets
        members, xgroups = service.ordered, service.xgroups
        pending = partial(xgroups.pending, limit=xstreams.PAGE)
        self.handlers: dict[int, Handler] = {
            **ClassicRequests(service).handlers,
            # producers
            Op.S_PUBLISH: self._publish,
            Op.S_PUBLISH_EACH: self._publish_each,
            Op.S_ADD: self._add,
            Op.S_PRODUCER: self._start_producer,
            # streams
            Op.S_MAKE: calling(wire.Make, admin.create),
            Op.S_DESCRIBE: returning(wire.StreamName, admin.describe),
            Op.S_UPDATE: self._update,
            Op.S_LIST: returning(wire.ListAsk, admin.names),
            Op.S_GROUPS: returning(wire.GroupsAsk, admin.groups),
            Op.S_SURVEY: self._survey,
            Op.S_TIERED: calling(wire.TieredTo, admin.tiered, reply_ok),
            Op.S_RETAIN: returning(wire.StreamName, admin.retain),
            Op.S_COMPACT: calling(wire.StreamName, keyed.compact),
            # readers without a group
            Op.S_READ: self._read,
            Op.S_READ_MANY: self._read_many,
            Op.S_OFFSETS_AT: calling(wire.OffsetsAt, reading.offsets_at),
            Op.S_GET: calling(wire.Get, keyed.get, _reply_record),
            Op.S_STATE: calling(wire.StateAsk, keyed.state, reply_headed),
            # transactions: each belongs to its connection
            Op.S_TX_BEGIN: returning(TxBegin, transact.begin),
            Op.S_TX_PUBLISH: self._tx_publish,
            Op.S_TX_INPUTS: returning(TxInputs, transact.add_inputs, reply_ok),
            Op.S_TX_COMMIT: self._tx_commit,
            Op.S_TX_ABORT: self._tx_abort,
            Op.S_TX_OUTCOME: self._tx_outcome,
            # shared groups
            Op.S_TAKE: self._take,
            Op.S_SETTLE: self._settle,
            Op.S_NEXT: self._next,
            Op.S_GROUP_JOIN: calling(
                wire.GroupJoin, groups.join, partial(reply_packed, encode=_joined)
            ),
            Op.S_GROUP_LEAVE: calling(wire.GroupLeave, groups.leave, reply_ok),
            Op.S_GROUP_SEEK: calling(wire.GroupSeek, groups.seek),
            Op.S_GROUP_DELETE: calling(wire.GroupName, groups.delete, reply_ok),
            Op.S_PARKED: calling(wire.ListParked, parked.show, reply_headed),
            Op.S_PARKED_SETTLE: calling(wire.ParkedSettle, parked.settle),
            # ordered groups
            Op.S_ORDERED_JOIN: calling(ordered.OrderedJoin, members.join),
            Op.S_ORDERED_LEAVE: calling(ordered.OrderedLeave, members.leave, reply_ok),
            Op.S_HEARTBEAT: waiting(ordered.Heartbeat, members.heartbeat),
            Op.S_COMMIT: calling(ordered.Commit, offsets.commit, reply_ok),
            Op.S_COMMITTED: returning(ordered.CommittedAsk, offsets.committed),
            Op.S_ORDERED_SEEK: calling(ordered.OrderedSeek, offsets.seek),
            Op.S_ORDERED_GROUPS: returning(ordered.OrderedAsk, service.overview.groups),
            Op.S_ORDERED_DELETE: calling(ordered.OrderedName, members.delete, reply_ok),
            # messages and groups of nexo.xstreams
            Op.S_X_ADD: self._x_add,
            Op.S_X_RANGE: returning(xstreams.RangeAsk, messages.range, reply_headed),
            Op.S_X_DELETE: self._x_delete,
            Op.S_X_TRIM: calling(xstreams.Trim, messages.trim),
            Op.S_X_GROUP: calling(xstreams.MakeGroup, xgroups.make_group),
            Op.S_X_READ: waiting(xstreams.ReadGroup, xgroups.read, reply_headed),
            Op.S_X_ACK: calling(xstreams.Ids, xgroups.ack),
            Op.S_X_PENDING: returning(xstreams.PendingAsk, pending),
            Op.S_X_CLAIM: calling(xstreams.XClaim, xgroups.claim, reply_headed),
            Op.S_X_RENEW: calling(xstreams.XRenew, xgroups.renew),
            Op.S_X_CONSUMER_DELETE: calling(xstreams.ConsumerName, xgroups.delete_consumer),
            Op.S_X_INFO: returning(xstreams.XName, xgroups.info),
        }
        for op, handler in self.handlers.items():
            if op not in (Op.S_ADD, Op.S_PUB):
                self.handlers[op] = partial(self._in_order, handler)

    def _in_order(self, handler: Handler, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Run a request after the records that its connection has published before (SPEC A3)."""
        self._flush()
        handler(peer, request_id, payload)

    # -- producers -------------------------------------------------------------------

    def _publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one batch."""
        name, partition, partitions, entry = _read_batch(payload)
        done = reply_data(peer, request_id, _pack_places)
        self._publishing.publish(peer, name, entry, done, partition, partitions)

    def _publish_each(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store the records of one batch that the stream takes."""
        name, partition, partitions, entry = _read_batch(payload)
        done = reply_data(peer, request_id, _pack_published)
        self._publishing.publish_fitting(peer, name, entry, done, partition, partitions)

    def _add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one plain record."""
        name, partition, partitions, value = read_publish(payload)
        check_value(value)
        stored = partial(_reply_place, peer, request_id)
        self._publishing.publish_one(peer, name, value[0], value[1:], stored, partition, partitions)

    def _start_producer(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Assign a producer id."""
        done: Done[ProducerSession] = reply_packed(peer, request_id)
        self._publishing.start_producer(peer, FieldReader(payload).text(), done)

    # -- streams ---------------------------------------------------------------------

    def _update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Change options."""
        ask = wire.unpack(wire.Make, payload)
        self._admin.update(peer, ask.stream, ask.options, reply_packed(peer, request_id))

    def _survey(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a page of all streams and groups with their lag."""
        ask = wire.unpack(SurveyAsk, payload)
        found = self._admin.survey(peer, ask.position, ask.limit)
        peer.data(request_id, wire.pack(found))

    # -- readers ---------------------------------------------------------------------

    def _read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from an offset on; wait for some at the end."""
        ask = wire.unpack(wire.Read, payload)
        place = ReadFrom(ask.stream, ask.partition, ask.offset, ask.created_ms)
        done = reply_parts(peer, request_id, _slice)
        self._reading.read(peer, request_id, [place], done, ask.max_bytes, ask.wait_ms)

    def _read_many(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from several places, each getting its share; wait for some."""
        ask = wire.unpack(wire.ReadMany, payload)
        places = [ReadFrom(*place, ask.created_ms.get(place[0], 0)) for place in ask.places]
        done = reply_parts(peer, request_id, _slices)
        self._reading.read(peer, request_id, places, done, ask.max_bytes, ask.wait_ms)

    # -- transactions ----------------------------------------------------------------

    def _tx_publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        number = reader.u64()
        name, partition, partitions, entry = _read_batch(reader.rest())
        done = reply_data(peer, request_id, _pack_places)
        self._transact.publish(peer, number, name, entry, done, partition, partitions)

    def _tx_commit(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        number = wire.unpack(int, payload)
        self._transact.commit(peer, number, reply_ok(peer, request_id))

    def _tx_abort(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        number = wire.unpack(int, payload)
        self._transact.abort(peer, number, reply_ok(peer, request_id))

    def _tx_outcome(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        number = wire.unpack(int, payload)
        self._transact.outcome(peer, request_id, number, reply_ok(peer, request_id))

    # -- groups ----------------------------------------------------------------------

    def _take(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(wire.Take, payload)
        self._start_take(peer, request_id, ask, reply_parts(peer, request_id, _taken))

    def _start_take(
        self, peer: Peer, request_id: int, ask: wire.Take, done: Done[TakenRecords]
    ) -> None:
        self._taking.take(
            peer, request_id, ask.stream, ask.group, ask.consumer, ask.limit, ask.wait_ms, done,
            max_bytes=ask.max_bytes, begins=ask.begins, ahead=ask.ahead,
        )  # fmt: skip

    def _next(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask, both = wire.unpack(wire.Next, payload), _SettledAndTaken(peer, request_id)
        try:
            self._groups.settle(peer, ask.settle, both.settled)
        except NexoError as error:
            both.settled(error)
        self._start_take(peer, request_id, ask.take, both.taken)

    def _settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        done = reply_packed(peer, request_id, _refused)
        self._groups.settle(peer, wire.unpack(wire.SettleRecords, payload), done)

    # -- nexo.xstreams -----------------------------------------------------------------

    def _x_add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask, value = wire.unpack_headed(xstreams.Add, payload)
        if not value or value[0] not in tuple(ValueType):
            raise InvalidInput("a message needs a value: a type byte and its content")
        done: Done[xstreams.Id] = reply_packed(peer, request_id)
        content = bytes(value[1:])
        self._messages.add(peer, ask.stream, value[0], content, ask.max_length, done)

    def _x_delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = wire.unpack(xstreams.Ids, payload)
        done = reply_packed(peer, request_id, int)
        self._messages.delete(peer, ask.stream, ask.ids, done)


def _reply_place(
    peer: Peer, request_id: int, error: NexoError | None, partition: int, offset: int
) -> None:
    if error is None:
        peer.data(request_id, PLACE.pack(partition, offset, 1))
    else:
        peer.fail(request_id, error)


def _pack_places(placed: list[Placed]) -> bytes:
    """Where records were stored, as `PLACE` each."""
    if len(placed) == 1:
        return _pack_place(placed[0])
    return b"".join(map(_pack_place, placed))


def _pack_place(placed: Placed) -> bytes:
    return PLACE.pack(*placed[:3])


def _pack_published(result: PublishOutcome) -> bytes:
    places = _pack_places(result.placed)
    if not result.refused:
        return places
    return places + pack_refused(result.max_message_bytes, result.refused)


def _slice(found: list[RecordSlice]) -> tuple[Buffer, ...]:
    [(*head, entries)] = found
    return wire.pack_headed(wire.ReadReply(*head)), *entries


def _slices(found: list[RecordSlice]) -> tuple[Buffer, ...]:
    heads = [each[:3] for each in found]
    batches = [number for number, each in enumerate(found) for _ in each.entries]
    head = wire.pack_headed(wire.ReadManyReply(heads, batches))
    return head, *[entry for each in found for entry in each.entries]


def _reply_record(peer: Peer, request_id: int) -> Done[KeyedRecord | None]:
    def done(found: KeyedRecord | NexoError | None) -> None:
        if isinstance(found, NexoError):
            peer.fail(request_id, found)
        elif found is None:
            peer.null(request_id)
        else:
            peer.data(request_id, wire.pack_headed(found.partition), *found.parts)

    return done


class _SettledAndTaken:
    """The two results of S_NEXT; whichever comes last sends the reply."""

    __slots__ = ("_peer", "_refused", "_request_id", "_taken")

    def __init__(self, peer: Peer, request_id: int) -> None:
        self._peer = peer
        self._request_id = request_id
        self._refused: list[wire.RefusedRange] | None = None
        self._taken: TakenRecords | NexoError | None = None

    def settled(self, result: list[Refusal] | NexoError) -> None:
        if isinstance(result, NexoError):
            self._refused = [wire.RefusedRange(0, 0, 0, result.code, result.message)]
        else:
            self._refused = _refused(result)
        self._reply()

    def taken(self, result: TakenRecords | NexoError) -> None:
        self._taken = result
        self._reply()

    def _reply(self) -> None:
        if self._taken is None or self._refused is None:
            return
        reply_parts(self._peer, self._request_id, partial(_taken, refused=self._refused))(
            self._taken
        )


def _taken(taken: TakenRecords, refused: Sequence[wire.RefusedRange] = ()) -> tuple[Buffer, ...]:
    rows = [(d.partition, d.first, d.end, d.attempt, d.expires_ms) for d in taken.deliveries]
    head = wire.TakeReply(taken.generation, rows, taken.found.partitions, list(refused))
    return wire.pack_headed(head), *taken.found.parts


def _joined(joined: JoinedConsumer) -> wire.GroupJoined:
    return msgspec.convert(joined, wire.GroupJoined, from_attributes=True)


def _refused(refusals: list[Refusal]) -> list[wire.RefusedRange]:
    return [
        wire.RefusedRange(r.partition, r.first, r.end, r.error.code, r.error.message)
        for r in refusals
    ]
