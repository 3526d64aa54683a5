"""The existing client's stream commands: sequences from 1, one record at a time.

A stream of one partition, all that client creates, has sequence = offset + 1. To let it use
any other stream too, a sequence is ``offset * partitions + partition + 1``. Once partitions were
added, sequences begin at 2**52 and count 1,024 to an offset, so that those that a client holds from
before keep their meaning. Its error texts are part of the protocol, so they are raised as they
stand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from struct import Struct
from typing import Literal

import msgspec

from nexo.batch import decode, entries
from nexo.brokers.stream.groups.flight import Refusal
from nexo.brokers.stream.publishing import ROUTE
from nexo.brokers.stream.registry import OpenStream
from nexo.dialects.nexo.handlers import Handler, Peer, json_options, name_in
from nexo.dialects.nexo.replies import reply_data, reply_ok, reply_parts
from nexo.errors import InvalidOption, NexoError, NotFound, ProtocolError
from nexo.model.names import name_of
from nexo.model.stream import SettleRecords, Verb
from nexo.options.stream import MAX_PARTITIONS
from nexo.protocol.frames import FieldReader, pack_str, pack_u32, text_at
from nexo.protocol.ops import Op
from nexo.protocol.values import check_value
from nexo.services.stream.groups.shared import JoinedConsumer
from nexo.services.stream.groups.taking import TakenRecords
from nexo.services.stream.reading import MAX_LIMIT
from nexo.services.stream.service import StreamService

_NO_STREAM = "Topic not found"
_SEQUENCE = Struct(">Q")
_GROWN = 1 << 52
_RECORD = Struct(">QQIB")
_JOINED = Struct(">QQ")


class ClassicRetention(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The retention options of S_CREATE."""

    max_age_ms: int | None = None
    max_bytes: int | None = None


class CreateOptions(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The options of S_CREATE."""

    retention: ClassicRetention | None = None

    def given(self) -> dict[str, object]:
        """The same as options of a stream."""
        kept = self.retention or ClassicRetention()
        found = {
            "retention_ms": kept.max_age_ms,
            "retention_bytes": kept.max_bytes,
        }
        return {name: value for name, value in found.items() if value is not None}


class ClassicRequests:
    """Handlers of the existing client's S_ commands."""

    def __init__(self, service: StreamService) -> None:
        self._publishing = service.publishing
        self._gathering = service.publishing.gathering
        self._groups = service.groups
        self._taking = service.taking
        self._admin = service.admin
        self.handlers: dict[int, Handler] = {
            Op.S_CREATE: self.create,
            Op.S_PUB: self.publish,
            Op.S_FETCH: self.fetch,
            Op.S_JOIN: self.join,
            Op.S_ACK: partial(self.settle, verb="ack"),
            Op.S_NACK: partial(self.settle, verb="nack"),
            Op.S_EXISTS: self.exists,
            Op.S_DELETE: self.delete,
            Op.S_SEEK: self.seek,
            Op.S_LEAVE: self.leave,
        }

    # -- streams ---------------------------------------------------------------------

    def create(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Create a stream; an existing one keeps its options."""
        reader = FieldReader(payload)
        name = name_in(peer, reader)
        options = json_options(reader.text(), CreateOptions, InvalidOption)
        self._admin.ensure(peer, name, options.given(), reply_ok(peer, request_id))

    def exists(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """OK, or an error."""
        name = name_in(peer, FieldReader(payload))
        with self._in_classic_words(name, "Stream not found"):
            self._admin.outline(peer, name)
        peer.ok(request_id)

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Delete a stream and its groups. OK also if there is none, for that client."""
        name = name_in(peer, FieldReader(payload))
        try:
            self._admin.delete(peer, name, reply_ok(peer, request_id))
        except NotFound:
            if peer.said_hello:
                raise NotFound("Stream not found") from None
            peer.ok(request_id)

    def publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one value; the reply is its sequence."""
        text, at = text_at(payload, 0)
        try:
            stream = self._publishing.target(peer, text if peer.said_hello else name_of(text))
        except NotFound:
            raise NotFound(_NO_STREAM) from None
        value = bytes(payload[at:])
        check_value(value)
        stored = partial(_reply_sequence, peer, request_id, stream)
        self._gathering.add(stream, ROUTE, value[0], value[1:], stored)

    # -- groups ----------------------------------------------------------------------

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Join a group: the group's name comes first here."""
        reader = FieldReader(payload)
        group, stream = name_in(peer, reader), name_in(peer, reader)
        with self._in_classic_words(stream):
            self._groups.join(peer, stream, group, reply_data(peer, request_id, _joined))

    def leave(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Leave a group; a fetch that waits is answered."""
        stream, group, consumer, generation = _member(peer, FieldReader(payload))
        done = reply_ok(peer, request_id)
        with self._in_classic_words(stream):
            self._groups.leave(peer, stream, group, consumer, done, generation=generation)

    def fetch(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Lease records; wait for some if there are none."""
        reader = FieldReader(payload)
        stream, group, consumer, generation = _member(peer, reader)
        limit, wait_ms = reader.u32(), reader.u32()
        limit, done = min(max(1, limit), MAX_LIMIT), reply_parts(peer, request_id, _records)
        with self._in_classic_words(stream):
            self._taking.take(
                peer, request_id, stream, group, consumer, limit, wait_ms, done,
                generation=generation,
            )  # fmt: skip

    def settle(self, peer: Peer, request_id: int, payload: memoryview, verb: Verb) -> None:
        """Ack one record, or nack it: then it is redelivered at once."""
        reader = FieldReader(payload)
        stream, group, consumer, generation = _member(peer, reader)

        def done(refusals: list[Refusal] | NexoError) -> None:
            first = refusals[0].error if isinstance(refusals, list) and refusals else refusals
            reply_ok(peer, request_id)(first)

        with self._in_classic_words(stream):
            counts = self._groups.counts(peer, stream, group)
            partition, offset = _place(counts, reader.u64())
            ranges = [(partition, offset, offset + 1)]
            said = SettleRecords(stream, group, consumer, generation, verb, ranges)
            self._groups.settle(peer, said, done)

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Reset a group to the beginning or the end."""
        reader = FieldReader(payload)
        stream, group = name_in(peer, reader), name_in(peer, reader)
        target = _target(reader.u8())
        with self._in_classic_words(stream):
            self._groups.seek(peer, stream, group, reply_ok(peer, request_id), to=target)

    # -- errors ----------------------------------------------------------------------

    @contextmanager
    def _in_classic_words(self, stream: str, no_stream: str = _NO_STREAM) -> Iterator[None]:
        """Name what is missing as the existing client knows it."""
        try:
            yield
        except NotFound:
            there = self._admin.is_there(stream)
            raise NotFound("Group not found" if there else no_stream) from None


def _member(peer: Peer, reader: FieldReader) -> tuple[str, str, str, int]:
    """Stream, group, consumer and generation."""
    return name_in(peer, reader), name_in(peer, reader), reader.text(), reader.u64()


def _target(number: int) -> Literal["beginning", "end"]:
    match number:
        case 0:
            return "beginning"
        case 1:
            return "end"
    raise ProtocolError(f"S_SEEK to {number}: must be 0 (the beginning) or 1 (the end)")


def _reply_sequence(
    peer: Peer, request_id: int, stream: OpenStream,
    error: NexoError | None, partition: int, offset: int,
) -> None:  # fmt: skip
    if error is not None:
        peer.fail(request_id, error)
    elif stream.growths.ends:
        peer.data(request_id, _SEQUENCE.pack(_sequence(stream.counts, partition, offset)))
    else:
        peer.data(request_id, _SEQUENCE.pack(offset * stream.options.partitions + partition + 1))


def _sequence(counts: Sequence[int], partition: int, offset: int) -> int:
    if len(counts) == 1:
        return offset * counts[0] + partition + 1
    return _GROWN + offset * MAX_PARTITIONS + partition


def _place(counts: Sequence[int], sequence: int) -> tuple[int, int]:
    """Partition and offset of a sequence; some may be from before a growth."""
    if not sequence:
        raise ProtocolError("sequences start at 1")
    if sequence >= _GROWN:
        offset, partition = divmod(sequence - _GROWN, MAX_PARTITIONS)
    else:
        offset, partition = divmod(sequence - 1, counts[0])
    return partition, offset


def _joined(joined: JoinedConsumer) -> bytes:
    return _JOINED.pack(joined.floor, joined.generation) + pack_str(joined.consumer)


def _records(taken: TakenRecords) -> list[bytes]:
    """The records of the deliveries, each with its sequence, timestamp and value."""
    leased = {(d.partition, offset) for d in taken.deliveries for offset in range(d.first, d.end)}
    parts = [b""]
    batches = map(decode, entries(b"".join(taken.found.parts)))
    for partition, batch in zip(taken.found.partitions, batches, strict=True):
        for row in batch.records():
            if (partition, row.offset) in leased:
                value = row.value or b""
                sequence = _sequence(taken.counts, partition, row.offset)
                size = len(value) + 1
                parts += (_RECORD.pack(sequence, row.timestamp_ms, size, row.value_type), value)
    parts[0] = pack_u32(len(parts) // 2)
    return parts
