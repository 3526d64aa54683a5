"""The existing client's stream commands: sequences from 1, one record at a time.

A stream of one partition, all that client creates, has sequence = offset + 1. To let it use
any other stream too, a sequence is ``offset * partitions + partition + 1``. Its error texts
are part of the protocol, so they are raised as they stand there.
"""

from __future__ import annotations

from struct import Struct
from typing import Literal

import msgspec

from nexo.batch import decode, entries
from nexo.brokers.stream.delivery import Gathered
from nexo.brokers.stream.groups.flight import Delivery
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.registry import Stream
from nexo.errors import InvalidOption, NotFound, ProtocolError
from nexo.model import check_name
from nexo.protocol import stream as wire
from nexo.protocol.frames import Reader, pack_str, pack_u32
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import ROUTE
from nexo.services.service import Handler, Peer
from nexo.services.stream.admin import Admin
from nexo.services.stream.bounds import positions
from nexo.services.stream.core import Core
from nexo.services.stream.groups import Groups
from nexo.services.stream.polling import Poll
from nexo.services.stream.publish import Publishing

_SEQUENCE = Struct(">Q")
_RECORD = Struct(">QQIB")
_JOINED = Struct(">QQ")


class Retention(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The retention options of S_CREATE."""

    max_age_ms: int | None = None
    max_bytes: int | None = None


class CreateOptions(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The options of S_CREATE."""

    retention: Retention | None = None

    def given(self) -> dict[str, object]:
        """In our own words."""
        kept = self.retention or Retention()
        found = {
            "retention_ms": kept.max_age_ms,
            "retention_bytes": kept.max_bytes,
        }
        return {name: value for name, value in found.items() if value is not None}


class ClassicRequests:
    """Handlers of the existing client's S_ commands."""

    def __init__(self, core: Core, publishing: Publishing, groups: Groups, admin: Admin) -> None:
        self._core = core
        self._publishing = publishing
        self._groups = groups
        self._admin = admin
        self.handlers: dict[int, Handler] = {
            Op.S_CREATE: self.create,
            Op.S_PUB: self.publish,
            Op.S_FETCH: self.fetch,
            Op.S_JOIN: self.join,
            Op.S_ACK: self.ack,
            Op.S_NACK: self.nack,
            Op.S_EXISTS: self.exists,
            Op.S_DELETE: self.delete,
            Op.S_SEEK: self.seek,
            Op.S_LEAVE: self.leave,
        }

    # -- streams ---------------------------------------------------------------------

    def create(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Create a stream; an existing one keeps its options."""
        reader = Reader(payload)
        name, options = reader.text(), _options(reader.text())
        core = self._core
        if name not in core.engine.streams:
            core.runtime.check_writable()
            core.engine.create(name, options.given(), core.now_ms)
        mode = core.engine.streams.get(name).options.persistence
        core.ok_when_safe(mode, peer, request_id)

    def exists(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """OK, or an error."""
        self._stream(Reader(payload).text(), "Stream not found")
        peer.ok(request_id)

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Delete a stream and its groups."""
        name = Reader(payload).text()
        self._stream(name, "Stream not found")
        self._admin.delete(peer, request_id, name)

    def publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one value; the reply is its sequence."""
        reader = Reader(payload)
        stream = self._stream(reader.text())
        value = bytes(reader.rest())
        placed = self._publishing.store_one(stream, ROUTE, value)
        reply = _SEQUENCE.pack(_sequence(stream, placed.partition, placed.offset))
        self._publishing.reply(stream, [placed], len(value), peer, request_id, reply)

    # -- groups ----------------------------------------------------------------------

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Join a group: the group's name comes first here."""
        reader = Reader(payload)
        name, stream = check_name(reader.text(), "group"), self._stream(reader.text())
        group = self._groups.ensure(stream, name, {})
        consumer = self._groups.enter(peer, stream, name)
        reply = _JOINED.pack(group.floor(0), group.generation) + pack_str(consumer)
        self._core.data_when_safe(stream.options.persistence, peer, request_id, reply)

    def leave(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Leave a group."""
        stream, name, group, consumer, generation = self._member(Reader(payload))
        group.check(consumer, generation)
        self._groups.exit(peer, stream, name, consumer)
        self._core.ok_when_safe(stream.options.persistence, peer, request_id)

    def fetch(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Lease records; wait for some if there are none."""
        reader = Reader(payload)
        stream, name, group, consumer, generation = self._member(reader)
        limit, wait_ms = reader.u32(), reader.u32()

        def attempt() -> bool:
            group.check(consumer, generation)
            return self._answer(peer, request_id, stream, name, consumer, max(1, limit))

        def give_up() -> None:
            peer.data(request_id, pack_u32(0))

        poll = Poll(peer, request_id, stream, name, attempt, give_up)
        self._groups.polling.start(poll, wait_ms)

    def _answer(
        self, peer: Peer, request_id: int, stream: Stream, name: str, consumer: str, limit: int
    ) -> bool:
        deliveries, found = self._groups.leasing.lease(
            stream, name, stream.group(name), consumer, limit, wire.DEFAULT_BYTES
        )
        if not deliveries:
            return False
        peer.data(request_id, *_records(stream, deliveries, found))
        return True

    def ack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Finish one record."""
        self._settle(peer, request_id, payload, "ack")

    def nack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Give one record up: it is redelivered at once."""
        self._settle(peer, request_id, payload, "nack")

    def _settle(self, peer: Peer, request_id: int, payload: memoryview, verb: wire.Verb) -> None:
        reader = Reader(payload)
        stream, name, _, consumer, generation = self._member(reader)
        partition, offset = _place(stream, reader.u64())
        spans = [(partition, offset, offset + 1)]
        ask = wire.Settle(stream.name, name, consumer, generation, verb, spans)
        refusals = self._groups.apply(stream, ask)
        if refusals:
            raise refusals[0].error
        self._core.ok_when_safe(stream.options.persistence, peer, request_id)

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Reset a group to the beginning or the end."""
        reader = Reader(payload)
        stream, name = self._stream(reader.text()), reader.text()
        starts = positions(self._core.replay, stream, _target(reader.u8()))
        self._groups.reset(stream, name, starts)
        self._core.ok_when_safe(stream.options.persistence, peer, request_id)

    # -- fields ----------------------------------------------------------------------

    def _stream(self, name: str, text: str = "Topic not found") -> Stream:
        if name not in self._core.engine.streams:
            raise NotFound(text)
        return self._core.engine.streams.get(name)

    def _member(self, reader: Reader) -> tuple[Stream, str, SharedGroup, str, int]:
        stream, name = self._stream(reader.text()), reader.text()
        if name not in stream.groups:
            raise NotFound("Group not found")
        return stream, name, stream.groups[name], reader.text(), reader.u64()


def _options(text: str) -> CreateOptions:
    try:
        return msgspec.json.decode(text or "{}", type=CreateOptions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOption(f"Invalid JSON options: {error}") from None


def _target(number: int) -> Literal["beginning", "end"]:
    match number:
        case 0:
            return "beginning"
        case 1:
            return "end"
    raise ProtocolError(f"S_SEEK goes to 0, the beginning, or 1, the end, not to {number}")


def _sequence(stream: Stream, partition: int, offset: int) -> int:
    return offset * stream.options.partitions + partition + 1


def _place(stream: Stream, sequence: int) -> tuple[int, int]:
    """Partition and offset of a sequence."""
    if not sequence:
        raise ProtocolError("sequences start at 1")
    offset, partition = divmod(sequence - 1, stream.options.partitions)
    return partition, offset


def _records(stream: Stream, deliveries: list[Delivery], found: Gathered) -> list[bytes]:
    """The records of the deliveries, each with its sequence, timestamp and value."""
    leased = {(d.partition, offset) for d in deliveries for offset in range(d.first, d.end)}
    parts = [b""]
    batches = map(decode, entries(b"".join(found.parts)))
    for partition, batch in zip(found.partitions, batches, strict=True):
        for row in batch.records():
            if (partition, row.offset) in leased:
                value = row.value or b""
                sequence = _sequence(stream, partition, row.offset)
                size = len(value) + 1
                parts += (_RECORD.pack(sequence, row.timestamp_ms, size, row.value_type), value)
    parts[0] = pack_u32(len(parts) // 2)
    return parts
