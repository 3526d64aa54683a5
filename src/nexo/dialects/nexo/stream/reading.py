"""Requests of readers without a group: by offset, by time, by key."""

from __future__ import annotations

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_headed, reply_parts
from nexo.errors import NexoError
from nexo.model import Buffer
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.connection import Done
from nexo.services.stream.keyed import Keyed, KeyedRecord
from nexo.services.stream.reading import ReadFrom, Reading, RecordSlice


class ReadingRequests:
    """S_READ, S_READ_MANY and S_OFFSETS_AT."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.handlers: dict[int, Handler] = {
            Op.S_READ: self.read,
            Op.S_READ_MANY: self.read_many,
            Op.S_OFFSETS_AT: calling(wire.OffsetsAt, reading.offsets_at),
        }

    def read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from an offset on; wait for some at the end."""
        ask = wire.unpack(wire.Read, payload)
        place = ReadFrom(ask.stream, ask.partition, ask.offset, ask.created_ms)
        done = reply_parts(peer, request_id, _slice)
        self._reading.read(peer, request_id, [place], done, ask.max_bytes, ask.wait_ms)

    def read_many(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from several places, each getting its share; wait for some."""
        ask = wire.unpack(wire.ReadMany, payload)
        places = [ReadFrom(*place, ask.created_ms.get(place[0], 0)) for place in ask.places]
        done = reply_parts(peer, request_id, _slices)
        self._reading.read(peer, request_id, places, done, ask.max_bytes, ask.wait_ms)


def key_handlers(keyed: Keyed) -> dict[int, Handler]:
    """Of S_GET, S_STATE and S_COMPACT."""
    return {
        Op.S_GET: calling(wire.Get, keyed.get, _reply_record),
        Op.S_STATE: calling(wire.StateAsk, keyed.state, reply_headed),
        Op.S_COMPACT: calling(wire.StreamName, keyed.compact),
    }


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
